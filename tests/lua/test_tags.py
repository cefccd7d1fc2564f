"""A schedule call that is repeated with its tag gets the first answer, whatever has happened since: nothing is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import wheelq.protocol
from tests.lua.shard import HOUR_MS, TERMS, Shard
from tests.records import record, tags_of
from wheelq.embedded import EmbeddedServer
from wheelq.errors import NotPrimary, Refused, ServerFull
from wheelq.model.job import OnDuplicate
from wheelq.model.topic import REMOVING
from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer, registry, removal
from wheelq.protocol.calls.producer import NewJob, Placed, Tag
from wheelq.protocol.codec import LAST_MS, Parts
from wheelq.protocol.keys import ShardKeys

MINUTE_MS = 60_000
TURN_MS = 30_000
LATE_MS = 1_000  # a busy machine looks late
SERVERS_TURN_MS = 1_000
"""A short turn: tests wait for its end."""
TAG = Tag(b"of one call ", TURN_MS, LAST_MS)
MINE = record(life=b"my life ")
LIVE = record("live", life=b"its life")

Happening = Callable[[Shard], object]


def call(
    keys: ShardKeys, *jobs: NewJob, tag: Tag = TAG, terms: str | None = TERMS, on_duplicate: OnDuplicate = "keep"
) -> Call[Placed]:
    return producer.schedule(keys, jobs, on_duplicate, terms, tag)


def keyspace(shard: Shard) -> dict[bytes, Any]:
    """Every key of the shard, byte by byte."""
    return {key: shard.redis.dump(key) for key in shard.redis.keys(shard.keys.near.removesuffix("near") + "*")}


def answers_kept(shard: Shard, turn_ms: int = TURN_MS) -> dict[bytes, bytes]:
    """Tags and their answers."""
    return {tag: answer for key in tags_of(shard.keys, turn_ms) for tag, answer in shard.redis.hgetall(key).items()}


def answer(placed: Placed) -> tuple[Any, ...]:
    """What must be the same in the first answer and in those to repeats."""
    return placed.receipts, placed.terms_in_force, list(placed.full), placed.are_all_here


# Whatever happens between the call and its repeat


def end(shard: Shard) -> None:
    """The job runs, and nothing is kept of it."""
    shard.send(producer.run_now(shard.keys, "a"))
    shard.make_group("g")
    assert shard.ack(shard.read("g", "w1")) == 1
    assert not shard.redis.hexists(shard.keys.jobs, "a")


def cancel(shard: Shard) -> None:
    assert shard.send(producer.cancel(shard.keys, "a")) == "cancelled"


def take_its_place(shard: Shard) -> None:
    cancel(shard)
    shard.schedule(("a", f"+{HOUR_MS}"), record=LIVE)


def remove(shard: Shard, *, is_last: bool = True) -> None:
    shard.send(registry.fence(shard.keys, REMOVING, 1))
    assert shard.send(removal.drop_shard(shard.keys, ["g"], shard.now_ms(), is_last=is_last)) > 0


HAPPENINGS: dict[str, Happening] = {
    "nothing": lambda shard: None,
    "its job was promoted": lambda shard: shard.send(producer.run_now(shard.keys, "a")),
    "its job has ended": end,
    "its job was cancelled": cancel,
    "its job was moved": lambda shard: shard.send(producer.reschedule(shard.keys, "a", "+5000")),
    "its job was replaced": lambda shard: shard.schedule(("a", "+5000"), record=LIVE, on_duplicate="replace"),
    "another job has its id": take_its_place,
    "the terms have changed": lambda shard: shard.send(registry.fence(shard.keys, "7", 1)),
    "the topic is being removed": lambda shard: remove(shard, is_last=False),
    "the topic was removed": remove,
}


@pytest.mark.parametrize("happening", HAPPENINGS)
def test_a_repeated_call_gets_the_first_answer_and_changes_nothing(shard: Shard, happening: str) -> None:
    """So does a first call that arrives after its repeat: for the server there is no difference."""
    made = call(shard.keys, ("a", f"+{MINUTE_MS}", MINE))
    first = shard.send(made)
    assert first.receipts[0] is not None
    assert first.receipts[0].created
    HAPPENINGS[happening](shard)
    before = keyspace(shard)
    for _ in range(2):
        assert answer(shard.send(made)) == answer(first)
        assert keyspace(shard) == before


@pytest.mark.parametrize("due", ["+0", "+0h", "+5", "5000", f"+{MINUTE_MS}l"])
def test_a_repeated_call_gets_the_due_times_of_the_first(shard: Shard, due: str) -> None:
    """Delays count from the first call."""
    made = call(shard.keys, ("a", due, MINE), ("b", f"+{HOUR_MS}", MINE))
    first = shard.send(made)
    shard.wait_until(first.server_ms + 20)
    again = shard.send(made)
    assert answer(again) == answer(first)
    assert again.server_ms >= first.server_ms + 20, "an answer says what time it is when it is given"
    assert answers_kept(shard)[TAG.name][7:] == b"", "where all were created, seven bytes tell it"


@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
def test_a_repeated_call_gets_the_first_statuses(shard: Shard, on_duplicate: OnDuplicate) -> None:
    """Created, kept or replaced, kept as promoted, created before (its own record), refused because it is full."""
    shard.schedule(("waiting", f"+{HOUR_MS}"), ("promoted", "+0"), record=LIVE)
    shard.schedule(("mine", f"+{HOUR_MS}"), record=MINE)
    jobs = [(id, f"+{MINUTE_MS}", MINE) for id in ("new", "waiting", "promoted", "mine", "no room")]
    made = call(shard.keys, *jobs, terms="1 3 free", on_duplicate=on_duplicate)
    first = shard.send(made)
    new, waiting, promoted, mine, refused = first.receipts
    assert new and waiting and promoted and mine and refused is None  # noqa: PT018
    assert list(first.full) == [4]
    assert (new.created, new.life) == (True, b"my life ")
    kept = on_duplicate == "keep"
    assert (waiting.created, waiting.replaced, waiting.life) == (
        not kept,
        not kept,
        b"its life" if kept else b"my life ",
    )
    assert (promoted.created, promoted.life) == (False, b"its life")
    assert (mine.created, mine.replaced, mine.life) == (True, False, b"my life ")
    shard.wait_until(first.server_ms + 5)
    for id in ("new", "waiting", "mine"):
        assert shard.send(producer.cancel(shard.keys, id)) == "cancelled"
    before = keyspace(shard)
    assert answer(shard.send(made)) == answer(first)
    assert keyspace(shard) == before


def test_a_job_that_was_refused_as_the_topic_was_full_is_refused_again(shard: Shard) -> None:
    shard.schedule(("waiting", f"+{HOUR_MS}"))
    made = call(shard.keys, ("a", f"+{MINUTE_MS}", MINE), terms="1 1 free")
    assert list(shard.send(made).full) == [0]
    shard.send(producer.cancel(shard.keys, "waiting"))
    assert answer(shard.send(made)) == ([None], None, [0], False)
    assert "jobs" not in {key.decode().rpartition(":")[2] for key in keyspace(shard)}


def test_a_call_for_live_jobs_only_is_told_again_which_were_not_here(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"), record=LIVE)
    made = call(shard.keys, ("a", "+5000", MINE), ("b", "+5000", MINE), terms=None)
    first = shard.send(made)
    assert [receipt and receipt.life for receipt in first.receipts] == [b"its life", None]
    cancel(shard)
    shard.schedule(("b", f"+{HOUR_MS}"), record=LIVE)
    before = keyspace(shard)
    assert answer(shard.send(made)) == answer(first)
    assert keyspace(shard) == before


def test_another_tag_is_another_call(shard: Shard) -> None:
    job = ("a", f"+{MINUTE_MS}", MINE)
    shard.send(call(shard.keys, job))
    cancel(shard)
    again = shard.send(call(shard.keys, job, tag=TAG._replace(name=b"another call")))
    assert again.receipts[0] is not None
    assert shard.redis.hkeys(shard.keys.jobs) == [b"a"]
    assert set(answers_kept(shard)) == {TAG.name, b"another call"}


def test_a_replica_gives_no_answer_that_it_has(private_server: Callable[..., EmbeddedServer], topic: str) -> None:
    """It may lack the job: a primary that was replaced learns of it late."""
    shard = Shard(private_server(appendonly=False).url, topic)
    made = call(shard.keys, ("a", f"+{MINUTE_MS}", MINE))
    shard.send(made)
    shard.redis.replicaof("127.0.0.1", 1)
    with pytest.raises(NotPrimary):
        shard.send(made)
    shard.close()


# Which answers are kept


def test_a_refused_call_keeps_no_answer_and_is_judged_anew(shard: Shard) -> None:
    shard.send(registry.fence(shard.keys, "2", 1))
    made = call(shard.keys, ("a", "+0", MINE))
    before = keyspace(shard)
    assert shard.send(made).terms_in_force == "2"
    assert keyspace(shard) == before
    shard.send(registry.fence(shard.keys, TERMS, 2))
    assert shard.send(made).are_all_here
    assert set(answers_kept(shard)) == {TAG.name}


@pytest.mark.parametrize(
    ("dues", "is_kept"),
    [
        ([f"+{HOUR_MS}"], False),
        ([f"+{HOUR_MS}", f"+{HOUR_MS}h"], False),
        ([f"+{HOUR_MS}", f"+{MINUTE_MS - 1_000}", f"+{HOUR_MS}"], True),
        (["0"], True),
        (["+0"], True),
    ],
)
def test_an_answer_is_kept_if_a_job_is_due_within_the_tags_time(shard: Shard, dues: list[str], is_kept: bool) -> None:
    """A far job still waits when its call is repeated, and is found by its id."""
    jobs = [(f"job-{n}", due, MINE) for n, due in enumerate(dues)]
    made = call(shard.keys, *jobs, tag=TAG._replace(within_ms=MINUTE_MS))
    first = shard.send(made)
    assert bool(answers_kept(shard)) is is_kept
    assert answer(shard.send(made)) == answer(first)


@pytest.mark.parametrize("bad", [("b", "junk", MINE), ("b", "-5", MINE), ("b", "+5", b"no record")])
def test_a_call_with_an_invalid_job_raises_and_keeps_no_answer(shard: Shard, bad: NewJob) -> None:
    with pytest.raises(Refused):
        shard.send(call(shard.keys, ("a", "+0", MINE), bad))
    assert keyspace(shard) == {}


@pytest.mark.parametrize("known", [True, False])
def test_a_call_forgets_the_answer_that_is_done_with(shard: Shard, known: bool) -> None:
    if known:
        shard.send(call(shard.keys, ("a", f"+{MINUTE_MS}", MINE)))
    shard.send(call(shard.keys, ("b", f"+{MINUTE_MS}", MINE), tag=Tag(b"a later call", TURN_MS, LAST_MS, TAG.name)))
    assert set(answers_kept(shard)) == {b"a later call"}
    assert sorted(shard.redis.hkeys(shard.keys.jobs)) == [b"a", b"b"][not known :]


# How long


def test_an_answer_is_kept_for_one_to_two_turns(shard: Shard) -> None:
    shard.send(call(shard.keys, ("a", f"+{MINUTE_MS}", MINE)))
    [key] = [key for key in tags_of(shard.keys, TURN_MS) if shard.redis.exists(key)]
    assert TURN_MS - 5_000 < shard.redis.pttl(key) <= 2 * TURN_MS  # a busy machine asks late


def test_a_hash_that_a_clock_ahead_has_made_last_expires_as_others_do(shard: Shard) -> None:
    for key in tags_of(shard.keys, TURN_MS):
        shard.redis.hset(key, "an answer", "x")
        shard.redis.pexpire(key, 400 * 86_400_000)
    shard.send(call(shard.keys, ("a", f"+{MINUTE_MS}", MINE)))
    [key] = [key for key in tags_of(shard.keys, TURN_MS) if shard.redis.hexists(key, TAG.name)]
    assert shard.redis.hlen(key) == 2
    assert shard.redis.pttl(key) <= 2 * TURN_MS


def test_an_answer_does_not_outlive_its_turns_in_a_hash_that_is_used_again(shard: Shard) -> None:
    """When a turn ends, the server may still show the hash that ends with it; the next turn does not add to it."""
    for key in tags_of(shard.keys, TURN_MS):
        shard.redis.hset(key, "an old answer", "x")
        shard.redis.pexpire(key, TURN_MS // 2)
    shard.send(call(shard.keys, ("a", f"+{MINUTE_MS}", MINE)))
    [key] = [key for key in tags_of(shard.keys, TURN_MS) if shard.redis.hexists(key, TAG.name)]
    assert shard.redis.hlen(key) == 1


def test_two_hashes_take_turns_and_expire(shard: Shard) -> None:
    """No answer is forgotten before a turn is over, although others come all the time."""
    asked_ms: dict[bytes, int] = {}
    sent_ms: dict[bytes, int] = {}
    forgotten_ms: dict[bytes, int] = {}
    where: dict[bytes, str] = {}
    began = shard.now_ms()
    while len(forgotten_ms) < 20:
        now = shard.now_ms()
        assert now < began + 60_000
        for key in tags_of(shard.keys, SERVERS_TURN_MS):
            where |= dict.fromkeys(shard.redis.hkeys(key), key)
        found = answers_kept(shard, SERVERS_TURN_MS)
        looked_ms = shard.now_ms()
        for tag in found:
            assert now <= sent_ms[tag] + 2 * SERVERS_TURN_MS + LATE_MS, "it stays for two turns at most"
        for tag in set(sent_ms) - set(found) - set(forgotten_ms):
            forgotten_ms[tag] = looked_ms
        tag = b"%012d" % len(sent_ms)
        asked_ms[tag] = shard.now_ms()
        shard.send(call(shard.keys, ("a", f"+{MINUTE_MS}", MINE), tag=Tag(tag, SERVERS_TURN_MS, LAST_MS)))
        sent_ms[tag] = shard.now_ms()
        shard.wait_until(sent_ms[tag] + 50)
    assert all(forgotten_ms[tag] >= asked_ms[tag] + SERVERS_TURN_MS for tag in forgotten_ms)
    assert len(set(where.values())) == 2


# A server that is out of memory


@pytest.fixture
def small(private_server: Callable[..., EmbeddedServer], topic: str) -> Iterator[Shard]:
    """A shard on a server of its own."""
    shard = Shard(private_server(appendonly=False).url, topic)
    yield shard
    shard.close()


def fill(shard: Shard) -> None:
    shard.redis.config_set("maxmemory", "100kb")
    with pytest.raises(Exception, match="memory"):
        shard.redis.set("anything", "at all")


@pytest.mark.parametrize("done", [b"", b"earlier call"], ids=["", "done with an earlier call"])
@pytest.mark.parametrize("due", ["+0", f"+{HOUR_MS}"])
def test_a_full_server_refuses_the_call_and_takes_its_repeat(small: Shard, due: str, done: bytes) -> None:
    fill(small)
    made = call(small.keys, ("a", due, MINE), tag=TAG._replace(done=done))
    with pytest.raises(ServerFull):
        small.send(made)
    assert keyspace(small) == {}
    small.redis.config_set("maxmemory", "0")
    assert small.send(made).are_all_here
    assert small.redis.hkeys(small.keys.jobs) == [b"a"]


def test_a_full_server_gives_the_first_answer_again(small: Shard) -> None:
    made = call(small.keys, ("a", f"+{MINUTE_MS}", MINE))
    first = small.send(made)
    end(small)
    fill(small)
    before = keyspace(small)
    assert answer(small.send(made)) == answer(first)
    assert keyspace(small) == before


# Parts of a record's head

READ_HEAD = (
    (Path(wheelq.protocol.__file__).parent / "lua/lib/record.lua").read_text()
    + """
