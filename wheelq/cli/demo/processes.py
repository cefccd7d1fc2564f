"""Starts, listens to and stops the demo's child processes; `roles` is their code.

Each child has its own session, so that Ctrl-C reaches only the demo, which stops its children in order.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Any, Literal

import msgpack

from wheelq.errors import WheelqError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 6.0  # longer than a child gives itself
LAST_WORDS_BYTES = 2_000
READ_BYTES = 65_536

Role = Literal["scheduler", "worker"]


class ProcessEnded(WheelqError):
    """A process of the demo ended too soon."""


class ChildProcess:
    """One child that runs."""

    def __init__(self, role: Role, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self.role = role
        self._process = process
        self._log = log
        self._reports = self._read()

    async def wait_until_ready(self) -> None:
        """Wait until it is ready. Raises: ProcessEnded, if it ended instead, or does not report in time."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                if await anext(self._reports, None) is None:
                    raise await self.ended()
        except TimeoutError as error:
            raise ProcessEnded(f"the {self.role} process did not start within {START_TIMEOUT_S:.0f} s") from error

    async def reports(self) -> AsyncIterator[Any]:
        """Yields its reports until it ends."""
        async for report in self._reports:
            yield report

    async def ended(self) -> ProcessEnded:
        """Returns the error that describes its end, for a child that should still run."""
        code = await self._process.wait()
        self._log.seek(0)
        last_words = self._log.read()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        return ProcessEnded(f"the {self.role} process ended with code {code}\n{last_words}".strip())

    async def stop(self) -> None:
        """Stop it cleanly, or kill it if it does not end. Its last reports can still be read."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _read(self) -> AsyncIterator[Any]:
        assert self._process.stdout is not None
        unpacker = msgpack.Unpacker()
        while data := await self._process.stdout.read(READ_BYTES):
            unpacker.feed(data)
            for report in unpacker:
                yield report


@asynccontextmanager
async def child_process(role: Role, url: str, prefix: str) -> AsyncIterator[ChildProcess]:
    """Starts a child, and stops it at the end."""
    # The child imports the same modules as this process, not those in the current directory (-P). The URL may hold a
    # password, which the process list does not show if it is in the environment.
    environment = os.environ | {"WHEELQ_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "wheelq.cli.demo.roles", role, prefix),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        child = ChildProcess(role, process, log)
        try:
            await child.wait_until_ready()
            yield child
        finally:
            await child.stop()
