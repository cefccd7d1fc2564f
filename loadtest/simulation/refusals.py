"""`Refusals`: the errors with which a running server refuses commands, in the words of Redis."""

from __future__ import annotations

from loadtest.simulation.store.database import Refusal
from loadtest.simulation.world import World

OOM = "OOM command not allowed when used memory > 'maxmemory'."
MISCONF = "MISCONF Errors writing to the AOF file: No space left on device"
READONLY = "READONLY You can't write against a read only replica."
NOREPLICAS = "NOREPLICAS Not enough good replicas to write."
BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
LOADING = "LOADING Redis is loading the dataset in memory"
WHILE_LOADING = {b"HELLO", b"AUTH", b"INFO", b"CLIENT", b"SUBSCRIBE", b"UNSUBSCRIBE", b"CONFIG", b"SCRIPT"}
WITHOUT_LOGIN = {b"HELLO", b"AUTH"}


class Refusals:
    """What the server refuses now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.loading_until = 0.0
        self.busy_until = 0.0
        self.asks_password = False
        """Whether new sessions must sign in, for which they lack the password."""
        self.is_full = False
        self.is_replica = False
        self.writes = ""
        """The error that answers every write; "" if writes are accepted."""
        self.forbidden: dict[bytes, None] = {}
        """Commands that the user has no right to."""

    def check(self, name: bytes, is_trusted: bool) -> None:
        """Check a command before it runs. Raises: Refusal."""
        now = self._world.now
        if not is_trusted and name not in WITHOUT_LOGIN:
            raise Refusal("NOAUTH Authentication required.")
        if name in self.forbidden:
            raise Refusal(f"NOPERM User default has no permissions to run the '{name.decode().lower()}' command")
        if now < self.loading_until and name not in WHILE_LOADING:
            raise Refusal(LOADING)
        if now < self.busy_until and name not in (b"HELLO", b"AUTH"):
            raise Refusal(BUSY)

    def check_write(self, needs_memory: bool) -> None:
        """Check a write. Raises: Refusal."""
        if self.is_replica:
            raise Refusal(READONLY)
        if self.writes:
            raise Refusal(self.writes)
        if self.is_full and needs_memory:
            raise Refusal(OOM)
