"""Defects planted on purpose, to prove that the simulator can find defects.

Some are defects of torture (`loadtest.torture.planted`). The others replace lines of Lua or Python; many of them put
back a kind of defect that was mended before (its row is in brackets; see README.md). If the code has changed and a
plant no longer fits, it fails loudly: then update or replace it.

`first` and `within` name the seeds that find a plant: at least one of `within` seeds, starting with `first`.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from loadtest.torture import planted
from wheelq.protocol import call
from wheelq.protocol.scripts import script, script_names


@dataclass(frozen=True, slots=True)
class Plant:
    """One defect."""

    what: str
    found: str
    """The pattern of the problem that the simulator must report."""
    lua: Mapping[str, str] = field(default_factory=dict)
    """Old text → new text, in every script that contains the old text."""
    python: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By function, such as `wheelq.worker.loop:Worker.run`: its old text, and the new text."""
    torture: str = ""
    """The name of the torture defect."""
    first: int = 1
    within: int = 3
    needs: str = ""
    """The kind of a step that a seed needs to show it."""
    by_scenario: bool = False
    """Its interleaving is too rare for random seeds; a scenario in `tests/simulation/test_rare.py` finds it."""


_DUE = "math.ceil(tonumber(time[2]) / 1000) + ms"
_CANCELLED = "if redis.call('ZREM', delayed, id) == 1 then\n    redis.call('HDEL', jobs, id)"
_CANCELLED_DUE = "if #ids > 0 then\n  redis.call('ZREM', delayed, unpack(ids))\n  redis.call('HDEL', jobs, unpack(ids))"

