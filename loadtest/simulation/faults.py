"""The faults. A new fault takes ten lines: how it begins, how it ends, whom it hurts and how long it explains lateness.

@fault("freeze-worker", weight=3, lasts=(1, 12))
def freeze_worker(stage, random, seconds):
    ...begin
    yield seconds
    ...end
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from loadtest.simulation import refusals
from loadtest.simulation.fleet import Fleet
from loadtest.simulation.ledger import Ledger, Trouble, Undone
from loadtest.simulation.network import SLOWEST_PACKET_S
from loadtest.simulation.parts import Part
from loadtest.simulation.plan import BLUNT, WEB, WITH_OUTBOX, Step
from loadtest.simulation.receiver import ADDRESS, NAME
from loadtest.simulation.server import Server
from loadtest.simulation.world import World

Steps = Iterator[float]
"""Yields seconds to wait before the next step."""
BACK_S = 3.0
"""Seconds in which everything catches up after the server is back."""
LEARNED_S = 21.0
"""Seconds for which a dead node may count as alive: three heartbeats of five seconds, counted from the look that
found its last one, and the next look."""
DEAD_S = 6.5
"""Seconds within which a dead worker's jobs run again."""
STOPPING_S = 4.0
"""Seconds that a worker may take to stop."""
STOPS_S = 12.0
"""Seconds after which a part that is stopped has ended, while the server answers."""
NOTICED_S = 12.0
"""Seconds within which a part notices that a connection is dead."""
DEAF_S = 22.0
"""The same of a connection that only listens: it asks when it has heard nothing for 10 s, and waits as long again."""
SLOW = 60.0
"""How many times longer packets take in the slowest network."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that a fault can change."""

    world: World
    fleet: Fleet
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    weight: float
    range: tuple[float, float]
    run: Callable[[Stage, Random, float], Steps]
    needs: str
    """The trait that a seed needs for it: "sentinel", "" or one of `plan.APART`."""

    def lasts(self, random: Random) -> float:
        """Draw how long it lasts."""
        return random.uniform(*self.range)


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, weight: float, lasts: tuple[float, float] = (0.0, 0.0), *, needs: str = ""
) -> Callable[[Callable[[Stage, Random, float], Steps]], Callable[[Stage, Random, float], Steps]]:
    """Register a fault."""

    def register(run: Callable[[Stage, Random, float], Steps]) -> Callable[[Stage, Random, float], Steps]:
        FAULTS[name] = Fault(name, weight, lasts, run, needs)
        return run

    return register


def begin(stage: Stage, step: Step) -> None:
    """Start a fault."""
    steps = FAULTS[step.kind].run(stage, Random(step.args["salt"]), step.args["seconds"])
    stage.world.story.tell("FAULT", str(step))

    def go_on() -> None:
        pause = next(steps, None)
        if pause is None:
            stage.world.story.tell("FAULT", f"#{step.number} {step.kind} is over")
        else:
            stage.world.after(pause, go_on)

    go_on()


# --- processes -----------------------------------------------------------------------------------------------------


def _kill(stage: Stage, part: Part) -> None:
    stage.world.story.tell("FAULT", f"{part.name} is killed")
    part.process.kill()
    part.actor = None
    stage.ledger.deaths.append((part.name, stage.world.now))


def _gone(stage: Stage, part: Part, seconds: float) -> Steps:
    _kill(stage, part)
    yield seconds
    stage.fleet.replace(part)


def _frozen(stage: Stage, part: Part, seconds: float) -> Steps:
    process = part.process
    stage.world.story.tell("FAULT", f"{part.name} is frozen")
    process.freeze()
    yield seconds
    process.wake()


@fault("kill-worker", 5, (0.5, 8))
def kill_worker(stage: Stage, random: Random, seconds: float) -> Steps:
    part = random.choice(stage.fleet.workers)
    stage.ledger.trouble("kill-worker", part.name, seconds, slack=DEAD_S)
    yield from _gone(stage, part, seconds)


