"""The deployment kit: its files are valid, and its commands run, answer their probes and stop in time."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import kubernetes_validate
import pytest
import yaml

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running, wheelq
from tests.deploy.kit import (
    COMPOSE,
    DEPLOY,
    MANIFESTS,
    ROOT,
    SCALING,
    UNITS,
    Process,
    compose,
    manifests,
    processes,
    unit,
)
from tests.waiting import PATIENCE, eventually
from wheelq.embedded import EmbeddedServer

ONE_SERVER_WILL_DO = "valkey"


@pytest.mark.parametrize("process", processes(), ids=str)
def test_each_process_answers_its_probe_and_stops_at_sigterm(
    process: Process, url: str, tmp_path: Path, start: Callable[..., Running]
) -> None:
    shutil.copy(DEPLOY / "shop.py", tmp_path)
    port = free_port()
    arguments = with_port(process.arguments, port)
    if process.arguments[0] == "server":
        arguments = [*with_port(process.arguments, free_port()), "--port", port]
    if process.arguments[0] == "courier":
        database = f"sqlite:///{tmp_path / 'shop.db'}"
        wheelq("courier", "--create", "--database", database)
        arguments += ["--database", database]
    running = start(tmp_path, *arguments, url=url)
    probe = with_port(process.probe, port)
    assert eventually(lambda: wheelq(*probe).code == 0), running.said
    running.signal(signal.SIGTERM)
    assert running.end() == 0, running.said
    assert wheelq(*probe).code == 1


@pytest.mark.parametrize("file", [COMPOSE, MANIFESTS], ids=lambda file: str(file.name))
def test_the_server_waits_for_the_key_that_the_instructions_make(
    file: Path, private_server: Callable[..., EmbeddedServer], tmp_path: Path, start: Callable[..., Running]
) -> None:
    url, port = private_server().url, free_port()
    [process] = [one for one in processes() if one.file == file.name and one.arguments[0] == "server"]
    [line] = [line for line in file.read_text().splitlines() if "wheelq keys create" in line]
    words = [str(free_port()) if word == "9101" else word for word in process.arguments]
    running = start(tmp_path, *words, "--port", port, url=url)
    running.wait_for("wheelq keys create")
    assert eventually(lambda: wheelq("health", "--port", port).code == 0)
    made = wheelq(*shlex.split(line.rpartition(" wheelq ")[2]), url=url)
    headers = {"authorization": f"Bearer {made.out.strip()}"}
    assert httpx.get(f"http://127.0.0.1:{port}/v1/topics", headers=headers, timeout=PATIENCE).status_code == 200


def with_port(arguments: list[str], port: int) -> list[str]:
    """The arguments with a port that is free, on loopback only."""
    places = {number for number, word in enumerate(arguments) if word in ("--port", "--metrics-port")}
    words = [str(port) if number - 1 in places else word for number, word in enumerate(arguments)]
    return ["127.0.0.1" if word == "0.0.0.0" else word for word in words]


def test_every_file_that_compose_mounts_is_there() -> None:
    services = compose()["services"].values()
    mounts = [volume.split(":")[0] for service in services for volume in service.get("volumes", [])]
    files = [mount for mount in mounts if mount.startswith(".")]
    assert files
    assert [file for file in files if not (DEPLOY / file).exists()] == []


def test_prometheus_of_compose_scrapes_services_that_answer() -> None:
    loaded = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    [scraped] = loaded["scrape_configs"]
    [targets] = [one["targets"] for one in scraped["static_configs"]]
    services = compose()["services"]
    told = {
        f"{name}:{service['command'][service['command'].index('--metrics-port') + 1]}"
        for name, service in services.items()
        if "--metrics-port" in service.get("command", [])
    }
    assert set(targets) == told


def test_a_courier_runs_only_where_it_is_wanted() -> None:
    """Without a database it would end at once, again and again."""
    [deployment] = [
        one for one in manifests() if one["kind"] == "Deployment" and one["metadata"]["name"] == "wheelq-courier"
    ]
    service = compose()["services"]["courier"]
    assert (deployment["spec"]["replicas"], service["profiles"]) == (0, ["courier"])
    assert service["environment"]["WHEELQ_DATABASE"] == "${WHEELQ_DATABASE:-}"
    assert service["environment"].items() > compose()["services"]["worker"]["environment"].items()
    assert [path.name for path in UNITS if "courier" in path.name] == ["wheelq-courier.service"]


def test_a_rollout_waits_until_new_pods_stay() -> None:
    """Without this, a pod counts as soon as its container starts, and one that ends at once replaces a good one."""
    specs = [one["spec"] for one in manifests() if one["kind"] == "Deployment"]
    for spec in specs:
        [container] = spec["template"]["spec"]["containers"]
        assert "readinessProbe" in container or spec["minReadySeconds"] >= 10


def test_compose_runs_two_schedulers_and_monitoring() -> None:
    services = compose()["services"]
    assert [name for name in services if services[name].get("command", [""])[0] == "scheduler"] == [
        "scheduler-1",
        "scheduler-2",
    ]
    assert {"valkey", "worker", "server", "prometheus", "grafana"} <= set(services)


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0,
    reason="docker compose is not installed",
)
def test_docker_compose_accepts_the_file() -> None:
    subprocess.run(["docker", "compose", "-f", DEPLOY / "compose.yaml", "config", "--quiet"], check=True)


def test_the_manifests_are_valid_for_kubernetes() -> None:
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_the_scalers_scale_the_workers_by_what_is_measured() -> None:
    hpa, keda = (yaml.safe_load((SCALING / name).read_text()) for name in ("hpa.yaml", "keda.yaml"))
    kubernetes_validate.validate(hpa, "1.33", strict=True)
    [worker] = [
        one for one in manifests() if one["metadata"]["name"] == "wheelq-worker" and one["kind"] == "Deployment"
    ]
    for one in (hpa, keda):  # a ScaledObject has no schema among those of Kubernetes
        assert one["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    [container] = worker["spec"]["template"]["spec"]["containers"]
    assert "cpu" in container["resources"]["requests"], "utilization is a share of the request"
    [trigger] = keda["spec"]["triggers"]
    assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
    [metric] = re.findall(r"wheelq_\w+", trigger["metadata"]["query"])
    assert f"`{metric}`" in (ROOT / "wheelq" / "guide" / "reference-metrics.md").read_text()


def test_each_deployment_has_a_disruption_budget_for_its_pods() -> None:
    found = manifests()
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in found if one["kind"] == "Deployment"]
    budgets = [one["spec"]["selector"]["matchLabels"] for one in found if one["kind"] == "PodDisruptionBudget"]
    assert pods == budgets


def test_processes_have_longer_to_stop_than_handlers_have_to_finish() -> None:
    from wheelq.settings import ServerSettings, WorkerSettings

    longest_s = max(WorkerSettings().grace_ms, ServerSettings().drain_ms) / 1_000
    pods = [one["spec"]["template"]["spec"] for one in manifests() if one["kind"] == "Deployment"]
    assert all(pod["terminationGracePeriodSeconds"] > longest_s for pod in pods)
    assert all(int(unit(path)["Service"]["TimeoutStopSec"]) > longest_s for path in UNITS)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in (DEPLOY / "systemd").iterdir():
        there = path.read_text().replace("/opt/wheelq/bin/wheelq", "/bin/true")  # it must exist to be accepted
        (tmp_path / path.name).write_text(there)
    units = [path for path in tmp_path.iterdir() if path.suffix in (".service", ".target")]
    answer = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    ours = [line for line in answer.stderr.splitlines() if "wheelq" in line]
    assert (answer.returncode, ours) == (0, [])


def test_the_image_runs_as_a_user_without_rights() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM")) :]
    instructions = dict(line.split(None, 1) for line in last_stage if line[:1].isupper())
    assert instructions["USER"] == "10001"
    assert instructions["ENTRYPOINT"] == '["wheelq"]'
    assert (ROOT / ".dockerignore").read_text().split()[0] == ".git"


def test_a_server_with_the_kits_redis_conf_pleases_doctor(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    lines = (DEPLOY / "redis.conf").read_text().splitlines()
    directives = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    if not supports(private_server, "appenddirname"):
        del directives["appenddirname"]  # Redis 7
    server = private_server(options=directives)
    problems = [finding for finding in wheelq("doctor", "--json", url=server.url).json if finding["level"] == "problem"]
    assert problems == []


def supports(private_server: Callable[..., EmbeddedServer], directive: str) -> bool:
    from redis import Redis

    with Redis.from_url(private_server().url) as redis:
        return bool(redis.config_get(directive))
