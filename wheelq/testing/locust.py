"""Load tests of your own topics with Locust: `WheelqUser` has a client whose calls are timed.

    class Shop(WheelqUser):                                     locust -f shop_load.py --headless -u 20 -t 60s
        @task                                                       --host redis://localhost:6379
        def order(self) -> None:                                    --limit "lateness p99 50" --html report.html
            self.client.schedule("orders", {"id": 1}, delay=2)

Each method of the client is an entry of Locust's table, with the topic as its name. The entry "lateness" tells how late
the jobs of a topic started, from their due times to their handlers. All workers measure it anyway and write it to Redis
every five seconds; the load test reads it there, and so adds nothing to their work. They count by powers of two (1, 2,
4, 8 … ms); the values between two of them are taken as evenly spread. Lateness is not a request: Locust's "Aggregated"
row, its rate and its percentiles are those of the calls alone.

`--limit "KIND[/NAME] MEASURE MOST"` ends the test with exit code 1 if a figure is above the limit, or missing; see
`wheelq.testing.limits`. In a test of several processes (`--processes 4`) the master reads lateness and judges.

Importing this module imports Locust, which replaces the blocking parts of the standard library by gevent's: import it
only in locustfiles. Needs the extra `locust`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from threading import Event, Thread
from typing import Any, ClassVar, cast

try:
    import locust
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "wheelq.testing.locust needs Locust: pip install 'wheelq[locust]'", name=error.name
    ) from error

import gevent
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import RescheduleTask
from locust.rpc import Message
from locust.runners import MasterRunner, WorkerRunner
from locust.stats import StatsEntry

from wheelq.base.clock import SystemClock
from wheelq.base.metrics import LATENESS_BOUNDS, Measured
from wheelq.client import Client
from wheelq.client.dead import DeadLetters
from wheelq.client.recurring import Recurring
from wheelq.errors import CircuitOpen, ConfigurationError, InvalidInput, ServerError, WheelqError
from wheelq.protocol.calls import counts
from wheelq.protocol.keys import Keys
from wheelq.settings import Settings, resolve_url, settings_in_force
from wheelq.testing.limits import LoadLimit
from wheelq.transport import Address, Transport, server_address

LATENESS = "lateness"
"""The kind of the entries that tell how late jobs started."""
READ_EVERY = 1.0
"""Seconds between two looks at the workers' figures."""
_events: Any = locust.events  # its type does not describe the listeners' arguments
_clock = SystemClock()


class TimedClient:
    """A client whose calls are reported to Locust: how long each took, and its error."""

    def __init__(self, target: object, environment: Environment, prefix: str = "") -> None:
        self._target = target
        self._environment = environment
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if isinstance(found, (DeadLetters, Recurring)):
            return TimedClient(found, self._environment, f"{name}.")
        return self._timed(f"{self._prefix}{name}", found) if callable(found) else found

    def _timed(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*args: Any, **named: Any) -> Any:
            problem: WheelqError | None = None
            start = _clock.monotonic()
            try:
                return call(*args, **named)
            except WheelqError as error:
                problem = error
                raise RescheduleTask from error
            finally:
                took_ms = (_clock.monotonic() - start) * 1000
                first = args[0] if args else named.get("topic", "")
                name = first if isinstance(first, str) else getattr(first, "topic", "")
                name = name.partition(":")[0]  # a bundle counts as the topic of its follower
                _report(self._environment, kind, name, took_ms, _words(problem) if problem else None)

        return timed


class WheelqUser(locust.User):
    """A user whose `client` is a `wheelq.Client` with timed calls, shared by all users of the process.

    The server is Locust's host (`--host redis://…`, or `host` of the class), else WHEELQ_URL. `settings` (else those in
    force) has the prefix and all else. A call that fails is counted with its error and ends the task; the user goes on
    with the next one.
    """

    abstract = True
    settings: ClassVar[Settings | None] = None
    client: Client

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.client = cast(Client, TimedClient(_client(self.host, self.settings), environment))


@functools.cache
def _client(host: str | None, settings: Settings | None) -> Client:
    """One for each process: gevent's greenlets share it as threads would."""
    return Client.connect(host, settings or settings_in_force())


def _report(environment: Environment, kind: str, name: str, took_ms: float, problem: str | None) -> None:
    request: Any = environment.events.request  # its `fire` is not annotated
    request.fire(request_type=kind, name=name, response_time=took_ms, response_length=0, exception=problem, context={})


def _words(error: WheelqError) -> str:
    """Returns the same text for all errors of one kind, so that Locust counts them together."""
    return type(error).__name__ if isinstance(error, CircuitOpen) else f"{type(error).__name__}: {error}"


def record_lateness(environment: Environment, topic: str, late_ms: float) -> None:
    """Add one job's lateness to the topic's entry, for jobs that no worker starts (a consumer over HTTP, a test's own).

    A job that started early (less than 0 ms late) is an error.
    """
    stats = environment.stats
    stats.get(topic, LATENESS).log(max(0.0, late_ms), 0)  # type: ignore[arg-type]  # it takes fractions
    if late_ms < 0:
        stats.log_error(LATENESS, topic, AssertionError("started before it was due"))