@fault("freeze-worker", 5, (1, 14))
def freeze_worker(stage: Stage, random: Random, seconds: float) -> Steps:
    part = random.choice(stage.fleet.workers)
    stage.ledger.trouble("freeze-worker", part.name, seconds, slack=DEAD_S)
    yield from _frozen(stage, part, seconds)


@fault("restart-worker", 4, (0.2, 12))
def restart_worker(stage: Stage, random: Random, seconds: float) -> Steps:
    part = random.choice(stage.fleet.workers)
    yield from restart(stage, part, seconds, "restart-worker", DEAD_S)


def restart(stage: Stage, part: Part, seconds: float, kind: str, slack: float) -> Steps:
    """Stop a part, which must end soon, and start it again later."""
    process = part.process
    if not process.is_alive:
        return  # it was killed, and that fault starts it again
    stage.world.story.tell("FAULT", f"{part.name} is stopped")
    stage.ledger.trouble(kind, part.name, STOPPING_S + seconds, slack=slack)
    process.deliver(part.stop)
    began = stage.world.now
    while stage.world.now < began + STOPS_S + _silent_s(stage, began):
        yield 0.1
        if not process.is_alive:
            return
        if process.main is not None and process.main.done():
            stage.ledger.stops.append((part.name, stage.world.now))
            break
    else:
        if not process.is_frozen:
            stage.ledger.problems.append(f"{part.name} does not stop within {stage.world.now - began:.0f} s")
    process.kill()
    yield seconds
    stage.fleet.replace(part)


def _silent_s(stage: Stage, since: float) -> float:
    """Returns how many seconds since then the server has answered nothing: a part that stops waits for it."""
    silences = [one for one in stage.ledger.troubles if one.kind in ("stall", "server-away") and one.over > since]
    return sum(min(one.over, stage.world.now) - max(one.begins, since) for one in silences)


@fault("kill-node", 5, (0.5, 15))
def kill_node(stage: Stage, random: Random, seconds: float) -> Steps:
    part = random.choice(stage.fleet.nodes)
    _hurt_node(stage, "kill-node", part, seconds)
    yield from _gone(stage, part, seconds)


@fault("freeze-node", 5, (1, 14))
def freeze_node(stage: Stage, random: Random, seconds: float) -> Steps:
    part = random.choice(stage.fleet.nodes)
    _hurt_node(stage, "freeze-node", part, seconds)
    yield from _frozen(stage, part, seconds)


def _hurt_node(stage: Stage, kind: str, part: Part, seconds: float) -> None:
    """Record a hurt node. One node less delays nothing; two may be the leader and the standby of the same shard."""
    now = stage.world.now
    others = [one for one in stage.ledger.troubles if one.kind == "node" and one.ends > now and one.whom != part.name]
    was_hurt = bool(others) or stage.ledger.is_explained(now, now, but=("reshard", "pause"))
    stage.ledger.trouble(kind, part.name, 0.3)
    stage.ledger.troubles.append(Trouble("node", part.name, now + seconds, now + seconds, now + seconds + LEARNED_S))
    if was_hurt:
        stage.ledger.trouble("two-nodes", "", seconds, slack=LEARNED_S)


@fault("restart-node", 3, (0.2, 3))
def restart_node(stage: Stage, random: Random, seconds: float) -> Steps:
    yield from restart(stage, random.choice(stage.fleet.nodes), seconds, "restart-node", 0.0)


@fault("node-clock", 2, (5, 30))
def node_clock(stage: Stage, random: Random, seconds: float) -> Steps:
    """The wall clock of a part is wrong for a while, which must not matter."""
    process = random.choice(list(stage.fleet.parts.values())).process
    process.wall_offset += random.choice((-3_600, -30, 30, 3_600, 86_400))
    stage.world.story.tell("FAULT", f"{process.name}: its clock is {process.wall_offset:+.0f} s off")
    yield seconds
    process.wall_offset = 0.0


@fault("kill-web", 6, (0.5, 6), needs="web")
def kill_web(stage: Stage, random: Random, seconds: float) -> Steps:
    part = stage.fleet.parts[WEB]
    stage.ledger.trouble("kill-web", part.name, seconds, slack=DEAD_S)
    yield from _gone(stage, part, seconds)


