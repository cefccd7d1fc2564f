"""`Fleet`: the processes of one run (scheduler nodes, workers, producers) and their servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from loadtest.simulation import blocking, knobs
from loadtest.simulation.ledger import Asked, Ledger, Run
from loadtest.simulation.network import Network
from loadtest.simulation.operations import OPERATIONS
from loadtest.simulation.parts import Actor, Part
from loadtest.simulation.plan import BLUNT, NODES, PRODUCERS, WEB, WITH_OUTBOX, WORKERS, Plan, Step, TopicPlan
from loadtest.simulation.process import Process
from loadtest.simulation.receiver import ADDRESS, Receiver
from loadtest.simulation.sentinel import Sentinel
from loadtest.simulation.server import Server
from loadtest.simulation.web import serve
from loadtest.simulation.world import World
from wheelq import AsyncClient, Bury, Job, Retry, RetryAfter, Scheduler, Worker
from wheelq.errors import AuthenticationFailed, ServerError
from wheelq.settings import OutboxSettings, Settings, WorkerSettings

GROUPS = ("default", "default", "default", "audit")
"""The group of each worker."""

START_S = 2.0
"""Seconds after its start in which a part may end because the server refuses to sign it in."""


class Misbehaved(BaseException):
    """A BaseException that a handler raises."""


class Fleet:
    """All parts of a run."""

    def __init__(self, world: World, plan: Plan, ledger: Ledger) -> None:
        self.world, self.plan, self.ledger = world, plan, ledger
        self.network = Network(world)
        ledger.losses = self.network.losses
        self.random = world.random("fleet")
        self.servers = [Server(world, "redis-a:6379"), Server(world, "redis-b:6379")][: 1 + plan.has_sentinel]
        for server in self.servers:
            self.network.servers[server.address] = server
            server.scripts.changes = knobs.in_lua(plan.knobs)
        self.primary = self.servers[0]
        self.url = "redis://redis-a:6379"
        if plan.has_sentinel:
            self.servers[1].refusals.is_replica = True
            self.primary.replica_lag = [self.random.choice((0.001, 0.02, 0.3))]
            self.network.servers["sentinel:26379"] = Sentinel(world, "sentinel:26379", lambda: self.primary)
            self.url = "redis+sentinel://sentinel:26379/main"
        ledger.watch(self.primary)
        ledger.clock_changed(self.primary)
        self.stopped: list[str] = []
        """The parts that were asked to stop."""
        self.nodes = [self._part(f"node-{n}", self._node) for n in range(NODES)]
        self.workers = [self._part(f"worker-{n}", self._worker(n)) for n in range(WORKERS)]
        self.producers = [self._part(f"producer-{n}", self._producer(n)) for n in range(PRODUCERS)]
        self.others = [self._part(WEB, self._web)] if "web" in plan.traits else []
        if "blocking" in plan.traits:
            self.others.append(self._part(BLUNT, self._blocking))
        self.receiver = Receiver(ledger)
        self.network.servers[ADDRESS] = self.receiver
        self.parts = {part.name: part for part in (*self.nodes, *self.workers, *self.producers, *self.others)}

    @property
    def processes(self) -> list[Process]:
        """The living processes."""
        return [part.process for part in self.parts.values() if part.process.is_alive]

    def end(self) -> None:
        """After the run: clean up after all processes, dead ones too."""
        for part in self.parts.values():
            for process in (*part.former, part.process):
                process.end()

    def start(self) -> None:
        """Start all parts."""
        for part in self.parts.values():
            part.start(part.process)

    def replace(self, part: Part) -> None:
        """Replace a dead process with a new one, unless a second fault that hit the part has done so."""
        if part.process.is_alive:
            return
        part.former.append(part.process)
        part.process = Process(self.world, self.network, part.name)
        part.start(part.process)

    def do(self, step: Step) -> None:
        """Make a producer carry out a step, unless it is dead."""
        part = self.parts.get(step.who)  # only some seeds have the HTTP service
        if part is not None and (actor := part.actor) is not None:
            process = part.process
            operation = OPERATIONS[step.kind]
            process.deliver(lambda: process.loop.create_task(operation.do(actor, step), name=str(step)))

    # --- the parts ---------------------------------------------------------------------------------------------------

    def _part(self, name: str, start: Callable[[Part, Process], Coroutine[Any, Any, None]]) -> Part:
        process = Process(self.world, self.network, name)

        def begin(process: Process) -> None:
            part = self.parts[name]
            process.start(lambda: self._supervised(start, part, process))

        return Part(name, begin, process)

    async def _supervised(
        self, start: Callable[[Part, Process], Coroutine[Any, Any, None]], part: Part, process: Process
    ) -> None:
        """Restart a part that was refused at its start, as a supervisor does. Later the part must wait by itself."""
        while True:
            began = process.monotonic()
            try:
                await start(part, process)
                return
            except AuthenticationFailed as error:
                is_at_start = process.monotonic() - began < START_S
                if not (is_at_start and self.primary.refusals.asks_password):
                    raise
                self.world.story.tell(part.name, f"may not sign in, is started again: {error}")
                await asyncio.sleep(START_S)

    async def _node(self, part: Part, process: Process) -> None:
        node = Scheduler.connect(self.url, settings=self._settings())
        part.stop = node.stop
        await node.run(patiently=True)

    async def _web(self, part: Part, process: Process) -> None:
        await serve(self.url, self._settings(), self.ledger, part, process, self.plan.traits)

    async def _blocking(self, part: Part, process: Process) -> None:
        await blocking.produce(self.url, self._settings(), self.ledger, part)

    def _worker(self, number: int) -> Callable[[Part, Process], Coroutine[Any, Any, None]]:
        group = GROUPS[number]

        async def work(part: Part, process: Process) -> None:
            own = WorkerSettings(concurrency=(100, 20, 6, 30)[number], threads=4, grace_ms=3_000)
            worker = Worker.connect(self.url, group=group, settings=self._settings(worker=own))
            part.stop = worker.stop
            for topic in self.plan.topics:
                if group in topic.groups:
                    Handling(self, process, group, topic).register(worker)
            await worker.run(patiently=True)

        return work

    def _producer(self, number: int) -> Callable[[Part, Process], Coroutine[Any, Any, None]]:
        async def produce(part: Part, process: Process) -> None:
            outbox = OutboxSettings(path=f"outbox-{number}.db" if number in WITH_OUTBOX else "")
            client = AsyncClient.connect(self.url, self._settings(outbox=outbox))
            done = asyncio.Event()
            part.stop = done.set
            async with client:
                if number == 0:
                    await self._make_topics(client)
                part.actor = Actor(part.name, client, self.ledger)
                await done.wait()
                part.actor = None

        return produce

    def _settings(self, **parts: Any) -> Settings:
        """Returns the settings of a part: its own, and those that the seed's knobs turn."""
        return knobs.settings(Settings(**parts), self.plan.knobs)

    async def _make_topics(self, client: AsyncClient) -> None:
        for topic in self.plan.topics:
            wanted = {**knobs.of_topics(self.plan.knobs), **topic.settings}
            for _ in range(100):
                try:
                    await client.configure(topic.name, **{k: v for k, v in wanted.items() if k != "shards"})
                    if (shards := topic.settings.get("shards", 1)) > 1:
                        await client.set_shards(topic.name, shards)
                    for group in topic.groups:
                        await client.make_group(topic.name, group)
                    break
                except ServerError:
                    await asyncio.sleep(0.2)


