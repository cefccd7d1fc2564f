"""`Leader`: the work of a shard's lease holder. `act()` does the work that is due and returns when to act again.

    ids are due      the node's `promoter` takes them; a herd, and the jobs of a topic with limits: sweep
    beat             the node's lookout looks whether a job is waiting that is not known: so a lost hint is harmless. A
                     promotion whose answer names no such job puts it off. A topic with limits sweeps at this beat
    window           move the horizon forward, put the loaded ids into the wheel
    retention over   tidy the shard, if it keeps anything; together with the window
    lease            renew it, unless there is nothing to do before it ends; together with a look

**Failures only cause lateness.** Ids taken from the wheel are hints: if a promotion fails, they are dropped, and a
sweep at once finds the jobs in the sorted set. A call that was answered "not the leader" changed nothing.

`Window`, which is pure, tells which jobs of a shard are loaded, and when to load more:

        now                 loaded_to (the horizon, as set in Redis)
    ─────┼───────────────────────┼──────────────────────────────▶ due times
         │  in the wheel, or     │  only in the sorted set
         │  hinted when scheduled│

While jobs are near, the horizon is a window ahead, and moves forward when half of that has passed. A window is
`window_ms` long, and up to eight times that in a shard that has few jobs, so that its windows cost less than its jobs.
Without near jobs the horizon lies just before the next due time, or `idle_ms` ahead: then no call is made until half of
`window_ms` before that.

A window with more jobs than one call reads is read in parts. If a single due time has more jobs than that (a herd), no
call can get past it: then the horizon waits before that time, and sweeping promotes the herd.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from wheelq.base.clock import Timed
from wheelq.model.topic import shaping_of
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.calls.leader import KEY_MARK, MOST_KEYS, LookPlace, Opened
from wheelq.scheduler.lease import OwnLease
from wheelq.scheduler.parts import ShardParts
from wheelq.scheduler.promoter import Promotable
from wheelq.scheduler.wheel import Wheel
from wheelq.settings import SchedulerSettings

logger = logging.getLogger("wheelq.scheduler")

COALESCE_MS = 5.0
"""How many milliseconds the due jobs of a rate-limited topic wait to share a promotion."""
TOLERANCE_MS = 0.001
"""By how much an instant may miss its millisecond, because it was computed from it."""
FEW, WIDEST = 16, 8
"""With so few jobs a window becomes longer, up to so many times `window_ms`; but a shard without jobs must rest."""
TIDY_CALLS = 10
"""The most calls in a row that tidy a shard; each keeps the server busy for about a millisecond."""

Answer = TypeVar("Answer", bound=Timed)


class Leader:
    """Loads, promotes and sweeps one shard, as long as the lease holds."""

    def __init__(self, parts: ShardParts, lease: OwnLease, promotable: Promotable) -> None:
        """The node's promoter asks `promotable` for the ids that are due."""
        self._parts = parts
        self._promotable = promotable
        self._keys = parts.keys

        self._transport = parts.node.transport
        self._settings = parts.node.settings
        self._clock = parts.node.clock
        self._server = parts.server
        self._coalescing = parts.node.coalescing
        self._promotions = parts.node.promotions
        self._lease = lease
        self._window = Window(self._settings)
        self._wheel = Wheel(0)
        self._sweep_at = 0.0
        self._look_at = float("inf")  # when the lookout looks for jobs that are not known
        self._must_look = False  # by itself, as soon as it acts
        self._is_promoting = False  # ids were taken from the wheel, and no answer has come
        self._promoted_us = 0  # the server's time of the last promotion
        self._is_behind = False  # the last sweep did not reach the end of the due jobs
        self._tidy_at = 0.0
        self._acts_at = 0.0  # monotonic, as `act` last returned
        self._is_freed = False  # a hint has named a key whose next job may be promoted
        self._limited = 0  # jobs that are held back for their keys or have permits, as of the last sweep
        self._look_over_at = 0.0  # when to look for keys that were freed, and for permits that are over
        self._look_place = LookPlace()

    def hint(self, jobs: list[tuple[str, int]]) -> bool:
        """Take jobs (member, due_ms) that were scheduled before the horizon; returns whether there is earlier work."""
        now_ms, next_ms, before = self._server.now_ms(), self._wheel.next_due(), self._window.open_at
        for member, due_ms in jobs:
            if self._window.takes(due_ms, now_ms, len(self._wheel)):
                self._wheel.insert(member, due_ms)
                self._is_freed = self._is_freed or member.startswith(KEY_MARK)
        return next_ms is None or self._wheel.next_due() != next_ms or self._window.open_at != before

    def start_afresh(self) -> None:
        """Drop everything loaded, which may be wrong: sweep, and load everything near again."""
        self._wheel = Wheel(int(self._server.now_ms()))
        self._window.forget()
        self._sweep_at = 0.0
        self._look_at, self._must_look = float("inf"), False  # loading tells more
        self._is_promoting = False
        self._tidy_at = 0.0  # the topic may keep less than before
        self._look_over_at = 0.0

    def granted(self) -> None:
        """The lease was acquired: promote the jobs that fell due meanwhile, unless all of them are known."""
        now_ms = self._server.now_ms()
        if self._window.covers(int(now_ms)) and not self._parts.topic.is_shaped:
            self._must_look = True
        else:
            self._sweep_at = 0.0
        self._window.open_at = 0.0
        self._window.is_at_leisure = self._sweep_at > 0

    def busy_at(self) -> float:
        """The monotonic instant of the next work, apart from renewing the lease."""
        if self._is_behind:  # a sweep finds everything that is due
            return self._server.monotonic_at(self._sweep_at)
        near = self._wheel.next_due()
        act_ms = min(self._window.open_at, self._sweep_at, self._look_at)
        if near is not None:
            act_ms = min(act_ms, max(near, self._gathered_ms()))
        return self._server.monotonic_at(act_ms)

    def lease_at(self) -> float:
        """The monotonic instant to take the lease: half a window before the first known job is due.

        Then only one call is left to make when that job is due: its promotion.
        """
        near, busy_at = self._wheel.next_due(), self.busy_at()
        if near is None or self._is_behind:
            return busy_at
        return min(busy_at, self._server.monotonic_at(near - self._settings.window_ms / 2))

    @property
    def next_ms(self) -> int | None:
        """When the first job of the wheel is due, or a key's rate allows its next one; None if neither is known."""
        return self._wheel.next_due()

    @property
    def may_rest(self) -> bool:
        """Whether there is no known work."""
        return not self._wheel and not self._is_behind and not self._limited

    async def rest(self) -> bool:
        """Move the horizon forward without a lease; False if there is work, which needs a lease."""
        settings = self._settings
        self._window.opening()
        now_ms = self._server.now_ms()
        call = calls.rest(self._keys, self._parts.topic.terms, settings.window_ms, settings.idle_ms, now_ms)
        asked_at, rested = await self._parts.node.gathering.ask(call)
        self._server.observe(asked_at, rested.server_us)
        if rested.has_outgoing:
            self._parts.node.found_outgoing(self._keys)
        if rested.horizon_ms is None:
            return False
        self._window.opened(calls.Opened(rested.server_us, rested.horizon_ms, False, False, []), 0)
        if self._window.loaded_to is not None:  # else the window was forgotten meanwhile
            self._sweep_at = self._look_at = float("inf")
        return True

    async def act(self) -> float:
        """Do the work that is due; returns the monotonic instant of the next work. Raises: NotLeader, ServerError."""
        now = self._clock.monotonic()
        now_ms = self._server.at(now)
        try:
            if now_ms >= self._sweep_at or self._must_sweep(now_ms):
                await self._sweep(self._wheel.advance(int(now_ms)))
        except BaseException:
            self.doubt()
            raise
        self._expect()  # what is known does not wait for what follows
        # While a sweep is behind it will find every due job, so loading more is useless.
        if now_ms >= self._window.open_at and not self._is_behind:
            has_kept = await self._open()
            if has_kept and now_ms >= self._tidy_at:
                await self._tidy()
        if self._must_look or (now >= self._lease.renew_at and self._needs_lease()):
            await self._look()
        self._expect()
        self._acts_at = self._next_act()
        return self._acts_at

    def _next_act(self) -> float:
        """The monotonic instant of the next work that the promoter does not do."""
        if not self._needs_lease():  # it may lapse, and is then taken again before the next job
            return min(self.busy_at(), max(self.lease_at(), self._lease.trusted_until))
        act_ms = min(self._sweep_at, float("inf") if self._is_behind else self._window.open_at)
        act_at = self.busy_at() if self._parts.topic.is_shaped else self._server.monotonic_at(act_ms)
        return min(act_at, self._lease.renew_at)

    def _must_sweep(self, now_ms: float) -> bool:
        """Whether jobs are due that only a sweep may promote, because the topic has limits."""
        if not self._parts.topic.is_shaped or self._is_behind or now_ms < self._gathered_ms():
            return False
        near = self._wheel.next_due()
        return near is not None and near <= now_ms

    def _gathered_ms(self) -> float:
        """When what is due may be promoted. The next job of a freed key has waited already: it waits for no others."""
        return 0.0 if self._is_freed else self._coalescing.ends_ms(self._server)

    def _needs_lease(self) -> bool:
        """Whether there is work before a lease taken now would end; if not, the lease may lapse."""
        return self.busy_at() < self._clock.monotonic() + self._settings.lease_ms / 1000

    # --- promotion by the node's promoter --------------------------------------------------------------------------

    def _expect(self) -> None:
        near = self._wheel.next_due()
        if near is not None and not self._is_behind and not self._parts.topic.is_shaped:
            self._parts.node.promoter.expect(self._promotable, self._server.monotonic_at(near))

    def take(self, now: float) -> list[str] | None:
        """Take the ids that are due from the wheel, in order; None if `act` must promote them."""
        if self._is_behind or self._parts.topic.is_shaped:
            return None
        expired = self._wheel.advance(int(self._server.at(now) + TOLERANCE_MS))
        if len(expired) <= self._settings.batch:
            if not expired:
                self._expect()
            self._is_promoting = bool(expired)
            return [member for member, _ in expired]
        for member, due_ms in expired:
            self._wheel.insert(member, due_ms)
        self._sweep_at = 0.0
        return None

    def renews(self, now: float) -> bool:
        """Whether the next promotion shall spare the shard a call: a renewal or a look that would come soon."""
        is_look_soon = self._server.at(now) >= self._look_at - self._settings.sweep_ms / 2
        return is_look_soon or not self._wheel or self._lease.is_half_over(now)

    def promoted(self, asked_at: float, answer: calls.Promoted) -> bool:
        """Take the answer to a promotion; returns whether there is work before the next `act`."""
        self._server.observe(asked_at, answer.server_us)
        self._is_promoting, self._promoted_us = False, answer.server_us
        self._promotions.add(self._keys.topic, answer.lateness)
        for member, due_ms in answer.waiting:  # rescheduled, or this node's clock was slightly ahead
            if self._window.covers(due_ms):
                self._wheel.insert(member, due_ms)
        if answer.has_renewed:
            self._lease.prolonged(asked_at)
            self._put_off(answer)
        self._expect()
        return self._server.monotonic_at(self._sweep_at) < self._acts_at

    def _put_off(self, answer: calls.Promoted) -> None:
        """Look later, because the answer names the first waiting job; if that was missed, sweep when it is due."""
        now_ms = answer.server_us / 1000
        if self._is_behind or self._sweep_at <= now_ms:
            return
        self._sweep_at = self._look_at = float("inf")
        self._look_by(now_ms)
        first, expected = answer.first_due_ms, self._wheel.next_due()
        if first is not None and self._window.covers(first) and (expected is None or first < expected):
            self._sweep_at = min(self._sweep_at, first)

    def doubt(self) -> None:
        """Sweep at once: it finds the jobs that were taken from the wheel and perhaps not promoted."""
        self._sweep_at = 0.0
        self._is_promoting = False

    async def _sweep(self, expired: list[tuple[str, int]]) -> None:
        """Promote up to a batch of due jobs; those of `expired` that are not due yet go back to the wheel."""
        settings = self._settings
        shaping = shaping_of(self._parts.topic, self._keys.shard)
        freed = [member for member, _ in expired if member.startswith(KEY_MARK)]
        self._is_freed = False
        is_look = self._server.now_ms() >= self._look_over_at
        call = calls.sweep(
            self._keys,
            self._lease.token,
            settings.lease_ms,
            settings.batch,
            shaping,
            freed[:MOST_KEYS],
            self._look_place if is_look else None,
        )
        answer = await self._send(call)
        self._promotions.add(self._keys.topic, answer.lateness)
        if answer.promoted:
            self._coalescing.promoted(self._clock.monotonic())
        now_ms = answer.server_us / 1000
        for member, due_ms in expired:
            if due_ms > now_ms:
                self._wheel.insert(member, due_ms)
        self._take_held(answer, now_ms, freed[MOST_KEYS:], is_look=is_look)
        self._is_behind = answer.is_partial
        if answer.wait_ms:
            self._sweep_at = now_ms + max(answer.wait_ms, COALESCE_MS)
            return
        self._sweep_at = self._look_at = float("inf")
        if answer.is_partial:  # and nothing promoted or held back: the stream refuses, so wait
            has_done = answer.promoted or (answer.keys is not None and answer.keys.put_back)
            self._sweep_at = now_ms if has_done else now_ms + self._settings.sweep_ms
        self._look_by(now_ms)

    def _take_held(self, answer: calls.Swept, now_ms: float, left: list[str], *, is_look: bool) -> None:
        """Take what a sweep says of jobs that are held back; `left` are freed keys that it had no room for."""
        if answer.keys is None:
            self._limited = 0
            return
        self._limited = answer.keys.left
        self._promotions.add_held_back(self._keys.topic, answer.keys.lateness)
        for key, at_ms in [*((key, 0) for key in left), *answer.keys.later]:
            self._wheel.insert(key, at_ms)
        if is_look:
            self._look_place = answer.keys.place
            self._look_over_at = now_ms + self._settings.sweep_ms

    def _look_by(self, now_ms: float) -> None:
        """While a job is near, held back or has a permit, look at a slow, regular beat; a topic with limits sweeps."""
        beat_ms = now_ms + self._settings.sweep_ms if self._wheel or self._limited else float("inf")
        if self._parts.topic.is_shaped:
            self._sweep_at = min(self._sweep_at, beat_ms)
        else:
            self._look_at = min(self._look_at, beat_ms)
            if self._look_at < float("inf"):
                self._parts.node.lookout.expect(self)

    # --- looks by the node's lookout -------------------------------------------------------------------------------

    @property
    def looks_at(self) -> float:
        """The monotonic instant of the next look; infinity if there is nothing to look for."""
        return self._server.monotonic_at(self._look_at)

    def to_look_at(self, now: float) -> calls.ToLookAt | None:
        """What to look at; None if a look could tell nothing now."""
        loaded_to = self._window.loaded_to
        if loaded_to is None or self._is_behind or self._is_promoting or self._lease.is_lost:
            return None
        expected = self._wheel.next_due()
        known_ms = loaded_to + 1 if expected is None else min(expected, loaded_to + 1)
        return calls.ToLookAt(self._keys, self._lease.token if self._lease.is_half_over(now) else "", known_ms)

    def has_looked(self, asked_at: float, at: calls.ToLookAt) -> None:
        """Take it that nothing was missed as of the call sent at `asked_at`: put the next look off."""
        if at.token and at.token == self._lease.token:
            self._lease.prolonged(asked_at)
        self._look_at = float("inf")
        self._look_by(self._server.now_ms())

    def look_yourself(self) -> None:
        """Something may have been missed: look as soon as the shard acts."""
        self._must_look = True
        self._promotable.wake()

    # --- the window, and what is kept -------------------------------------------------------------------------------

    async def _open(self) -> bool:
        """Move the horizon forward. Returns whether there may be something to tidy."""
        settings = self._settings
        # With an empty wheel nothing near is loaded: reading from the beginning finds a job whose hint was lost.
        loaded_to = self._window.loaded_to if self._wheel else None
        is_at_leisure = self._window.is_at_leisure
        self._window.opening()
        call = calls.open_window(
            self._keys,
            self._lease.token,
            settings.lease_ms,
            loaded_to,
            self._window.length_ms,
            settings.window_ids,
            settings.idle_ms,
            self._server.now_ms(),
        )
        answer = await (self._ask(call) if is_at_leisure else self._send(call))
        for member, due_ms in answer.jobs:
            self._wheel.insert(member, due_ms)
        self._window.opened(answer, len(self._wheel))
        if answer.has_outgoing:
            self._parts.node.found_outgoing(self._keys)
        self._look_by(answer.server_us / 1000)
        return answer.has_kept

    async def _tidy(self) -> None:
        """Remove entries and finished jobs whose retention has passed; of very many, some go with the next window."""
        topic = self._parts.topic
        kept = topic.retention_ms, topic.keep_done_ms
        # A shard at rest is looked at a little more often than once in `idle_ms`. Set back if the settings change.
        self._tidy_at = self._server.now_ms() + self._settings.idle_ms / 2
        for _ in range(TIDY_CALLS):
            answer = await self._ask(calls.tidy(self._keys, self._lease.token, self._settings.lease_ms, *kept))
            if not answer.is_partial:
                return
        self._tidy_at = 0.0

    async def _look(self) -> None:
        """Renew the lease, and look whether a job waits that is not known."""
        now_ms = self._server.now_ms()
        answer = await self._ask(calls.renew(self._keys, self._lease.token, self._settings.lease_ms, now_ms))
        self._must_look, self._look_at = False, float("inf")
        self._look_by(answer.server_us / 1000)
        if self._is_promoting or self._promoted_us >= answer.server_us:  # a promotion, which looks too, was under way
            return
        expected = self._wheel.next_due()
        first = answer.first_due_ms
        is_missed = first is not None and self._window.covers(first) and (expected is None or first < expected)
        if is_missed and not self._is_behind:
            logger.info("%s:%d missed a hint", self._keys.topic, self._keys.shard)
            self.start_afresh()

    async def _send(self, call: Call[Answer]) -> Answer:
        """Send a leader's call, which renews the lease and returns the server's time."""
        asked_at = self._clock.monotonic()
        return self._took(asked_at, await self._transport.send(call))

    async def _ask(self, call: Call[Answer]) -> Answer:
        """Send a leader's call that may wait for those of other shards."""
        return self._took(*await self._parts.node.gathering.ask(call))

    def _took(self, asked_at: float, answer: Answer) -> Answer:
        self._lease.prolonged(asked_at)
        self._server.observe(asked_at, answer.server_us)
        return answer