@fault("kill-blunt", 5, (0.5, 6), needs="blocking")
def kill_blunt(stage: Stage, random: Random, seconds: float) -> Steps:
    """The producer with the blocking client dies; another continues with its outbox."""
    yield from _gone(stage, stage.fleet.parts[BLUNT], seconds)


@fault("kill-producer", 1, (0.3, 8), needs="deaths")
def kill_producer(stage: Stage, random: Random, seconds: float) -> Steps:
    """A producer with an outbox dies; another continues with its outbox."""
    yield from _gone(stage, stage.fleet.producers[random.choice(WITH_OUTBOX)], seconds)


@fault("kill-keeping", 1, (0.5, 4), needs="deaths")
def kill_keeping(stage: Stage, random: Random, seconds: float) -> Steps:
    """The server goes away, and the producers that keep their jobs meanwhile die, at once or when it is back."""
    until_killed, until_back = seconds * random.random(), random.choice((0.0, 0.05, seconds))
    stage.ledger.trouble("server-away", "", until_killed + until_back, slack=BACK_S)
    stage.fleet.primary.stop()
    yield until_killed
    for number in WITH_OUTBOX:
        _kill(stage, stage.fleet.producers[number])
    yield until_back
    stage.fleet.primary.start()
    yield random.choice((0.0, 0.02, 1.0))
    for number in WITH_OUTBOX:
        stage.fleet.replace(stage.fleet.producers[number])


@fault("restart-web", 4, (0.2, 3), needs="web")
def restart_web(stage: Stage, random: Random, seconds: float) -> Steps:
    yield from restart(stage, stage.fleet.parts[WEB], seconds, "restart-web", DEAD_S)


@fault("freeze-web", 4, (1, 10), needs="web")
def freeze_web(stage: Stage, random: Random, seconds: float) -> Steps:
    process = stage.fleet.parts[WEB].process
    process.freeze()
    stage.ledger.trouble("freeze-web", process.name, seconds, slack=DEAD_S)
    yield seconds
    process.wake()


@fault("receiver-away", 6, (1, 12), needs="web")
def receiver_away(stage: Stage, random: Random, seconds: float) -> Steps:
    """The receiver of callbacks resets its connections and accepts none; nothing else may suffer."""
    receiver = stage.fleet.receiver
    receiver.is_away = True
    for link in stage.fleet.network.links_of(address=ADDRESS):
        link.reset()
    stage.ledger.trouble("receiver-away", NAME, seconds, slack=BACK_S)
    yield seconds
    receiver.is_away = False


# --- the network ---------------------------------------------------------------------------------------------------


@fault("resets", 5, (0, 3))
def resets(stage: Stage, random: Random, seconds: float) -> Steps:
    """Some connections are reset; some of them lose replies first."""
    links = [link for link in stage.fleet.network.links_of() if random.random() < 0.3]
    stage.ledger.trouble("resets", "", seconds, slack=1.5)
    for link in links:
        link.is_deaf = random.random() < 0.6
    yield min(seconds, random.choice((0.0, 0.02, 0.3)))
    for link in links:
        link.reset()


@fault("lost-replies", 4, (2, 10))
def lost_replies(stage: Stage, random: Random, seconds: float) -> Steps:
    """Now and then a connection breaks after the server has run a command, often one that waits for jobs."""
    stage.ledger.trouble("lost-replies", "", seconds, slack=1.5)
    until = stage.world.now + seconds
    while stage.world.now < until:
        links = stage.fleet.network.links_of()
        waiting = [one.link for one in stage.fleet.primary.sessions if one.blocked is not None]
        if links:
            link = random.choice(waiting if waiting and random.random() < 0.6 else links)
            link.is_deaf = True
            yield random.uniform(0.02, 0.4)
            link.reset()
        yield random.uniform(0.05, 0.5)