class Handling:
    """How one worker handles the jobs of one topic."""

    def __init__(self, fleet: Fleet, process: Process, group: str, topic: TopicPlan) -> None:
        self._fleet, self._process, self._group, self._topic = fleet, process, group, topic

    def register(self, worker: Worker) -> None:
        """Give the worker its handler."""
        name, retry = self._topic.name, Retry(delays=self._topic.retry_delays)
        match self._topic.handling:
            case "single":
                worker.handler(name, retry=retry)(self.handle)
            case "result":
                worker.handler(name, retry=retry)(self.handle_and_answer)
            case "ordered":
                worker.handler(name, retry=retry, ordered=True)(self.handle)
            case "keyed":
                worker.handler(name, retry=retry, ordered="key")(self.handle)
            case "thread":
                worker.handler(name, retry=retry)(self.handle_in_thread)
            case "chained":
                worker.handler(name, retry=retry)(self.handle_link)
            case "told":
                worker.handler(name, retry=retry)(self.handle_notice)
            case "chained in order":
                worker.handler(name, retry=retry, ordered=True)(self.handle_link)
            case "batch":
                worker.batch_handler(name, max_size=8, max_wait=0.1, retry=retry)(self.handle_batch)

    async def handle(self, job: Job) -> None:
        """Handle a job in a coroutine."""
        run = self._begin(job)
        takes, *_ = _payload(job)
        try:
            await asyncio.sleep(takes)
            self._fail(job)
        except BaseException as error:
            self._end(run, type(error).__name__)
            raise
        self._end(run, "done")

    async def handle_link(self, job: Job) -> None:
        """Handle a job that others follow: the last part of its payload."""
        run = self._begin(job)
        number = len(self._fleet.ledger.runs)  # of this run
        takes, *_ = _payload(job)
        following = job.payload[3] if isinstance(job.payload, list) else []
        try:
            for place, (topic, delay, payload, is_of_run) in enumerate(following):
                key = f"then-{number}-{place}" if is_of_run else None
                id = await job.then(topic, payload, delay=delay, key=key)
                self._fleet.ledger.asked.append(Asked(topic, id, run, is_of_run))
            await asyncio.sleep(takes)
            self._fail(job)
        except BaseException as error:
            self._end(run, type(error).__name__)
            raise
        self._end(run, "done")

    async def handle_notice(self, job: Job) -> None:
        """Handle a job that tells of a dead one."""
        run = self._begin(job)
        if isinstance(job.payload, dict):
            self._fleet.ledger.told.append((job.payload["topic"], job.payload["id"], job.id))
        self._end(run, "done")

    async def handle_and_answer(self, job: Job) -> Any:
        """Handle a job; its result is the last part of its payload."""
        await self.handle(job)
        return job.payload[-1] if isinstance(job.payload, list) else None

    def handle_in_thread(self, job: Job) -> None:
        """Handle a job in a thread."""
        run = self._begin(job)
        try:
            self._fail(job)
        except BaseException as error:
            self._end(run, type(error).__name__)
            raise
        self._end(run, "done")

    async def handle_batch(self, jobs: list[Job]) -> list[Any]:
        """Handle a batch; each job has its own outcome."""
        runs = [self._begin(job) for job in jobs]
        await asyncio.sleep(min(max(_payload(job)[0] for job in jobs), 0.3))
        outcomes: list[Any] = []
        for job, run in zip(jobs, runs, strict=True):
            try:
                self._fail(job)
            except Exception as error:  # noqa: BLE001  # the outcome of this job
                outcomes.append(error)
                self._end(run, type(error).__name__)
            else:
                outcomes.append(None)
                self._end(run, "done")
        return outcomes

    def _has_died(self, job: Job) -> bool:
        runs = self._fleet.ledger.runs
        return any(run.outcome == "Bury" and (run.topic, run.id) == (job.topic, job.id) for run in runs)

    def _begin(self, job: Job) -> Run:
        world, server = self._fleet.world, self._fleet.primary
        run = Run(
            self._group,
            job.topic,
            job.id,
            job.entry_id,
            job.attempt,
            self._process.name,
            world.now,
            server.clock_us(),
            job.due_ms,
            str(job.id),
        )
        self._fleet.ledger.runs.append(run)
        return run

    def _end(self, run: Run, outcome: str) -> None:
        run.ended, run.outcome = self._fleet.world.now, outcome

    def _fail(self, job: Job) -> None:
        _, fails, how = _payload(job)
        if job.attempt > fails:
            return
        match how:
            case "again":
                earlier = sum(run.id == job.id and run.topic == job.topic for run in self._fleet.ledger.runs)
                if earlier <= min(fails, 3):
                    raise RetryAfter(0.4)
            case "bury-once" if self._has_died(job):
                return
            case "audit" if self._group != "audit":
                return
            case "bury" | "bury-once":
                raise Bury("on purpose")
            case "base":
                raise Misbehaved("on purpose")
            case _:
                raise ValueError("on purpose")


def _payload(job: Job) -> tuple[float, int, str]:
    match job.payload:
        case [takes, fails, how, *_]:
            return float(takes), int(fails), str(how)
    return 0.0, 0, "error"
