"""The files of `config/deploy`, and the wheelq commands that they run."""

from __future__ import annotations

import shlex
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "config" / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
MANIFESTS = DEPLOY / "kubernetes" / "wheelq.yaml"
SCALING = DEPLOY / "scaling"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the kit: its arguments, and those of the `wheelq health` that probes it."""

    file: str
    arguments: list[str]
    probe: list[str]

    def __str__(self) -> str:
        return f"{self.file}: wheelq {self.arguments[0]}"


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFESTS.read_text()))


def unit(path: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of directives keep their case
    parser.read_string(path.read_text())
    return parser


def processes() -> list[Process]:
    """Every wheelq process that compose, the manifests and the units start."""
    return [*_of_compose(), *_of_kubernetes(), *_of_systemd()]


def _of_compose() -> list[Process]:
    ours = [service for service in compose()["services"].values() if service["image"] == "wheelq"]
    return [Process(COMPOSE.name, service["command"], service["healthcheck"]["test"][2:]) for service in ours]


def _of_kubernetes() -> list[Process]:
    pods = [found["spec"]["template"]["spec"] for found in manifests() if found["kind"] == "Deployment"]
    containers = [container for pod in pods for container in pod["containers"]]
    return [Process(MANIFESTS.name, one["args"], one["livenessProbe"]["exec"]["command"][1:]) for one in containers]


def _of_systemd() -> list[Process]:
    found = []
    for path in UNITS:
        arguments = shlex.split(unit(path)["Service"]["ExecStart"].replace("%i", "9111"))[1:]
        option = "--port" if "--port" in arguments else "--metrics-port"
        found.append(Process(path.name, arguments, ["health", "--port", arguments[arguments.index(option) + 1]]))
    return found
