"""Clients that generators make of the OpenAPI document do a whole scenario, without a warning and without a cast."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # packages are installed

PROGRAMS = Path(__file__).parent / "clients"
NODE_PACKAGES = ("openapi-typescript@7", "openapi-fetch@0", "typescript@5", "@types/node@20")


async def run(directory: Path, *command: str | Path, may_skip: str = "", **environment: str) -> str:
    """Runs a command there and returns what it says; one that fails skips the test if `may_skip` says why."""
    told = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory, env={**os.environ, **environment}, stdout=told, stderr=asyncio.subprocess.STDOUT
    )
    said = (await process.communicate())[0].decode()
    if process.returncode and may_skip:
        pytest.skip(f"{may_skip}: {said[-300:]}")
    assert process.returncode == 0, said
    return said


async def document(base: str, directory: Path) -> Path:
    """Stores the document of a service."""
    async with httpx.AsyncClient() as http:
        path = directory / "openapi.json"
        path.write_text((await http.get(f"{base}/openapi.json")).text)
    return path


async def test_the_python_client_does_a_whole_scenario(listen: Callable[..., Any], tmp_path: Path) -> None:
    uv = [sys.executable, "-m", "uv"]
    await run(tmp_path, *uv, "venv", "-q", "--python", sys.executable, "venv")
    python = tmp_path / "venv/bin/python"
    install = [*uv, "pip", "install", "-q", "--python", python, "openapi-python-client", "ruff"]
    await run(tmp_path, *install, may_skip="no package index can be reached")
    base = (await listen()).base
    made = ["--path", await document(base, tmp_path), "--meta", "none", "--output-path", "wheelq_client"]
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # it formats what it makes with ruff
    generate = [python.parent / "openapi-python-client", "generate", "--fail-on-warning"]
    said = await run(tmp_path, *generate, *made, PATH=path)
    assert "arning" not in said
    await run(tmp_path, python, PROGRAMS / "scenario.py", base, PYTHONPATH=str(tmp_path))


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_the_typescript_client_does_a_whole_scenario(listen: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    await run(tmp_path, "npm", "install", "--silent", *NODE_PACKAGES, may_skip="no package registry can be reached")
    base = (await listen()).base
    bin = tmp_path / "node_modules/.bin"
    said = await run(tmp_path, bin / "openapi-typescript", await document(base, tmp_path), "-o", "wheelq.d.ts")
    assert "⚠" not in said
    shutil.copy(PROGRAMS / "scenario.ts", tmp_path)
    strict = ["--strict", "--target", "es2022", "--module", "nodenext"]
    await run(tmp_path, bin / "tsc", *strict, "--skipLibCheck", "scenario.ts")
    await run(tmp_path, "node", "scenario.js", base)