def _cut_off(stage: Stage, kind: str, part: Part, seconds: float, slack: float) -> None:
    """Record a part that cannot talk to the server: a node is replaced by its standby, as if it were frozen."""
    if part in stage.fleet.nodes:
        _hurt_node(stage, kind, part, seconds)
    else:
        stage.ledger.trouble(kind, part.name, seconds, slack=slack)


@fault("half-open", 3, (0, 0))
def half_open(stage: Stage, random: Random, seconds: float) -> Steps:
    """The connections of a part drop all data, unnoticed by both ends."""
    part = random.choice(list(stage.fleet.parts.values()))
    stage.world.story.tell("FAULT", f"{part.name}: its connections go half-open")
    for link in stage.fleet.network.links_of(part.process.name):
        link.go_half_open()
    _cut_off(stage, "half-open", part, DEAF_S, DEAD_S + BACK_S)
    yield 0.0


@fault("partition", 4, (1, 15))
def partition(stage: Stage, random: Random, seconds: float) -> Steps:
    """A part is cut off from the server for a while."""
    part, address = random.choice(list(stage.fleet.parts.values())), stage.fleet.primary.address
    stage.world.story.tell("FAULT", f"{part.name} is cut off")
    stage.fleet.network.part(part.name, address)
    _cut_off(stage, "partition", part, seconds, NOTICED_S + DEAD_S)
    yield seconds
    stage.fleet.network.join(part.name, address)


@fault("slow-network", 2, (2, 10))
def slow_network(stage: Stage, random: Random, seconds: float) -> Steps:
    stage.fleet.network.slowness = slowness = random.choice((5.0, 20.0, SLOW))
    tell_slow(stage, seconds, slowness)
    yield seconds
    stage.fleet.network.slowness = 1.0


def tell_slow(stage: Stage, seconds: float, slowness: float) -> None:
    """Record that packets take so many times longer."""
    stage.ledger.trouble("slow-network", "", seconds, slack=SLOWEST_PACKET_S * slowness + 0.3)


# --- the server ----------------------------------------------------------------------------------------------------


@fault("server-restart", 4, (0.3, 8))
def serverrestart(stage: Stage, random: Random, seconds: float) -> Steps:
    yield from _down(stage, random, seconds, None)


@fault("server-crash", 3, (0.3, 6))
def server_crash(stage: Stage, random: Random, seconds: float) -> Steps:
    """The server comes back without the writes that were not on its disk yet."""
    yield from _down(stage, random, seconds, random.uniform(0.0, 1.0))


@fault("aof-cut", 8, (0.3, 6), needs="power")
def aof_cut(stage: Stage, random: Random, seconds: float) -> Steps:
    """The machine loses power. The end of the AOF is missing, from any write of the last two seconds on."""
    server = stage.fleet.primary
    if server.is_up:
        first = server.known_by_replica(2.0)
        cut = random.randint(first, len(server.store.log))
        begins = server.log_times[cut] if cut < len(server.log_times) else stage.world.now
        stage.ledger.trouble("server-away", "", seconds, slack=BACK_S + DEAD_S)
        server.stop(cut=cut)
        stage.ledger.took_back(begins, len(server.store.log), is_power_loss=True)
        yield seconds
        server.start()


@fault("power-lost", 8, (0.5, 6), needs="power")
def power_lost(stage: Stage, random: Random, seconds: float) -> Steps:
    """Primary and replica lose power together. Either may be the primary afterwards, with what its disk had got."""
    fleet, old = stage.fleet, stage.fleet.primary
    if len(fleet.servers) == 1 or not old.is_up:
        yield from aof_cut(stage, random, seconds)
        return
    new, lost_s = next(one for one in fleet.servers if one is not old), random.uniform(0.0, 1.0)
    is_replaced = random.random() < 0.5
    lost_s += sum(old.replica_lag[:1]) if is_replaced else 0.0
    stage.ledger.trouble("fail-over", "", seconds + 4.0, slack=10.0 + BACK_S + DEAD_S)
    new.stop()
    old.stop(lost_s)
    stage.ledger.took_back(stage.world.now - lost_s, len(old.store.log), is_power_loss=True)
    yield seconds
    if is_replaced:
        new.become(old, len(old.store.log))
        _take_over(stage, new, old)
        old.refusals.is_replica = True
        new.replica_lag, old.replica_lag = old.replica_lag, []
    old.start()
    new.start()


