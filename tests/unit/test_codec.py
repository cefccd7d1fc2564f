"""What is stored for a job comes back as it was; what would not is refused, with the path to it."""

from __future__ import annotations

import contextlib
import math
import sys
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import LIFE
from tests.records import record as raw_record
from wheelq.errors import InvalidInput, PayloadTooLarge, TopicUnreadable
from wheelq.model.state import Attempt
from wheelq.protocol import attempts, codec, registry_codec
from wheelq.protocol.codec import UnreadableRecord
from wheelq.settings import TopicSettings

LIMIT = 64 * 1024

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | text
    | st.binary(max_size=20)
)
any_payload = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5), max_leaves=20
)


def encode(payload: Any, headers: dict[str, str] | None = None, life: bytes | None = LIFE) -> bytes:
    return codec.encode(payload, headers, LIMIT, life=life)


def offence(payload: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        encode(payload)
    return caught.value


@given(any_payload, st.none() | st.dictionaries(text, text, max_size=4))
def test_an_encoded_value_is_decoded_as_it_was(payload: Any, headers: dict[str, str] | None) -> None:
    record = codec.decode(encode(payload, headers))
    assert (record.attempt, record.payload, record.headers) == (1, payload, headers or {})
    assert type(record.payload) is type(payload)


def test_not_a_number_and_the_infinities_are_kept() -> None:
    assert math.isnan(codec.decode(encode(math.nan)).payload)
    assert codec.decode(encode([math.inf, -math.inf])).payload == [math.inf, -math.inf]


def test_a_tuple_comes_back_as_a_list() -> None:
    assert codec.decode(encode((1, (2,)))).payload == [1, [2]]


def test_other_kinds_of_bytes_come_back_as_bytes() -> None:
    assert codec.decode(encode([bytearray(b"a"), memoryview(b"b")])).payload == [b"a", b"b"]


@given(any_payload)
def test_the_record_of_a_plain_job_is_a_head_of_17_bytes_and_the_payload(payload: Any) -> None:
    """A control character first, by which scripts tell a record from an entry id, which begins with a digit."""
    record = encode(payload)
    assert record == b"\x02" + bytes(6) + b"\x01\x00" + LIFE + msgpack.packb(payload)
    assert record[0] < 32 <= ord("0")


def test_each_job_has_a_life_of_its_own_unless_one_is_given() -> None:
    records = [encode(1, life=None) for _ in range(100)]
    assert len({codec.decode(record).life for record in records}) == 100
    assert all(codec.life_of(record) == codec.decode(record).life for record in records)
    assert codec.decode(encode(1)).life == LIFE
    assert codec.with_life(records[0], LIFE) == encode(1)


def test_the_time_that_the_script_wrote_is_when_the_job_was_scheduled() -> None:
    record = encode(1)
    stored = record[:1] + (1_795_275_123_455).to_bytes(6, "big") + record[7:]
    assert (codec.decode(record).scheduled_ms, codec.decode(stored).scheduled_ms) == (0, 1_795_275_123_455)


@given(
    st.builds(
        codec.Parts,
        st.none() | text,
        st.none() | st.integers(0, codec.LAST_MS),
        st.none() | st.integers(0, 2**31),
        st.none() | st.integers(0, codec.LAST_MS),
        st.none() | text,
    ),
    any_payload,
    st.none() | st.dictionaries(text, text, max_size=2),
)
def test_the_parts_of_the_head_come_back_and_stay_in_the_record_of_a_retry(
    parts: codec.Parts, payload: Any, headers: dict[str, str] | None
) -> None:
    record = codec.encode(payload, headers, LIMIT, parts, life=LIFE)
    again = codec.again(record, 5, "it broke", counts=True)
    assert codec.parts_of(record) == codec.parts_of(again) == parts
    for found in (codec.decode(record), codec.decode(again)):
        assert (found.payload, found.headers, found.life) == (payload, headers or {}, LIFE)
        assert (found.partition_key, found.max_attempts) == (parts.partition_key, parts.max_attempts)
        assert found.limit_ms == parts.limit_ms


def test_parts_of_a_newer_release_are_passed_over_and_stay_in_the_record_of_a_retry() -> None:
    packed = b"z\x00\x03newk\x00\x02eu"
    record = encode(1)[:8] + b"\x01" + LIFE + len(packed).to_bytes(2, "big") + packed + b"\x01"
    again = codec.again(record, 5, None, counts=True)
    assert codec.decode(record).partition_key == codec.decode(again).partition_key == "eu"
    assert packed in again
    assert codec.original(again) == record


def test_a_number_in_the_head_that_no_clock_reaches_makes_a_record_unreadable() -> None:
    """As seconds it would be no float, and every worker would stumble over it."""
    packed = b"l\x00\xff" + b"\xff" * 255
    with pytest.raises(UnreadableRecord, match="too large"):
        codec.decode(encode(1)[:8] + b"\x01" + LIFE + len(packed).to_bytes(2, "big") + packed + b"\x01")


# What is refused


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({1}, "payload"),
        (object(), "payload"),
        (1j, "payload"),
        (2**64, "payload"),
        (-(2**63) - 1, "payload"),
        ("\udfff", "payload"),
        ([0, {1}], "payload[1]"),
        ({"a": {"b": [0, 0, {2}]}}, "payload.a.b[2]"),
        ({"a": (1, {"b": range(3)})}, "payload.a[1].b"),
        ({"a": {7: "x"}}, "payload.a[7]"),
        ({None: 1}, "payload[None]"),
        ([{"x": "\ud800"}], "payload[0].x"),
    ],
)
def test_the_path_leads_to_what_cannot_be_stored(payload: Any, path: str) -> None:
    error = offence(payload)
    assert error.field == path
    assert str(error).startswith(path)


