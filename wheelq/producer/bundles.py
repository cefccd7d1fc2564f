"""`Bundles`: jobs that are counted, so that another one follows when all of them have ended.

    schedule   make the bundle ─▶ its shards take members ─▶ schedule them ─▶ close it, unless more are to come
    close      no shard takes more members ─▶ take the reports of those where none is left
    cancel     nothing follows ─▶ no shard takes more ─▶ cancel those that wait

Each of them may be repeated, and goes on where an interrupted call stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from wheelq.base.clock import Clock
from wheelq.base.ids import make_id, make_tag
from wheelq.errors import BundleNotFound, InvalidInput, NotReplicated, OutcomeUnknown, WheelqError
from wheelq.model.bundle import Bundle, BundleState, Continuation, Receipts, check_bundle
from wheelq.model.checks import check_flag, check_on_duplicate
from wheelq.model.dead import DeadFilter, DeadJob
from wheelq.model.job import JobSpec, OnDuplicate
from wheelq.producer.confirmation import Confirmer
from wheelq.producer.operation import Operation, ask, ask_all, ask_all_until_known, ask_until_known
from wheelq.producer.preparation import Preparation, carrying, check_specs
from wheelq.producer.scheduling import Scheduling
from wheelq.producer.topics import Topics
from wheelq.protocol.call import Call
from wheelq.protocol.calls import bundles as calls
from wheelq.protocol.calls import dead
from wheelq.protocol.calls.bundles import NONE, Totals, bundle_of
from wheelq.protocol.calls.dead import DeadRange
from wheelq.protocol.calls.outgoing import Follower
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import ClientSettings, Durability

NAMED = 100
"""The most dead members that a bundle names."""
PAGES = 20
"""How many pages of a shard's dead letters are searched for them."""