def _take_over(stage: Stage, new: Server, old: Server) -> None:
    """Make a server the primary."""
    new.refusals.is_replica = False
    stage.fleet.primary = new
    stage.ledger.watch(new)
    stage.world.story.tell("FAULT", f"{new.address} is the primary")
    old.watchers.clear()


def _down(stage: Stage, random: Random, seconds: float, lost_s: float | None) -> Steps:
    server = stage.fleet.primary
    loading = random.choice((0.0, 0.0, 2.0))
    stage.ledger.trouble("server-away", "", seconds + loading, slack=BACK_S + (DEAD_S if lost_s is not None else 0))
    if lost_s is not None:
        begins = stage.world.now - lost_s
        server.stop(lost_s)
        stage.ledger.took_back(begins, len(server.store.log), is_power_loss=True)
    else:
        server.stop()
    yield seconds
    server.start(loading)


@fault("scripts-flushed", 1)
def scripts_flushed(stage: Stage, random: Random, seconds: float) -> Steps:
    stage.fleet.primary.scripts.forget()
    yield 0.0


@fault("stall", 3, (0.3, 14))
def stall(stage: Stage, random: Random, seconds: float) -> Steps:
    """The server does nothing for a while, and keeps its connections."""
    stage.ledger.trouble("stall", "", seconds, slack=BACK_S + (DEAD_S if seconds > 3 else 0))
    stage.fleet.primary.stall(seconds)
    yield 0.0


@fault("full", 3, (2, 12))
def full(stage: Stage, random: Random, seconds: float) -> Steps:
    stage.fleet.primary.refusals.is_full = True
    stage.ledger.trouble("full", "", seconds, slack=BACK_S)
    yield seconds
    stage.fleet.primary.refusals.is_full = False


@fault("writes-refused", 3, (1, 10))
def writes_refused(stage: Stage, random: Random, seconds: float) -> Steps:
    """The server refuses writes: its disk is full, replicas are missing, or it was made a replica by mistake."""
    server = stage.fleet.primary
    server.refusals.writes = random.choice((refusals.MISCONF, refusals.NOREPLICAS, refusals.READONLY))
    stage.world.story.tell("FAULT", f"writes are refused: {server.refusals.writes[:40]}")
    stage.ledger.trouble("writes-refused", "", seconds, slack=BACK_S + DEAD_S)
    yield seconds
    server.refusals.writes = ""


@fault("busy", 2, (0.5, 8))
def busy(stage: Stage, random: Random, seconds: float) -> Steps:
    server = stage.fleet.primary
    server.refusals.busy_until = stage.world.now + seconds
    stage.ledger.trouble("busy", "", seconds, slack=BACK_S + (DEAD_S if seconds > 3 else 0))
    yield seconds


@fault("no-channels", 2, (3, 20))
def no_channels(stage: Stage, random: Random, seconds: float) -> Steps:
    """The user has no right to listen to channels for a while; connections that listen are reset."""
    server = stage.fleet.primary
    server.refusals.forbidden[b"SUBSCRIBE"] = None
    for session in list(server.sessions):
        if session.channels:
            session.link.reset()
    stage.ledger.trouble("no-channels", "", seconds, slack=BACK_S + DEAD_S)
    yield seconds
    server.refusals.forbidden.clear()


@fault("password", 2, (2, 10))
def password(stage: Stage, random: Random, seconds: float) -> Steps:
    """New connections are refused for a while, and some existing ones break."""
    server = stage.fleet.primary
    server.refusals.asks_password = True
    for link in stage.fleet.network.links_of():
        if random.random() < 0.4:
            link.reset()
    stage.ledger.trouble("password", "", seconds, slack=10.0 + DEAD_S)
    yield seconds
    server.refusals.asks_password = False
    for session in list(server.sessions):
        session.is_trusted = True