@given(st.lists(st.sampled_from(["list", "dict"]), max_size=8), st.sampled_from([{1}, 2**70, "\ud800", object()]))
def test_the_path_leads_to_a_value_at_any_depth(levels: list[str], culprit: Any) -> None:
    payload, path = culprit, ""
    for level in levels:
        payload, path = ([None, payload], f"[1]{path}") if level == "list" else ({"key": payload}, f".key{path}")
    assert offence(payload).field == "payload" + path


@given(st.dictionaries(st.integers() | st.booleans() | st.floats(), st.none(), min_size=1, max_size=3))
def test_map_keys_that_are_not_strings_are_refused(payload: dict[Any, None]) -> None:
    assert "map keys must be strings" in str(offence(payload))


@pytest.mark.parametrize("depth", [1_024, 1_025, 100_000])
def test_a_value_nested_too_deeply_is_refused(depth: int) -> None:
    payload: Any = None
    for _ in range(depth):
        payload = [payload]
    assert "nested too deeply" in str(offence(payload))


@pytest.mark.parametrize("depth", [1, 100, 1_000])
def test_a_value_nested_less_deeply_comes_back(depth: int) -> None:
    payload: Any = "core"
    for level in range(depth):
        payload = [payload] if level % 2 else {"a": payload}
    payload = codec.decode(encode(payload)).payload
    for level in reversed(range(depth)):
        payload = payload[0] if level % 2 else payload["a"]
    assert payload == "core"


@given(st.lists(any_payload | st.builds(object) | st.lists(any_payload | st.builds(object), max_size=3), max_size=5))
def test_one_packer_for_many_jobs_makes_the_same_records_also_after_what_cannot_be_packed(many: list[Any]) -> None:
    pack = codec.packer()
    for payload in many:
        try:
            alone = encode(payload)
        except InvalidInput:
            with pytest.raises(InvalidInput):
                codec.encode(payload, None, LIMIT, life=LIFE, pack=pack)
        else:
            assert codec.encode(payload, None, LIMIT, life=LIFE, pack=pack) == alone