class Window:
    """The loaded part of one shard."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._least_ms = settings.window_ms
        self._most_ms = max(settings.window_ms, min(WIDEST * settings.window_ms, settings.idle_ms // 4))
        self._room = settings.wheel_ids
        self.length_ms = settings.window_ms
        """How far ahead to load."""
        self.loaded_to: int | None = None
        """The horizon; None if nothing is known to be loaded."""
        self.open_at = 0.0
        """When to load more, in server milliseconds."""
        self.is_at_leisure = False
        """Whether what is due until then was read, so that opening may wait a little."""
        self._is_opening = False
        self._is_forgotten = False  # whether it was forgotten while it was being opened
        self._was_hinted = False  # whether a hint named a later job while it was being opened

    def opening(self) -> None:
        """Record that more is being loaded. Events until the answer is taken may be missing in it."""
        self._is_opening = True
        self.is_at_leisure = False
        self._is_forgotten = self._was_hinted = False

    def forget(self) -> None:
        """Hints may have been lost, or another node may have led: load everything near again, now."""
        self.loaded_to = None
        self.open_at = 0.0
        self.is_at_leisure = False
        self._is_forgotten = self._is_opening

    def opened(self, answer: Opened, held: int) -> None:
        """Take the answer to `open_window`; the wheel now holds `held` ids."""
        self._is_opening = False
        if self._is_forgotten:  # the answer continues the window loaded before
            return
        now_ms = answer.server_us / 1000
        before = self.loaded_to
        self.loaded_to = answer.horizon_ms
        if not answer.is_partial:
            is_at_rest = answer.horizon_ms > now_ms + self.length_ms
            self.open_at = answer.horizon_ms - (self._least_ms if is_at_rest else self.length_ms) / 2
            self.is_at_leisure = not self._was_hinted
        elif held < self._room and (before is None or answer.horizon_ms > before):
            self.open_at = now_ms
        else:  # full, or before a herd: continue when the loaded jobs are due, because later ones send no hint
            self.open_at = answer.horizon_ms + 1.0
        if self._was_hinted:
            self.open_at = now_ms
        if held <= FEW and not answer.is_partial:
            self.length_ms = min(2 * self.length_ms, self._most_ms)
        elif held > 2 * FEW or answer.is_partial:
            self.length_ms = self._least_ms

    def takes(self, due_ms: int, now_ms: float, held: int) -> bool:
        """Whether a job that a hint named belongs in the wheel, which now holds `held` ids.

        If the job is due later than a window from now, the hint was sent because the horizon of an idle shard is far
        ahead. Then the window is opened again instead, which moves the horizon back to before that job, so that later
        jobs send no hints.
        """
        if held > 2 * FEW:
            self.length_ms = self._least_ms
        if due_ms <= now_ms + self.length_ms:
            return True
        self.open_at = now_ms
        self.is_at_leisure = False
        self._was_hinted = self._is_opening
        return False

    def covers(self, due_ms: int) -> bool:
        """Whether a job due at this time must stay in the wheel, because no later opening will read it."""
        return self.loaded_to is not None and due_ms <= self.loaded_to