PLANTS: Mapping[str, Plant] = {
    "no-removal": Plant("promotion leaves the job where it waits", "doubled|left", torture="no-removal"),
    "early-sweep": Plant("a sweep takes jobs that are due within half a second", "early", torture="early-sweep"),
    "removed-first": Plant("promotion removes first, and one XADD in ten fails", "lost", torture="removed-first"),
    "ack-first": Plant("a worker acknowledges before it runs the handler", "lost", torture="ack-first"),
    "short-delay": Plant(
        "a delay is 20 ms shorter than asked for", "early.*promised", {f"{_DUE}, fraction": f"{_DUE} - 20, fraction"}
    ),
    "retry-lost": Plant(
        "a retry is recorded, but does not wait anywhere", "lost|left", {"redis.call('ZADD', delayed, due, member)": ""}
    ),
    "cancel-lies": Plant(
        "a job that is cancelled runs", "untrue", {_CANCELLED: "if redis.call('ZSCORE', delayed, id) then"}
    ),
    "reschedule-lies": Plant(
        "a new due time is accepted, but not stored",
        "early",
        {"redis.call('ZADD', delayed, score_of(due, unheld(tonumber(score)) - stands), id)": ""},
    ),
    "remembers-all": Plant(
        "finished jobs are not forgotten", "left", {"if #done > 0 then redis.call('HDEL', jobs, unpack(done)) end": ""}
    ),
    "no-hints": Plant(
        "no leader hears of a job that is due soon",
        "late",
        {"return type(redis.pcall('PUBLISH', channel, message)) == 'number'": "return true"},
    ),
    "no-trim": Plant(
        "acknowledged entries stay in the stream",
        "left.*entries",
        {"return redis.call('XTRIM', ready, 'MINID', least), false end": "return 0, false end"},
    ),
    "shards-lie": Plant(
        "a new number of shards is confirmed, but not stored",
        "shards: .* asked for others",
        python={
            "wheelq.producer.topics:Topics.change": (
                "after = change(before)",
                "after = change(before) if change(before).shards == before.shards else before",
            )
        },
        first=2,
        within=2,
        needs="set-shards",
    ),
    "short-record": Plant(
        "a record of one byte blocks every sweep (A17)",
        "late|lost",
        {"string.byte(record, 8) or 0": "string.byte(record, 8)"},
        first=140,
        within=1,
        needs="foreign-record",
    ),
    "early-retry": Plant(
        "a retry in order starts by the worker's estimate of the clock (A23)",
        "early: order",
        python={
            "wheelq.worker.ordered.deliveries:OrderedDeliveries.until_due": (
                "while self._is_put_off(delivery) and",
                "while False and",
            )
        },
        first=4,
    ),
    "unsettled-error": Plant(
        "a BaseException leaves its job running forever (A11)",
        "left|lost|died",
        python={
            "wheelq.worker.outcome:as_failure": (
                "if isinstance(error, GeneratorExit) and _current_task() is not task:",
                "if True:",
            )
        },
        first=301,
    ),
    "kept-for-ever": Plant(
        "finished jobs stay after the topic stops keeping them (A12)",
        "left.*finished",
        python={
            "wheelq.scheduler.leader:Leader.act": (
                "if has_kept and now_ms >= self._tidy_at:",
                "if now_ms >= self._tidy_at and (self._parts.topic.retention_ms or self._parts.topic.keep_done_ms):",
            )
        },
        first=302,
        needs="configure",
    ),
    "deaf-worker-ends": Plant(
        "a worker that may not listen ends (B1)",
        "died",
        python={"wheelq.worker.upkeep.hints:HintListener.run": ("await loop.run(listen)", "await listen()")},
        first=310,
        within=1,
        needs="no-channels",
    ),
    "one-bad-topic": Plant(
        "settings that cannot be read end every node (A5)",
        "late|lost|died",
        python={
            "wheelq.protocol.calls.registry:_each": (
                "topics.unreadable[name] = error.problem",
                "raise ValueError(error.problem) from error",
            )
        },
        first=460,
        within=1,
        needs="foreign-settings",
    ),
    "group-stays": Plant(
        "a group that is removed keeps its jobs (B2)",
        "left",
        python={
            "wheelq.aio.client:AsyncClient.remove_group": (
                "return await self._change(lambda confirming: self._groups.remove(topic, group, force, confirming))",
                "return True",
            )
        },
        first=309,
        needs="group",
    ),
    "order-grows": Plant(
        "the next runs of ordered jobs stay after the jobs have ended (A13)",
        "left.*next runs",
        python={"wheelq.worker.ordered.deliveries:OrderedDeliveries.end": ("self.finished.append(entry_id)", "pass")},
    ),
    "dead-worker-lives": Plant(
        "a dead worker's jobs are not taken over (A8)",
        "left|lost|abandoned|late",
        python={
            "wheelq.worker.delivery.peers:Peers.standing": (
                "is_silent = self._watch.silent(consumer) >= self._abandoned - NEARLY",
                "is_silent = False",
            )
        },
        first=45,
        within=1,
        needs="kill-worker",
    ),
    "place-lost": Plant(
        "a job for which the machine has no thread fails, and its place is lost (A19)",
        "left|lost|late|slow",
        python={
            "wheelq.worker.handlers.threads:Threads.run": ("self._places.release()\n        raise", "raise"),
            "wheelq.worker.handlers.threads:Threads._in_time": ("return await Loop(", "return begin()  # Loop("),
        },
        first=418,
        within=1,
        needs="no-threads",
    ),
    "standby-sleeps": Plant(
        "a standby sleeps beyond the horizon of a leader that is frozen (A3)",
        "late",
        python={
            "wheelq.scheduler.standby:StandbyRules._rest_until": (
                "instants.append(now_ms + UNLED_MS if look.horizon_ms is None else look.horizon_ms + self._hedge_ms)",
                "instants += [now_ms + UNLED_MS] if look.horizon_ms is None else []",
            )
        },
        first=163,
        within=1,
        needs="freeze-node",
    ),
    "claimed-by-idle": Plant(
        "a living worker's jobs are taken over when they look idle by a clock that was set forward (A22)",
        "repeated",
        python={
            "wheelq.worker.delivery.peers:Peers.standing": (
                "return Standing.GONE if has_left or is_silent else Standing.LIVING",
                "return Standing.GONE if has_left or is_silent else Standing.UNKNOWN",
            ),
            "wheelq.worker.delivery.recovery:Recovery._look_if_due": (
                "now + LOOK_EVERY",
                "now + self._me.settings.renew_ms / 1000",
            ),
        },
        first=18,
        within=1,
        needs="clock-forward",
    ),
    "outbox-by-own-clock": Plant(
        "jobs in an outbox are due by the clock of their producer (A20)",
        "early.*promised|misdated",
        python={
            "wheelq.producer.outbox.store:Outbox._asked_ms": (
                "asked_ms = asked.server_ms(self._server)",
                "return asked.at_ms, NO_CALL",
            )
        },
        first=481,
        within=1,
        needs="clock-forward",
    ),
    "nodes-by-old-clock": Plant(
        "a node reads the clock once, and judges by it whether other nodes live (A21)",
        "assigned|circles",
        python={
            "wheelq.scheduler.membership:Membership.beat": (
                "self._server.asking(self._transport.send(heartbeats.beat_node(self._keys, self._node, report)))",
                "self._transport.send(heartbeats.beat_node(self._keys, self._node, report))",
            ),
            "wheelq.scheduler.membership:Membership._read_nodes": (
                "for node in words if self._lives(node)",
                "for node in words if words[node] > self._server.now_ms() - 1000 * self._silence",
            ),
        },
        first=7,
        within=1,
        needs="clock-forward",
    ),
    "clock-of-a-duplicate": Plant(
        "an outbox learns the server's clock from the due time of an existing job (A1)",
        "misdated|early.*promised",
        python={
            "wheelq.producer.scheduling:Scheduling._prepared": (
                "self._server_clock.observe(sent_at, answer.server_us)",
                "there = answer.receipts[0]; "
                "self._server_clock.observe(sent_at, answer.server_us if there.created else there.due_ms * 1000)",
            )
        },
        first=111,
        within=1,
        needs="duplicate",
    ),
    "lease-to-two": Plant(
        "a lease over HTTP ends three seconds before its time",
        "leased: ",
        {
            "now_ms() - ended_ms)": "now_ms() - ended_ms - 3000)",
            "math.floor(later[2] / 1000) - ended_ms)": "math.floor(later[2] / 1000) - ended_ms - 3000)",
        },
        first=4,
        within=1,
        needs="http-schedule",
    ),
    "cancel-due-lies": Plant(
        "jobs that are cancelled by their due time run",
        "untrue",
        {_CANCELLED_DUE: "if #ids > 0 then"},
        first=57,
        within=1,
        needs="due-range",
    ),
    "repeated-while-draining": Plant(
        "a call that is repeated while its topic drains runs its job twice (A14)",
        "",
        {
            "local answer = is_tagged and answer_to(tag, even, odd)": "local answer",
            "if not (stored or live_due or is_second) and terms == '' then": "if not stored and terms == '' then",
        },
        by_scenario=True,
    ),
    "callback-forgets": Plant(
        "a callback that its receiver refused counts as delivered",
        "lost: called",
        python={
            "wheelq.callbacks.caller:CallbackCaller._again": (
                'raise RetryAfter(max(pause_ms / 1000, after or 0.0), f"{place.shown} {why}", counts=True)',
                "return",
            )
        },
        first=4,
        within=1,
        needs="http-schedule",
    ),
    "lost-for-long": Plant(
        "a delivery whose reply was lost is looked for after 45 s instead of at once",
        "slow",
        python={"wheelq.worker.lanes.reader:Reader.run": ("self._doubt()", "self._backlog.doubt()")},
        first=74,
        within=1,
        needs="lost-replies",
    ),
    "cancel-before-parcel": Plant(
        "a job that waits in an outbox is cancelled on the server only, and is delivered later",
        "untrue",
        python={
            "wheelq.producer.fallback:Fallback.about": (
                "yield Do(partial(self._outbox.deliver_first, topic, id))",
                "if not id:\n        yield Do(partial(self._outbox.deliver_first, topic, id))",
            )
        },
        by_scenario=True,
    ),
    "no-second-look": Plant(
        "a worker claims deliveries without a second look at the peer that held them",
        "taken",
        python={
            "wheelq.worker.delivery.recovery:Recovery._claim_of_others": (
                "[name for name in found.gone if standing(name) is Standing.GONE]",
                "list(found.gone)",
            )
        },
        by_scenario=True,
    ),
    "no-outgoing": Plant(
        "one acknowledgement in ten leaves nothing behind, as if its worker had died before a second step",
        "followed: .* was never made",
        {
            "local is_mine = is_safe or owns(": (
                "if now % 10 == 0 and owns(ready, group, consumer, entry) then wanted, has_followers = {}, false end\n"
                "  local is_mine = is_safe or owns("
            )
        },
        within=5,
        needs="chain",
    ),
    "not-removed": Plant(
        "followers that have arrived are not removed",
        "left: .*followers are left|not everything is done",
        python={"wheelq.following.carrier:Carrier._remove": ("yield from ask(calls.remove(source, some))", "0")},
        within=5,
        needs="chain",
    ),
    "removed-early": Plant(
        "followers are removed before they are carried",
        "followed: .* was never made",
        python={
            "wheelq.following.carrier:Carrier._delivery": (
                "failure = yield from self._send(sending)",
                "yield from self._remove(batch); failure = yield from self._send(sending)",
            )
        },
        within=10,
        needs="chain",
    ),
    "silent-death": Plant(
        "one burial in five leaves nothing that tells of it",
        "told: .* than it was told of",
        {"if ARGV[NOTICE] then\n  local size": "if ARGV[NOTICE] and now_ms() % 5 > 0 then\n  local size"},
        within=12,
        needs="chain",
    ),
    "counted-twice": Plant(
        "members count twice if the call is repeated that schedules them, or that reports them",
        "bundled: .* (its producer knows of|left, and its follower was made 0 times)",
        {
            "if answer then only_on_primary(jobs); return": (
                "if answer and bundles then\n"
                "    local totals, state = totals_in(bundles, bundle_for(bundles, ARGV[FIRST + 2]) or '')\n"
                "    if totals then\n"
                "      totals[1] = totals[1] + #ids\n"
                "      put_totals(bundles, bundle_of(ARGV[FIRST + 2]), totals, state)\n"
                "    end\n"
                "  end\n"
                "  if answer then only_on_primary(jobs); return"
            ),
            "then home[at] = report end": (
                "then home[at] = report\n"
                "  elseif at and numbers_in(report)[5] == numbers_in(home[at])[5] then\n"
                "    local twice = {}\n"
                "    for k, number in ipairs(numbers_in(report)) do\n"
                "      twice[k] = string.format('%.0f', k < 5 and 2 * number or number)\n"
                "    end\n"
                "    home[at] = table.concat(twice, ' ')\n"
                "  end"
            ),
        },
        first=21,
        within=1,
        needs="bundle",
    ),
    "forgets-cancelled": Plant(
        "a bundle forgets a member that is cancelled while it waits",
        "bundled: .* left, and its follower was made 0 times|uncounted: ",
        {"if bundle_of(record) then count_ends(bundles, outgoing, near, {{life_of(record), 'cancelled'}}) end": ""},
        within=12,
        needs="bundle",
    ),
    "superseded-follows": Plant(
        "a run leaves its followers although another worker has taken its delivery over",
        "followed: ",
        {"is_mine = is_safe or owns(ready, group, consumer, entry, nil, may_be_taken and id)": "is_mine = true"},
        by_scenario=True,
    ),
    "permit-buried": Plant(
        "a job that is buried keeps its permit",
        "permits: ",
        {
            "redis.call('XACK', ready, group, entry)\ngive_back(ready, group, {entry})\nif bundles": (
                "redis.call('XACK', ready, group, entry)\nif bundles"
            )
        },
        within=15,
        needs="share",
    ),
    "permit-of-one-group": Plant(
        "a job gives its permit back when one group has ended it, although another still runs it",
        "permits: |greedy: ",
        {"is_open = is_open or is_unfinished(ready, other.name, other.read_to, entry)": "is_open = is_open"},
        within=10,
        needs="share",
    ),
    "rate-starts-afresh": Plant(
        "a rate per key starts afresh with a new leader",
        "hasty: ",
        {
            "  if look.from then\n    if limits[1] == 0": (
                "  if look.from then\n"
                "    if look.from == '' then redis.call('UNLINK', paces) end\n"
                "    if limits[1] == 0"
            )
        },
        within=10,
        needs="share",
    ),
    "held-lost-in-a-reshard": Plant(
        "a change of the number of shards loses the jobs that are held back",
        "lost|left|untrue",
        {
            "redis.call('SET', fence, ARGV[2])": (
                "redis.call('SET', fence, ARGV[2])\n  redis.call('ZREMRANGEBYSCORE', delayed, HELD, '+inf')"
            )
        },
        within=20,
        needs="share-reshard",
    ),
    "bound-forgotten": Plant(
        "a debounced job is put off beyond its bound",
        "put-off: .* beyond the bound",
        {"math.min(due, made + wait_of(sent))": "due"},
        within=6,
        needs="debounce",
    ),
    "first-payload-stays": Plant(
        "a debounced job that is replaced keeps its payload",
        "superseded",
        {"= id, entry or record\n": "= id, entry or waits and stored or record\n"},
        within=6,
        needs="debounce",
    ),
    "hedge-without-terms": Plant(
        "a standby promotes in place of a silent leader although the topic has just been paused",
        "paused: ",
        {
            "if string.find(terms, 'paused', 1, true) or (redis.call('GET', shards) or terms) ~= terms then "
            "return {now_us(), {0}, 0} end": ""
        },
        first=3810001,
        within=1,
        needs="hedge-late",
    ),
    "steps-not-told": Plant(
        "a shard at rest does not learn that the server's clock was stepped",
        "late: ",
        python={
            "wheelq.scheduler.loop:Scheduler._tell_time": ("if self._server.jumps != self._jumps:", "if False:"),
        },
        by_scenario=True,
    ),
    "last-shard-only": Plant(
        "a stopping worker judges by its last shard only whether it holds anything",
        "abandoned|slow",
        python={
            "wheelq.worker.upkeep.heartbeat:Heartbeat._leave": (
                "has_left &= await self._tried(self._hand_back(shard))",
                "has_left = await self._tried(self._hand_back(shard))",
            )
        },
        first=3100046,
        within=1,
        needs="leave-at-work",
    ),
}


def plant(name: str) -> None:
    """Plant a defect in this process. Raises: KeyError, if it is unknown; AssertionError, if it no longer fits."""
    found = PLANTS[name]
    if found.torture:
        planted.plant(found.torture)
    for old in found.lua:
        assert any(old in script(one).text for one in script_names()), f"{name} no longer fits: {old}"
    if found.lua:
        planted._patch(call, "script", planted._with(found.lua, script))
    for place, (old, new) in found.python.items():
        _replace(name, place, old, new)


def _replace(plant: str, place: str, old: str, new: str) -> None:
    path, _, name = place.partition(":")
    module: Any = import_module(path)
    *owners, function = name.split(".")
    owner = getattr(module, owners[0]) if owners else module
    text = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    assert text.count(old) == 1, f"{plant} no longer fits {place}: {old}"
    there: dict[str, Any] = {}
    exec(compile(text.replace(old, new), f"<plant {plant}>", "exec"), vars(module), there)
    before = getattr(owner, function)
    setattr(owner, function, there[function])
    for other in list(sys.modules.values()):  # modules that imported the function by name
        if getattr(other, function, None) is before and other is not module:
            setattr(other, function, there[function])