def test_a_payload_over_the_limit_is_refused_with_both_sizes() -> None:
    assert encode("x" * (LIMIT - 3 - 2))  # msgpack takes three bytes for the length
    with pytest.raises(PayloadTooLarge) as caught:
        encode("x" * LIMIT)
    assert caught.value.limit_bytes == LIMIT
    assert caught.value.payload_bytes > LIMIT


# What is read


@given(st.binary(max_size=64), st.integers(0, 255))
def test_a_record_of_any_bytes_is_read_or_called_unreadable(stored: bytes, flags: int) -> None:
    for record in (stored, b"\x02" + stored, encode(1)[:8] + bytes((flags,)) + stored):
        with contextlib.suppress(UnreadableRecord):
            codec.decode(record)
        with contextlib.suppress(UnreadableRecord):
            codec.parts_of(record)


@given(any_payload | st.dictionaries(text, st.integers(0, 9)), any_payload)
def test_a_record_with_any_options_is_read_or_called_unreadable(first: Any, second: Any) -> None:
    for options in (second, {"h": second}):
        try:
            record = codec.decode(raw_record(first, options=options))
        except UnreadableRecord:
            continue
        assert type(record.headers) is dict


@pytest.mark.parametrize("version", [0, 1, 3, 31, 255])
def test_a_record_of_another_version_is_unreadable(version: int) -> None:
    with pytest.raises(UnreadableRecord, match="version"):
        codec.decode(bytes([version]) + encode(1)[1:])


def test_the_attempt_is_the_eighth_byte() -> None:
    assert codec.decode(raw_record(1, attempt=255)).attempt == 255


def test_options_that_a_newer_release_wrote_are_passed_over() -> None:
    record = raw_record(1, options={"h": {"a": "b"}, "new": [1, 2]})
    assert codec.decode(record)[:3] == (1, 1, {"a": "b"})


# Later runs


def test_the_record_of_the_next_attempt_counts_and_remembers() -> None:
    first = encode({"id": 42}, {"trace": "x"})
    second = codec.again(first, 1_000, "it broke", counts=True)
    third = codec.again(codec.again(second, 2_000, None, counts=False), 3_000, "x" * 9_000, counts=True)
    rest = (0, None, None, None, (), 0, LIFE, None, None, None, None)
    assert codec.decode(second) == (2, {"id": 42}, {"trace": "x"}, "it broke", 1_000, *rest)
    assert codec.decode(third) == (3, {"id": 42}, {"trace": "x"}, "x" * 500, 1_000, *rest)


@pytest.mark.parametrize("headers", [None, {"trace": "x"}])
def test_the_original_of_a_retried_record_is_what_the_producer_made(headers: dict[str, str] | None) -> None:
    first = encode({"id": 42}, headers)
    later = codec.again(codec.again(first, 1_000, "it broke", counts=True), 2_000, "again", counts=True)
    assert codec.original(later) == codec.original(codec.replayed(later)) == codec.original(first) == first


def test_a_record_tells_since_when_its_payload_does_not_fit_until_it_fits() -> None:
    """A failed attempt, a replay and a rerun remove that time from the record."""
    record = codec.encode({"a": 1}, None, LIMIT)
    waiting = codec.again(record, 1_000, "a: is unknown", counts=False, mismatched_ms=1_001)
    found = codec.decode(waiting)
    assert (found.mismatched_ms, found.attempt, found.last_error) == (1_001, 1, "a: is unknown")
    assert codec.decode(record).mismatched_ms is None
    failed = codec.again(waiting, 2_000, "it broke", counts=True)
    assert [codec.decode(one).mismatched_ms for one in (failed, codec.replayed(waiting), codec.original(waiting))] == [
        None,
        None,
        None,
    ]
    assert codec.original(waiting) == record


def test_attempts_beyond_what_a_byte_can_say_are_counted_too() -> None:
    record = raw_record(None, attempt=254)
    for attempt in (255, 256, 257):
        record = codec.again(record, 1, None, counts=True)
        assert (codec.decode(record).attempt, record[7]) == (attempt, 255)
    assert codec.decode(codec.replayed(record)).attempt == 1