@fault("clock-forward", 3)
def clock_forward(stage: Stage, random: Random, seconds: float) -> Steps:
    yield from _step_clock(stage, random.choice((3.0, 10.0, 60.0, 3_600.0)))


@fault("clock-back", 3, (30, 40))
def clock_back(stage: Stage, random: Random, seconds: float) -> Steps:
    """Set the clock back, so that jobs wait longer; a step of an hour is corrected after a while."""
    by = random.choice((2.0, 10.0, 60.0, 3_600.0))
    yield from _step_clock(stage, -by)
    if by > 60:
        yield seconds
        yield from _step_clock(stage, by)


def _step_clock(stage: Stage, by: float) -> Steps:
    stage.world.story.tell("FAULT", f"the server's clock is set {by:+.0f} s")
    for server in stage.fleet.servers:
        server.step_clock(by)
    stage.ledger.clock_changed(stage.fleet.primary)
    stage.ledger.trouble("clock", "", 0.0, slack=12.0 if by > 0 else 32.0)
    yield 0.0


@fault("drift", 1, (10, 40))
def drift(stage: Stage, random: Random, seconds: float) -> Steps:
    """The server's clock runs slightly too fast or too slow."""
    rate = 1.0 + random.choice((-0.002, -0.0005, 0.0005, 0.002))
    for server in stage.fleet.servers:
        server.drift(rate)
    stage.ledger.clock_changed(stage.fleet.primary)
    yield seconds
    for server in stage.fleet.servers:
        server.drift(1.0)
    stage.ledger.clock_changed(stage.fleet.primary)


@fault("fail-over", 8, (0.5, 6), needs="sentinel")
def fail_over(stage: Stage, random: Random, seconds: float) -> Steps:
    """The replica takes the primary's place, with the writes that it has; the old primary may live on for a while."""
    fleet = stage.fleet
    old = fleet.primary
    new = next(server for server in fleet.servers if server is not old)
    if not old.is_up:
        return
    length = old.known_by_replica(old.replica_lag[0] if old.replica_lag else 0.0)
    cut_at = stage.world.now
    old.replica_lag = []
    stage.ledger.trouble("fail-over", "", seconds + 4.0, slack=10.0 + BACK_S + DEAD_S)
    is_planned = random.random() < 0.4
    if not is_planned:
        if random.random() < 0.6:
            old.stop()
        yield seconds  # until the sentinels have agreed
    else:
        length = len(old.store.log)
        cut_at = stage.world.now
    begins = old.log_times[length] if length < len(old.log_times) else cut_at
    new.become(old, length)
    stage.ledger.took_back(begins, length)
    _take_over(stage, new, old)
    yield random.choice((0.0, 1.0, 4.0))
    if not old.is_up:
        old.start()
    old.refusals.is_replica = True
    for session in list(old.sessions):
        session.link.reset()
    stage.ledger.undone.append(Undone(begins, stage.world.now + 1.0))  # the former primary still answered
    new.replica_lag = [random.choice((0.001, 0.02, 0.3))]
    yield 0.0


# --- faults that stay ------------------------------------------------------------------------------------------------


@fault("lasting", 0)
def lasting(stage: Stage, random: Random, seconds: float) -> Steps:
    """Every part but one node, one worker of each group and some producers has a fault of its own that stays.

    It stays until every job is due; then all is healed, so that the fleet can be looked at when it is at rest.
    """
    fleet = stage.fleet
    healthy = {random.choice(fleet.nodes).name, "producer-1", random.choice(["producer-0", "producer-4"])}
    healthy |= {random.choice(["worker-0", "worker-1"]), "worker-3"}
    hurt = [part for part in fleet.parts.values() if part.name not in healthy]
    for part in hurt:
        how = random.choice(LASTING_CLOCKED if part in (*fleet.nodes, *fleet.workers) else LASTING)
        if how == "does not hear" and part.name in KEEPING:  # the answers to its calls are forgotten before
            how = "is not heard"
        stage.world.story.tell("FAULT", f"{part.name}: {how}")
        _hurt_for_good(stage, part, how)
        stage.ledger.trouble("lasting", part.name, seconds, slack=LEARNED_S)
    lags, fleet.primary.replica_lag = fleet.primary.replica_lag, [30.0] * len(fleet.primary.replica_lag)
    stage.ledger.trouble("lasting", "", LEARNED_S)
    yield seconds
    fleet.primary.replica_lag = lags
    fleet.network.unheard.clear()
    fleet.network.unhearing.clear()
    fleet.network.slow.clear()
    for part in hurt:
        part.process.slowness, part.process.disk_is_full = 1.0, False
        part.process.drift(1.0)
    stage.ledger.trouble("lasting", "", LEARNED_S)


