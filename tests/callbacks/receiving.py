"""Receivers as processes, the register that names them, and jobs for them."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.servers.nodes import free_port
from tests.waiting import eventually

SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
PATIENCE_S = 100.0  # nothing here takes that long, but on a busy machine anything may


class Receiver:
    """A receiving process, to be killed and started again at the same port."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._log = directory / f"received-{self.port}.jsonl"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        script = Path(__file__).with_name("receiver.py")
        command = [sys.executable, str(script), str(self.port), str(self._log), SECRET]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def open(self) -> None:
        """Let it answer at `/gate`."""
        self._log.with_name("open").touch()

    def received(self) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def accepted(self) -> Counter[str]:
        return Counter(line["job"] for line in self.received() if line["status"] == 200)


def write_register(directory: Path, **ports: int) -> Path:
    """Writes a register of the receivers at these ports. `hole`, which never answers, has a short timeout."""
    lines = [
        f'[services.{name}]\nurl = "http://127.0.0.1:{port}"\nmay_be_plain = true\nsecrets = ["{SECRET}"]\n'
        f'networks = ["127.0.0.0/8"]\ntimeout = {1 if name == "hole" else 30}\n'
        "retry = {delays = [0.2, 0.4, 0.8], max_attempts = 300}\n"
        for name, port in ports.items()
    ]
    register = directory / "services.toml"
    register.write_text("".join(lines))
    return register


def to(service: str, path: str, id: str, delay: float, payload: Any = None) -> dict[str, Any]:
    return {"id": id, "delay": delay, "payload": payload, "target": {"service": service, "path": path}}


async def until(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    return await asyncio.to_thread(eventually, holds, within_s)