class Bundles:
    """The bundles of one server. All methods raise InvalidInput, and BundleNotFound or BundleClosed."""

    def __init__(
        self, topics: Topics, keys: Keys, settings: ClientSettings, clock: Clock, scheduling: Scheduling
    ) -> None:
        self._topics = topics
        self._keys = keys
        self._settings = settings
        self._clock = clock
        self._scheduling = scheduling
        self._confirmer = Confirmer(settings)

    def schedule(
        self,
        topic: str,
        specs: Iterable[JobSpec],
        then: Continuation | None,
        bundle: str | None,
        close: bool,
        on_duplicate: OnDuplicate,
        durability: Durability | None,
    ) -> Operation[Receipts[Any]]:
        """Schedule members: of a new bundle, or of one that is open."""
        if then is not None and bundle is not None:
            raise InvalidInput("then", "leave it out: the bundle has its follower already")
        check_flag(close, "close")
        check_on_duplicate(on_duplicate)
        check_specs(specs)
        if then is not None:
            bundle = yield from self._make(then, durability)
        else:
            bundle = check_bundle(bundle or "")
            yield from ask_until_known(calls.open(self._keeping(bundle), bundle, None, None, ()))
        try:
            found = yield from self._scheduling.members(topic, specs, bundle, on_duplicate, durability)
            if then is not None and close:
                yield from self.close(bundle)
        except WheelqError as error:
            error.bundle = bundle
            raise
        receipts = Receipts[Any](found)
        receipts.bundle = bundle
        return receipts

    def _make(self, then: Continuation, durability: Durability | None) -> Operation[str]:
        if not isinstance(then, Continuation):
            raise InvalidInput("then", f"must be a Continuation, not {type(then).__name__}")
        name = make_id()
        spec = then.spec(f"bundle-{name}")
        id, due, record = Preparation(then.topic, self._settings, self._clock.wall_ms()).job(carrying(spec))
        how = then.on_duplicate if then.key is not None else ""
        follower = Follower(then.topic, id, due, then.partition_key or "", how, record, make_tag())
        bundle = f"{then.topic}:{name}"
        confirming = yield from self._confirmer.confirming(durability)
        yield from self._topics.register(then.topic, confirming)  # so that a scheduler serves the shard that keeps it
        making = ask_until_known(calls.open(self._keeping(bundle), bundle, then.when, follower, ()))
        try:
            yield from (making if confirming is None else confirming.each(making))
        except (OutcomeUnknown, NotReplicated) as error:  # it may be there
            error.bundle = bundle
            raise
        return bundle

    def close(self, bundle: str) -> Operation[None]:
        """Close a bundle."""
        _, forgetting = yield from self._confirmer.changing(self._close(check_bundle(bundle), BundleState.CLOSED))
        yield from ask_all_until_known(forgetting)

    def _close(self, bundle: str, state: BundleState) -> Operation[tuple[Sequence[ShardKeys], list[Call[int]]]]:
        try:
            names = yield from ask_until_known(calls.close(self._keeping(bundle), bundle, state))
        except BundleNotFound:
            found = yield from ask(calls.kept(self._keeping(bundle), bundle))
            if found is None:
                raise
            return (), (yield from self._shut(bundle, [calls.named(self._keys, name) for name in found.reports]))
        shards = [calls.named(self._keys, name) for name in names]
        return shards, (yield from self._shut(bundle, shards))

    def _shut(self, bundle: str, shards: Sequence[ShardKeys]) -> Operation[list[Call[int]]]:
        """Lets shards take no more members, and takes the reports of those where none is left.

        Returns the calls that let these shards forget them, once that is confirmed.
        """
        answers = yield from ask_all_until_known([calls.shut(shard, bundle) for shard in shards])
        reports = [(shard, report) for shard, report in zip(shards, answers, strict=True) if report]
        keeper = self._keeping(bundle)
        tallied = yield from ask_until_known(calls.tally(keeper, bundle, [report for _, report in reports]))
        if tallied.is_full:
            raise calls.no_room(keeper, bundle, "try again when its schedulers have carried some")
        return [calls.forget(shard, bundle, report, "", tallied.has_ended) for shard, report in reports]

    def cancel(self, bundle: str) -> Operation[int]:
        """Cancel a bundle; returns how many members were cancelled."""
        cancelled, forgetting = yield from self._confirmer.changing(self._cancel(check_bundle(bundle)))
        yield from ask_all_until_known(forgetting)
        return cancelled

    def _cancel(self, bundle: str) -> Operation[tuple[int, list[Call[int]]]]:
        shards, forgetting = yield from self._close(bundle, BundleState.CANCELLED)
        cancelled = 0
        for shard in shards:
            cursor = "0"
            while True:
                cursor, some = yield from ask_until_known(calls.cancel_members(shard, bundle, cursor))
                cancelled += some
                if cursor == "0":
                    break
        return cancelled, [*forgetting, *(yield from self._shut(bundle, shards))]

    def get(self, bundle: str) -> Operation[Bundle | None]:
        """Look a bundle up, and its members in every shard; None if it is not known."""
        keeper = self._keeping(check_bundle(bundle))
        found = yield from ask(calls.kept(keeper, bundle))
        if found is None:
            return None
        shards = [calls.named(self._keys, name) for name in found.reports]
        counted: Sequence[Totals | None] = [None] * len(shards)
        if found.state is not BundleState.ENDED:
            counted = yield from ask_all(calls.totals(shard, bundle) for shard in shards)
            found = (yield from ask(calls.kept(keeper, bundle))) or found  # the report of what a shard has forgotten
        parts = [
            now or found.reports.get(calls.name_of(shard)) or NONE for shard, now in zip(shards, counted, strict=True)
        ]
        members, done, dead_ones, cancelled = (sum(part[place] for part in parts) for place in range(4))
        dead_jobs: list[DeadJob] = []
        for shard, part in zip(shards, parts, strict=True):
            if part.dead and len(dead_jobs) < NAMED:
                dead_jobs += yield from self._dead_in(shard, bundle, min(part.dead, NAMED - len(dead_jobs)))
        left = sum(part.left for part in parts)
        one = found.follower
        numbers = (members, done, dead_ones, cancelled, left)
        topics = tuple(sorted({shard.topic for shard in shards}))
        return Bundle(bundle, found.state, found.when, one.topic, one.id, *numbers, topics, dead_jobs)

    def _dead_in(self, shard: ShardKeys, bundle: str, most: int) -> Operation[list[DeadJob]]:
        """Finds dead members among the newest dead letters of a shard."""
        found: list[DeadJob] = []
        span = DeadRange("-", "+")
        for _ in range(PAGES):
            page = yield from ask(dead.find(shard, DeadFilter(), span, dead.LOOKED_AT, newest_first=True))
            found += [job for job, record in page.jobs if bundle_of(record) == bundle]
            if len(found) >= most or page.looked_to is None:
                break
            span = DeadRange("-", f"({page.looked_to.entry_id}")
        return found[:most]

    def _keeping(self, bundle: str) -> ShardKeys:
        return calls.keeping(self._keys, bundle)