local shown = {string.byte(ARGV[1], 8), life_of(ARGV[1])}
for code = 0, 255 do
  local name = string.char(code)
  local value = part_of(ARGV[1], name)
  if value then shown[#shown + 1] = {name, value, string.format('%.0f', number_of(value))} end
end
return shown
"""
)
LETTERS = b"kdalbo"
"""The names of the parts, in their order."""
TEXTS = st.none() | st.text(max_size=300)
NUMBERS = st.none() | st.integers(0, 2**53)
PARTS = st.builds(Parts, TEXTS, NUMBERS, NUMBERS, NUMBERS, TEXTS, TEXTS)
NAMES = dict(zip(Parts._fields, LETTERS, strict=True))
LATER = st.dictionaries(
    st.integers(0, 255).filter(lambda name: name not in LETTERS), st.binary(max_size=300), max_size=3
)


def with_later_parts(record: bytes, later: dict[int, bytes]) -> bytes:
    """The record as a later release writes it."""
    has_parts = record[8] & 1
    size = int.from_bytes(record[17:19], "big") if has_parts else 0
    more = b"".join(bytes((name,)) + len(value).to_bytes(2, "big") + value for name, value in later.items())
    at = 19 if has_parts else 17
    head = record[:8] + bytes((record[8] | 1,)) + record[9:17]
    return head + (size + len(more)).to_bytes(2, "big") + more + record[at:]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PARTS, LATER, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
@example(Parts(), {}, {})
def test_scripts_and_clients_read_the_same_parts(
    shard: Shard, parts: Parts, later: dict[int, bytes], headers: dict[str, str]
) -> None:
    """Those of a later release are there for scripts, skipped by readers, and kept by a retry."""
    stored = codec.encode({"n": 1}, headers, 10_000, parts, life=b"a life, ")
    if later:
        stored = with_later_parts(stored, later)
    for written, attempt in ((stored, 1), (codec.again(stored, 5, "it broke", counts=True), 2)):
        read = codec.decode(written)
        assert (read.payload, read.headers, read.attempt, read.life) == ({"n": 1}, headers, attempt, b"a life, ")
        if written[8] & 1:
            assert codec.parts_of(written) == parts
        its_attempt, life, *found = shard.redis.eval(READ_HEAD, 0, written)
        assert (its_attempt, life) == (attempt, b"a life, ")
        values = {name[0]: (value, number) for name, value, number in found}
        assert {name: value for name, (value, _) in values.items() if name not in LETTERS} == later
        known = {field: values[NAMES[field]] for field in Parts._fields if NAMES[field] in values}
        assert known.keys() == {field for field, value in parts._asdict().items() if value is not None}
        for field, (raw, number) in known.items():
            expected = getattr(parts, field)
            assert (raw.decode() if isinstance(expected, str) else int(number)) == expected


@pytest.mark.parametrize("cut", range(17, 30))
def test_scripts_leave_out_a_part_that_is_not_whole(shard: Shard, cut: int) -> None:
    stored = codec.encode(1, None, 100, Parts("order-42"), life=b"a life, ")
    assert shard.redis.eval(READ_HEAD, 0, stored[:cut])[2:] == []
