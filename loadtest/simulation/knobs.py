"""The knobs of a seed: small limits of the product, so that twenty jobs cross the limits that thousands cross in life.

    KNOBS      by name: the values to draw from, and the places with the limit
    drawn      the knobs of a seed; a third of the seeds have none, and no seed has all
    OF_TRAITS  the knobs that matter to a trait, which most of its seeds turn
    turned     limits of modules, for the length of a run
    settings   limits that are settings

Each knob is drawn from a generator of its own, so that a new one changes no others, and nothing else in a plan.
A limit in a script is turned where the simulated server compiles it (`store.scripts`), under the script's own digest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from random import Random
from typing import Any
from unittest.mock import patch

from wheelq.settings import Settings

SHARES = (0.0, 0.2, 0.5)
"""How many of its knobs a seed turns."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A limit of the product."""

    values: tuple[int, ...]
    places: tuple[str, ...] = ()
    """Where it stands, such as `wheelq.worker.lanes.reader:MANY`; more than one, where other modules import it."""
    setting: str = ""
    """The setting that it is, such as `scheduler.batch`; `topic.…` is a setting of every topic."""
    lua: tuple[str, str] = ("", "")
    """The text of a script that sets it, and the new text, in which {} stands for the value."""


def _lua(old: str, new: str, *values: int) -> Knob:
    return Knob(values, lua=(old, new))


def _at(place: str, *values: int, also: tuple[str, ...] = ()) -> Knob:
    return Knob(values, (f"wheelq.{place}", *(f"wheelq.{one}" for one in also)))


def _setting(name: str, *values: int) -> Knob:
    return Knob(values, setting=name)


KNOBS: Mapping[str, Knob] = {
    # producers
    "schedule-batch": _at("protocol.calls.producer:BATCH", 1, 3, 8, also=("protocol.calls.producer:MEMBERS",)),
    "parcels-in-a-call": _at("producer.scheduling:MOST_IN_A_CALL", 1, 2, 4),
    "confirmed-batches": _at("producer.confirmation:BATCHES", 1, 2),
    "parcel": _at("producer.outbox.store:PARCEL", 1, 3, 8),
    "connections": _setting("connection.max_connections", 2, 4),
    "attempts-kept": _at(
        "model.state:ATTEMPTS_KEPT",
        1,
        2,
        also=("protocol.attempts:ATTEMPTS_KEPT", "protocol.calls.state:ATTEMPTS_KEPT"),
    ),
    "http-batch": _at("server.coalescing:BATCH", 1, 3),
    # changes of many jobs, and pages
    "due-batch": _at("protocol.calls.bulk:BATCH", 1, 3, 7),
    "rerun-batch": _at("protocol.calls.bulk:RERUN_BATCH", 1, 3),
    "replay-batch": _at("protocol.calls.dead:REPLAY_BATCH", 1, 2),
    "dead-page": _at("protocol.calls.dead:LOOKED_AT", 1, 3),
    "list-page": _at("protocol.calls.state:LOOKED_AT", 2, 5),
    "list-bytes": _at("protocol.calls.state:MOST_BYTES", 100, 1_000),
    "drain-page": _at("protocol.calls.draining:PAGE", 2, 5),
    "bundle-page": _at("protocol.calls.bundles:LOOKED_AT", 1, 3),
    "bundle-named": _at("producer.bundles:NAMED", 1, 2),
    "removal-page": _at("protocol.calls.removal:AT_ONCE", 1, 4),
    "recurring-page": _at("protocol.calls.recurring:PAGE", 1, 2),
    "recurring-steps": _at("model.recurring:MOST_STEPS", 3, 10),
    # schedulers
    "window": _setting("scheduler.window_ids", 3, 10, 30),
    "wheel": _setting("scheduler.wheel_ids", 3, 10, 30),
    "promotions": _setting("scheduler.batch", 1, 4, 15),
    "shards-promoted": _at("scheduler.promoter:MOST_SHARDS", 1, 2),
    "tidy-calls": _at("scheduler.leader:TIDY_CALLS", 2, 4),
    # workers
    "acks": _setting("worker.ack_batch", 1, 4),
    "deliveries": _setting("worker.max_deliveries", 3),
    "shards-acked": _at("worker.delivery.settling:MOST_SHARDS", 1, 2),
    "hand-back": _at("worker.delivery.settling:HAND_BACK_AT_ONCE", 1, 3),
    "notes": _at("worker.delivery.progress:BATCH", 1, 3),
    "recovered": _at("worker.delivery.recovery:BATCH", 1, 4),
    "recovery-shards": _at("worker.delivery.recovery:LOOK_AT", 1, 3),
    "pool-slice": _at("worker.delivery.pool:SLICE", 1, 4),
    "batch-failures": _at("worker.lanes.batching:SETTLED_TOGETHER", 1, 3),
    "many-shards": _at("worker.lanes.reader:MANY", 1, 2),
    "shards-read": _at("worker.lanes.reader:READ_AT_ONCE", 1, 2),
    "read-ahead": _at("worker.ordered.deliveries:READ_AHEAD", 2, 5),
    "read-ahead-by-key": _at("worker.ordered.deliveries:READ_AHEAD_BY_KEY", 3, 10),
    "finished-in-order": _at("worker.ordered.ordering:FINISHED_AT_ONCE", 1, 3),
    "overdue-shards": _at("worker.upkeep.overdue:SHARDS", 1, 2),
    "tidied-shards": _at("worker.upkeep.janitor:TIDY_AT_ONCE", 1, 2),
    "topics-read": _at("worker.upkeep.shards:AT_ONCE", 6, 14),
    "metrics": _at("base.metrics:MOST_AT_ONCE", 1, 5),
    # what a topic keeps, and scripts
    "dead-kept": _setting("topic.dead_max", 1, 3),
    "tidied-jobs": _lua("local JOBS = 1000", "local JOBS = {}", 20, 60),
    "trimmed": _lua("local MOST = 20000", "local MOST = {}", 1, 5),
    "removal-trimmed": _lua("local MOST_AT_ONCE = 20000", "local MOST_AT_ONCE = {}", 1, 5),
    "group-removal": _lua("local MOST_AT_ONCE = 500", "local MOST_AT_ONCE = {}", 1, 3),
    "counted-lag": _lua("local COUNTED = 2000", "local COUNTED = {}", 2, 5),
    "counted-groups": _lua("10000, 8000000, 500", "{}, 8000000, 2", 3, 10),
    "looked-for-unread": _lua("local MOST_LOOKED = 500", "local MOST_LOOKED = {}", 1, 5),
    "dead-trimmed": _lua("local AT_ONCE = 20", "local AT_ONCE = {}", 1, 2),
    "taken-over": _lua("local LOOKED_AT = 1000", "local LOOKED_AT = {}", 1, 5),
    "histograms": _lua("local IDLE_MS, AT_ONCE = 3600000, 100", "local IDLE_MS, AT_ONCE = {}, 2", 500, 5_000),
}
Knobs = Mapping[str, int]


