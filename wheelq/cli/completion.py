"""Completes topics' names in a shell: `wheelq --install-completion` sets it up.

It asks the server for half a second at most. If the server does not answer, nothing is completed, without a message.
"""

from __future__ import annotations

from dataclasses import replace

import typer

from wheelq.errors import WheelqError
from wheelq.settings import ConnectionSettings, settings_in_force

PATIENCE_MS = 500


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the topics whose names begin so."""
    from wheelq.protocol.calls import registry  # on demand: --help needs no redis
    from wheelq.protocol.keys import Keys
    from wheelq.transport import Transport, server_address

    try:
        settings = settings_in_force(ctx.params.get("config"))
        limits = ConnectionSettings(connect_timeout_ms=PATIENCE_MS, reply_timeout_ms=PATIENCE_MS)
        client = replace(settings.client, replicated_timeout_ms=PATIENCE_MS // 2)  # must be less than that of replies
        hasty = replace(settings, connection=limits, client=client)
        transport = Transport(server_address(ctx.params.get("url"), hasty))
        try:
            found = transport.send(registry.topics(Keys(settings.prefix)))
        finally:
            transport.close()
    except (WheelqError, OSError):
        return []
    return sorted(name for name in {*found.settings, *found.unreadable} if name.startswith(incomplete))