def test_a_replayed_record_starts_over_and_says_so() -> None:
    dead = codec.again(encode(1, {"a": "b"}), 1_000, "it broke", counts=True)
    assert codec.decode(codec.replayed(codec.replayed(dead))) == (
        1,
        1,
        {"a": "b"},
        "it broke",
        1_000,
        2,
        None,
        None,
        None,
        (),
        0,
        LIFE,
        None,
        None,
        None,
        None,
    )


def test_options_of_a_newer_release_stay_in_the_record_of_a_retry() -> None:
    assert codec.replayed(raw_record(1, options={"new": 7})) == raw_record(1, options={"new": 7, "r": 1})


# Topics


def test_a_topics_settings_come_back() -> None:
    settings = TopicSettings(shards=7, retention_ms=1_234)
    read = registry_codec.decode_topic(registry_codec.encode_topic(settings))
    assert (read.shards, read.retention_ms) == (7, 1_234)


def test_settings_of_a_newer_release_are_passed_over() -> None:
    read = registry_codec.decode_topic(msgpack.packb({"shards": 2, "retention_ms": 0, "colour": "blue"}))
    assert (read.shards, read.retention_ms) == (2, 0)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\xc1",
        b"\x80\x80",
        b"\x81\xa6shards",
        msgpack.packb(4),
        msgpack.packb({"shards": "4"}),
        msgpack.packb({"shards": 4.0}),
        msgpack.packb({"shards": True}),
        msgpack.packb({"shards": 0}),
        msgpack.packb({"shards": 2**63}),
        msgpack.packb({"draining": [1, 2**40]}),
        msgpack.packb({"draining": ["1"]}),
        msgpack.packb({"draining": 3}),
        msgpack.packb({"paused": 1}),
        msgpack.packb({"max_rate": float("nan")}),
        msgpack.packb({"max_rate": float("inf")}),
        msgpack.packb({"retention_ms": -1}),
        msgpack.packb({"misfire": "later"}),
    ],
)
def test_every_wrong_topic_setting_is_one_kind_of_error(stored: bytes) -> None:
    with pytest.raises(TopicUnreadable):
        registry_codec.decode_topic(stored, "orders")


def test_a_rate_of_another_language_may_be_a_whole_number() -> None:
    assert registry_codec.decode_topic(msgpack.packb({"max_rate": 5})).max_rate == 5


foreign = st.recursive(st.integers(-5, 5) | st.text("abc") | st.none(), st.lists, max_leaves=6)


@given(st.binary(max_size=30) | foreign.map(msgpack.packb))
def test_any_bytes_in_place_of_an_assignment_can_be_read(stored: bytes) -> None:
    registry_codec.decode_posts(stored)


def test_a_foreign_heartbeat_is_passed_over() -> None:
    reply = [b"a", msgpack.packb({"seen_ms": 1}), b"b", b"\xc1", b"c", msgpack.packb(1), b"\xff", msgpack.packb({})]
    reply += [b"d", msgpack.packb({"seen_ms": "now"})]
    assert registry_codec.decode_maps(reply) == {"a": {"seen_ms": 1}}


names = st.text("abc", min_size=1, max_size=3)


@given(st.dictionaries(names, st.lists(st.tuples(names, st.none() | names), min_size=1, max_size=4), max_size=4))
def test_an_assignment_of_shards_comes_back(topics: dict[str, list[tuple[str, str | None]]]) -> None:
    posts = {(topic, n): post for topic, shards in topics.items() for n, post in enumerate(shards)}
    assert registry_codec.decode_posts(registry_codec.encode_posts(posts)) == posts


def test_a_call_with_a_name_makes_the_same_record_each_time() -> None:
    first, again, other = (encode(1, life=codec.life_named(name)) for name in ("call-7", "call-7", "call-8"))
    assert first == again != other