OF_TRAITS: Mapping[str, tuple[str, ...]] = {"outages": ("parcel",), "bursts": ("acks",)}
OF_TRAIT = 0.6
"""How likely a seed turns such a knob."""


def drawn(seed: int, traits: Collection[str] = ()) -> Knobs:
    """Returns the knobs that a seed with these traits turns, with their values."""
    share = Random(f"{seed}/knobs").choice(SHARES)
    wanted = {name for trait, names in OF_TRAITS.items() if trait in traits for name in names}
    found = {}
    for name, knob in KNOBS.items():
        random = Random(f"{seed}/knobs/{name}")
        if random.random() < (max(share, OF_TRAIT) if name in wanted else share):
            found[name] = random.choice(knob.values)
    return found


@contextmanager
def turned(knobs: Knobs) -> Iterator[None]:
    """Turns the limits of modules, and turns them back."""
    with ExitStack() as stack:
        for name, value in knobs.items():
            for place in KNOBS[name].places:
                module, _, constant = place.partition(":")
                stack.enter_context(patch.object(import_module(module), constant, value))
        yield


def settings(before: Settings, knobs: Knobs) -> Settings:
    """Returns settings with the limits of these knobs."""
    for part, changes in _by_part(knobs).items():
        before = replace(before, **{part: replace(getattr(before, part), **changes)})
    return before


def of_topics(knobs: Knobs) -> Mapping[str, int]:
    """Returns the settings that every topic gets."""
    return _by_part(knobs).get("topic", {})


def in_lua(knobs: Knobs) -> list[tuple[bytes, bytes]]:
    """Returns which texts of scripts are replaced, and with what."""
    pairs = [(KNOBS[name].lua, value) for name, value in knobs.items()]
    return [(old.encode(), new.format(value).encode()) for (old, new), value in pairs if old]


def _by_part(knobs: Knobs) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in knobs.items():
        part, _, setting = KNOBS[name].setting.partition(".")
        if part:
            found.setdefault(part, {})[setting] = value
    return found