class LatenessReader:
    """Reads what workers measured since the test started, and adds it to Locust's entries."""

    def __init__(self, environment: Environment, address: Address, prefix: str, last_word_s: float) -> None:
        """`last_word_s`: for how many seconds to read on after the test, for late jobs and figures."""
        self._environment = environment
        self._address = address
        self._keys = Keys(prefix)
        self._last_word_s = last_word_s
        self._known: Mapping[tuple[str, str], list[int]] | None = None
        self._ended = Event()
        self._thread: Thread | None = None

    def start(self, **_: Any) -> None:
        """Count from now on; if the server is away, from its return."""
        self._known = None
        with suppress(ServerError):
            self._add_new()
        self._ended.clear()
        self._thread = Thread(target=self._read, daemon=True)  # with Locust's patches, a greenlet
        self._thread.start()

    def stop(self, **_: Any) -> None:
        """Read the last figures and stop."""
        if self._thread is not None:
            _stop_users(self._environment)
            self._ended.wait(self._last_word_s)
            self._ended.set()
            self._thread.join()
            self._thread = None

    def _read(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._ended.wait(READ_EVERY)
            with suppress(ServerError):  # the test may be of an outage
                self._add_new()

    def _counts(self) -> dict[tuple[str, str], list[int]]:
        with closing(Transport(self._address)) as transport:
            found = transport.send(counts.histograms(self._keys))
        return {
            (topic, group): counts for (kind, topic, group), (_, *counts) in found.items() if kind is Measured.START
        }

    def _add_new(self) -> None:
        counts = self._counts()
        known = counts if self._known is None else self._known
        for (topic, group), now in counts.items():
            before = known.get((topic, group), [0] * len(now))
            entry = self._environment.stats.get(topic, LATENESS)
            for place, count in enumerate(now):
                _log_spread(entry, place, count - before[place])
        self._known = counts


def _stop_users(environment: Environment) -> None:
    """Stop the users in other processes. Otherwise a master does so only after the listeners of `test_stop`."""
    if isinstance(environment.runner, MasterRunner):
        message: Any = Message  # its `__init__` is not annotated
        for process in environment.runner.clients.all:
            environment.runner.server.send_to_client(message("stop", None, process.id))


def _log_spread(entry: StatsEntry, place: int, count: int) -> None:
    """Log `count` values, evenly spread between the bounds of the step at this place."""
    low = LATENESS_BOUNDS[place - 1] if place else 0.0
    high = LATENESS_BOUNDS[place] if place < len(LATENESS_BOUNDS) else low
    for number in range(count):
        late_ms = 1000 * (low + (high - low) * (number + 0.5) / count)
        entry.log(late_ms, 0)  # type: ignore[arg-type]  # it takes fractions


def judge(environment: Environment, limits: list[LoadLimit]) -> None:
    """Print every limit that is broken and set Locust's exit code: 1 if any is.

    If all hold and one of them is for failures, calls that failed are within a limit: then the exit code is 0.
    """
    broken = [words for limit in limits for words in limit.broken_by(environment.stats.entries.values())]
    for words in broken:
        print(f"limit broken: {words}")
    if broken:
        environment.process_exit_code = 1
    elif any(limit.measure == "failures" for limit in limits):
        environment.process_exit_code = 0


def _add_options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("wheelq")
    group.add_argument(
        "--limit",
        action="append",
        metavar="'KIND[/NAME] MEASURE MOST'",
        help="exit code 1 above it: 'lateness p99 50' (ms), 'schedule failures 1' (percent); may be given often",
    )
    group.add_argument("--lateness-url", metavar="URL", help="server of the workers' figures (default: the host)")
    group.add_argument(
        "--lateness-wait",
        type=float,
        default=8.0,
        metavar="SECONDS",
        help="how long to read lateness after the test: workers report it every 5 s, and jobs may still wait "
        "(default %(default)g)",
    )


def _prepare(environment: Environment, runner: Any = None, **_: Any) -> None:
    # gevent counts the test's run time from the last turn of its loop: on a busy machine that was seconds ago.
    gevent.get_hub().loop.update_now()
    options = environment.parsed_options
    if options is None or isinstance(runner or environment.runner, WorkerRunner):
        return
    try:
        limits = [LoadLimit.parse(text) for text in options.limit or ()]
    except InvalidInput as error:
        raise SystemExit(f"--limit: {error.problem}") from error
    reader = _reader(environment, options.lateness_url, options.lateness_wait)

    def end(**_: Any) -> None:
        if reader:
            reader.stop()
        judge(environment, limits)

    if reader:
        _events.test_start.add_listener(reader.start)
        _events.test_stop.add_listener(reader.stop)
    _events.quitting.add_listener(end)


def _reader(environment: Environment, url: str | None, last_word_s: float) -> LatenessReader | None:
    """Returns the reader; None if no server is named."""
    users = [found for found in environment.user_classes if issubclass(found, WheelqUser)]
    settings = next((user.settings for user in users if user.settings), None) or settings_in_force()
    host = next((environment.host or user.host for user in users), None)
    try:
        address = server_address(resolve_url(url or host, settings), settings)
    except ConfigurationError:
        return None
    return LatenessReader(environment, address, settings.prefix, last_word_s)


_events.init_command_line_parser.add_listener(_add_options)
_events.init.add_listener(_prepare)