# Attempts


def ran(n: int, error: str | None = "it broke") -> Attempt:
    return Attempt(1_763_000_000_000 + n, n, f"host-{n}", error)


def test_a_record_tells_the_last_ten_attempts() -> None:
    record = encode({"id": 42}, {"trace": "a1"})
    first = record
    for n in range(12):
        record = codec.again(record, 5, "it broke", counts=True, attempt=ran(n))
    found = codec.decode(record)
    assert found.attempts == tuple(ran(n) for n in range(2, 12))
    assert (found.attempt, found.payload, found.headers) == (13, {"id": 42}, {"trace": "a1"})
    assert codec.original(record) == first


def test_an_older_release_passes_attempts_on_that_it_does_not_know() -> None:
    record = codec.again(encode(1), 5, "it broke", counts=True, attempt=ran(1))
    options = msgpack.unpackb(record[18:])  # behind the head and the payload, which is one byte
    older = raw_record(1, 3, {**options, "e": "it broke again", "f": 5})
    assert codec.decode(older).attempts == (ran(1),)
    assert codec.decode(codec.again(older, 5, None, counts=True, attempt=ran(2, None))).attempts == (
        ran(1),
        ran(2, None),
    )


def test_a_buried_record_keeps_its_number_and_a_replayed_one_its_attempts() -> None:
    record = codec.attempted(codec.again(encode(1), 5, "it broke", counts=True, attempt=ran(1)), ran(2))
    assert codec.decode(record).attempt == 2
    assert codec.decode(codec.replayed(record)).attempts == (ran(1), ran(2))


@pytest.mark.parametrize("other", [None, 1, "x", {}, [1], [[]], [[1, 2, 3, 4]], [[-1, 2, "w", None]], [[1, 2, "w"]]])
def test_foreign_bytes_in_place_of_attempts_are_left_out(other: object) -> None:
    assert codec.decode(raw_record(1, 2, {"t": other})).attempts == ()


def test_the_error_of_an_attempt_is_cut_between_characters() -> None:
    assert attempts.cut_error("x" + "é" * 200) == "x" + "é" * 99
    assert attempts.cut_error("short") == "short"


@pytest.mark.parametrize(
    ("foreign", "problem"),
    [
        ({b"a": 1}, "map keys must be strings, not bytes"),
        (msgpack.ExtType(5, b"x"), "is a msgpack ExtType"),
        (msgpack.Timestamp(1), "is a msgpack Timestamp"),
    ],
)
def test_what_msgpack_can_hold_and_other_languages_cannot_read_is_refused_by_its_path(
    foreign: Any, problem: str
) -> None:
    for payload, path in ((foreign, "payload"), ({"key": [0, foreign]}, "payload.key[1]")):
        refused = offence(payload)
        assert refused.field.startswith(path)
        assert problem in str(refused)
    head = encode(None)[:-1]
    assert codec.decode(head + msgpack.packb(foreign)).payload == foreign, "what is stored stays readable"
    assert codec.decode(encode([b"a", "Łódź", 0xC7, {"é": b"b"}])).payload == [b"a", "Łódź", 0xC7, {"é": b"b"}]


@pytest.mark.parametrize("payload", [["Łódź"] + [1] * 10_000, {f"é{n}": n for n in range(5_000)}], ids=["list", "map"])
def test_a_large_payload_is_checked_without_a_call_for_each_value(payload: Any) -> None:
    """Text may hold the bytes that only msgpack's own values begin with; the HTTP server stands still meanwhile."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        encode(payload)
    finally:
        sys.setprofile(before)
    assert calls < 100


def test_the_search_for_a_wrong_value_takes_no_more_memory_than_the_payload() -> None:
    """With the path to each item as text, 50 kB of key and 1,000 items took 50 MB."""
    payload = {"k" * 50_000: [{1}, *([[]] * 1_000)]}
    tracemalloc.start()
    try:
        assert offence(payload).field.endswith("k[0]")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
