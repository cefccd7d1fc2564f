"""`Inspector`: inspects a server and its topics, schedulers and workers. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from wheelq.admin import facts, figures, payloads
from wheelq.admin.diagnosis import Finding, ServerFacts
from wheelq.admin.figures import ASKS_ALWAYS, NodeInfo, Stats, by_slot
from wheelq.admin.payloads import PayloadCheck
from wheelq.base.clock import Clock, SystemClock
from wheelq.producer.driver import Driver
from wheelq.producer.operation import ask
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, Settings, settings_in_force
from wheelq.transport import Transport, server_address
from wheelq.worker import Worker


class Inspector:
    """Inspects a server. A context manager."""

    def __init__(
        self,
        transport: Transport,
        keys: Keys | None = None,
        clock: Clock | None = None,
        shown: str = "",
        client: ClientSettings | None = None,
    ) -> None:
        """`client` are the settings of the producers whose promises `doctor` judges."""
        self.shown = shown
        """The server's address, without the password."""
        self._transport = transport
        self._keys = keys or Keys()
        self._clock = clock or SystemClock()
        self._client = client or ClientSettings()
        self._driver = Driver(transport, ASKS_ALWAYS, self._clock)

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """Returns an inspector for `url` (else WHEELQ_URL); it connects on first use. Raises: ConfigurationError."""
        given, settings = settings, settings or settings_in_force()
        address = server_address(url, given)
        return cls(Transport(address), Keys(settings.prefix), shown=address.shown, client=settings.client)

    def stats(self) -> Stats:
        """Returns every topic, live scheduler and live worker, by name. Raises: ServerError."""
        return (self._driver.run(figures.fleet(self._keys, by_slot(self._transport.slot)))).stats()

    def server_ms(self) -> int:
        """Returns the server's time. Raises: ServerError."""
        return self._driver.run(ask(server_time_us())) // 1000

    def nodes(self) -> list[NodeInfo]:
        """Returns every live scheduler, by name. Raises: ServerError."""
        return self._driver.run(figures.nodes(self._keys))

    def doctor(self) -> list[Finding]:
        """Returns findings about the server and its users. Raises: Unavailable, AuthenticationFailed, ServerBusy."""
        return self._driver.run(facts.findings(self._keys, self._clock, self._transport, self._client.replicas))

    def server_facts(self) -> ServerFacts:
        """Returns facts about the server. Raises: Unavailable, AuthenticationFailed, ServerBusy."""
        return self._driver.run(facts.server_facts(self._keys, self._clock, self._transport, self._client.replicas))

    def other_prefixes(self) -> tuple[str, ...]:
        """Returns the prefixes of other schedulers and workers on the server, and of other topics. Raises: ServerError.

        It looks at 100,000 keys at most. A user that may not look finds none.
        """
        return self._driver.run(facts.other_prefixes(self._keys, thoroughly=True))

    def check_payloads(self, worker: Worker, sample: int | None, report: Callable[[int, int], object]) -> PayloadCheck:
        """Returns what does not fit the worker's handlers; see `payloads.check`. Raises: ServerError."""
        return self._driver.run(payloads.check(self._keys, worker._handlers, worker.group, sample, report))

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
