"""`Backlog`: no shard that may hold something is forgotten, and none is asked that holds nothing."""

from __future__ import annotations

from wheelq.model.topic import Topic
from wheelq.protocol.keys import Keys
from wheelq.worker.delivery.held import ServedShard
from wheelq.worker.lanes.backlog import Backlog

A, B, C = (ServedShard(Keys().shard("t", n), Topic()) for n in range(3))


def test_a_new_shard_is_read_and_then_listened_to() -> None:
    backlog = Backlog()
    backlog.follow([A, B])
    assert backlog.unread(10) == [A, B]
    backlog.was_read(A, "1-0")
    assert backlog.unread(10) == [B]
    assert backlog.listening() == ([A], [(A.keys, "1-0")])
    backlog.came([A])
    assert backlog.unread(1) == [B]
    assert backlog.unread(10) == [B, A]
    assert backlog.listening() == ([], [])


def test_a_shard_that_may_hold_more_goes_to_the_end_of_the_queue() -> None:
    backlog = Backlog()
    backlog.follow([A, B])
    backlog.was_read(A, "")
    assert backlog.unread(10) == [B, A]


def test_following_others_keeps_what_is_known() -> None:
    backlog = Backlog()
    backlog.follow([A, B])
    backlog.was_read(A, "1-0")
    backlog.was_read(B, "2-0")
    backlog.follow([B, C])
    assert backlog.unread(10) == [C]
    assert backlog.listening()[0] == [B]
    backlog.was_read(A, "3-0")  # was under way
    assert backlog.listening()[0] == [B]


def test_all_shards_are_read_again_when_in_doubt() -> None:
    backlog = Backlog()
    backlog.follow([A, B, C])
    backlog.was_read(B, "1-0")
    backlog.doubt()
    assert backlog.unread(10) == [A, C, B]
