"""The files in `config/` for Prometheus and Grafana name metrics that exist, and raise the alerts that they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import wheelq

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "config" / "prometheus"
BOARD = ROOT / "config" / "grafana" / "wheelq.json"
SOURCES = ("admin/metrics.py", "server/routes/health.py")
NAMED = re.compile(r"\bwheelq_[a-z_]+[a-z]")


def told() -> set[str]:
    """Every metric that the code tells, as Prometheus stores it."""
    found: set[str] = set()
    for source in SOURCES:
        text = (Path(wheelq.__file__).parent / source).read_text()
        found |= set(re.findall(r"\"(wheelq_[a-z_]+)\"", text))
        found |= {f"{name}_total" for name in re.findall(r"CounterMetricFamily\(\s*\"(wheelq_\w+)\"", text)}
    return found | {f"{name}_bucket" for name in found if name.endswith("_seconds")}


@pytest.mark.parametrize(
    "path", [PROMETHEUS / "alerts.yml", PROMETHEUS / "tests.yml", BOARD], ids=lambda path: path.name
)
def test_each_metric_that_is_named_is_told(path: Path) -> None:
    named = set(NAMED.findall(path.read_text()))
    assert len(named) > 5
    assert named - told() == set()


def test_each_alert_says_what_to_look_at_first() -> None:
    text = (PROMETHEUS / "alerts.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", text)
    descriptions = re.findall(r"description: \"(.+)\"", text)
    assert len(alerts) == len(set(alerts)) == len(descriptions)
    assert all(re.search(r"[Ll]ook .*first", description) for description in descriptions)


def test_each_alert_is_tried_before_its_time_and_after_and_in_a_fleet_in_order() -> None:
    rules = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
    *problems, in_order = yaml.safe_load((PROMETHEUS / "tests.yml").read_text())["tests"]
    for rule in rules:
        fires = f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}})'
        tried = [check for test in problems for check in test["promql_expr_test"] if check["expr"] == fires]
        assert {bool(check["exp_samples"]) for check in tried} == {True, False}, rule["alert"]
        known = {one["series"].partition("{")[0] for one in in_order["input_series"]}
        assert set(NAMED.findall(rule["expr"])) <= known, rule["alert"]
    assert {check["expr"] for check in in_order["promql_expr_test"]} == {"count(ALERTS)"}
    assert not any(check["exp_samples"] for check in in_order["promql_expr_test"])


def test_the_board_shows_what_is_due_next() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    assert "Due in the next 10 minutes" in {panel["title"] for panel in panels}
    assert all(target["expr"] for panel in panels for target in panel["targets"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, of the package prometheus, is not installed")
@pytest.mark.parametrize(
    "command", [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "tests.yml")]
)
def test_promtool_accepts_the_rules_and_planted_problems_raise_their_alerts(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
