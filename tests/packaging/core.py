"""Run by test_package with the Python of an environment that has wheelq's core only: core.py URL."""

import subprocess
import sys
from pathlib import Path

from wheelq import Client, JobState, WheelqError, Worker

url = sys.argv[1]
with Client.connect(url) as client:
    receipt = client.schedule("orders", {"id": 1}, delay=60)
    assert client.get("orders", receipt.id).state is JobState.WAITING
worker = Worker.connect(url)


@worker.handler("orders")
async def handle(job):
    pass


def hint(extra, lacking):
    said = "nothing"
    try:
        lacking()
    except (ModuleNotFoundError, WheelqError) as error:
        said = str(error)
    assert f"pip install 'wheelq[{extra}]'" in said, f"{extra} missing, and this is said: {said}"


def start_embedded():
    from wheelq.embedded import EmbeddedServer

    EmbeddedServer().start()


def import_sink():
    from wheelq.sinks import SqlSink

    return SqlSink


def import_kafka_sink():
    from wheelq.sinks import KafkaSink

    return KafkaSink


def import_locust():
    from wheelq.testing.locust import WheelqUser

    return WheelqUser


def put_cron():
    with Client.connect(url) as client:
        client.recurring.put("orders", "nightly", cron="0 3 * * *")


hint("testing", lambda: Client.connect("memory://"))
hint("sql", import_sink)
hint("kafka", import_kafka_sink)
hint("locust", import_locust)
hint("recurring", put_cron)

import os  # noqa: E402  # PATH is emptied only now: a server on it would do

os.environ["PATH"] = ""
hint("embedded", start_embedded)

command = subprocess.run([Path(sys.executable).parent / "wheelq"], capture_output=True, text=True, check=False)
assert command.returncode == 1
assert "pip install 'wheelq[cli]'" in command.stderr, command.stderr
