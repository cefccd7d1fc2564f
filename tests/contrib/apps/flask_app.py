"""A service whose client is made, and used, before gunicorn forks."""

from __future__ import annotations

import os

from flask import Flask

from wheelq import Client

app = Flask(__name__)
client = Client.connect()
client.schedule("orders", "before the fork", delay=0)
master = os.getpid()


@app.post("/orders/<int:order>")
def order(order: int) -> dict[str, object]:
    receipt = client.schedule("orders", order, delay=0.2, key=f"order-{order}")
    return {"id": receipt.id, "pid": os.getpid(), "master": master}