LASTING = ("is not heard", "does not hear", "has a slow network", "has a slow processor", "has a full disk")
KEEPING = (WEB, BLUNT, *(f"producer-{number}" for number in WITH_OUTBOX))
"""Parts with an outbox, which repeat a call when they hear again; the server knows its answer for a minute."""
LASTING_CLOCKED = (*LASTING[:-1], "has a fast clock", "has a slow clock")


def _hurt_for_good(stage: Stage, part: Part, how: str) -> None:
    network, process = stage.fleet.network, part.process
    match how:
        case "is not heard":
            network.unheard.add(part.name)
        case "does not hear":
            network.unhearing.add(part.name)
        case "has a slow network":
            network.slow[part.name] = SLOW
            stage.ledger.slow.add(part.name)
        case "has a slow processor":
            process.slowness = 50.0
        case "has a full disk":
            process.disk_is_full = True
        case _:
            process.drift(1.1 if "fast" in how else 0.9)


# --- the machine and other programs ----------------------------------------------------------------------------------


@fault("no-threads", 1, (1, 8))
def no_threads(stage: Stage, random: Random, seconds: float) -> Steps:
    """A worker can start no thread for a while."""
    process = random.choice(stage.fleet.workers).process
    process.has_no_threads = True
    stage.ledger.trouble("no-threads", process.name, seconds, slack=DEAD_S)
    yield seconds
    process.has_no_threads = False


@fault("disk-full", 1, (2, 10))
def disk_full(stage: Stage, random: Random, seconds: float) -> Steps:
    """The disk of the outboxes is full, while the server is away for some of the time."""
    processes = [stage.fleet.producers[number].process for number in WITH_OUTBOX]
    stage.ledger.trouble("disk-full", "", seconds * 2, slack=BACK_S)
    stage.fleet.primary.stop()
    yield seconds / 2
    for process in processes:
        process.disk_is_full = True
    stage.fleet.primary.start()
    yield seconds
    for process in processes:
        process.disk_is_full = False


@fault("foreign-settings", 1)
def foreign_settings(stage: Stage, random: Random, seconds: float) -> Steps:
    """Another release stores settings that cannot be read."""
    _write(
        stage, b"HSET", b"wheelq:topics", b"foreign", random.choice((b"\xc1", b"not msgpack", b"\x81\xa6shards\xa1x"))
    )
    _write(stage, b"HINCRBY", b"wheelq:topics", b":version", b"1")
    yield 0.0


@fault("foreign-record", 1)
def foreign_record(stage: Stage, random: Random, seconds: float) -> Steps:
    """Another program writes a job that no release can read."""
    now_ms = stage.fleet.primary.clock_us() // 1000
    _write(stage, b"HSET", b"wheelq:{plain:0}:jobs", b"foreign", random.choice((b"\x01", b"", b"\x09junk")))
    _write(stage, b"ZADD", b"wheelq:{plain:0}:delayed", b"%d" % (now_ms + random.choice((500, 5_000))), b"foreign")
    stage.ledger.unannounced.add(("plain", "foreign"))
    yield 0.0


def _write(stage: Stage, *words: bytes) -> None:
    server = stage.fleet.primary
    server.store.set_time(server.clock_us())
    server.write(words)
