# Made from wheelq/aio/topics.py by .ci/unasync.py: edit that one.
"""`TopicMethods`: the part of `Client` that is about topics and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from wheelq.model.checks import check_id
from wheelq.model.topic import Group, Span, Topic, TopicChanges, TopicInfo, TopicMinute
from wheelq.producer.confirmation import Confirmation
from wheelq.producer.driver import Driver
from wheelq.producer.groups import Groups
from wheelq.producer.minutes import history
from wheelq.producer.operation import Operation
from wheelq.producer.scheduling import Scheduling
from wheelq.producer.topics import Topics

T = TypeVar("T")


class TopicMethods:
    """Lists, changes, pauses and removes topics and groups."""

    _driver: Driver
    _topics: Topics
    _groups: Groups
    _scheduling: Scheduling

    def set_shards(self, topic: str, shards: int) -> TopicInfo:
        """Change a topic's number of shards, up or down, while jobs wait and run; returns the topic's state.

        Waiting jobs stay in their shards until they have run, and can be looked up there; new jobs use the new number.
        When no old job is left (waiting, running, dead or kept), a scheduler drops the old number, and `max_rate` is
        shared by the new shards alone. This and the changes below are confirmed as the settings' `durability` requires.
        Order by key does not hold between old and new jobs of a key that moves to another shard.
        Raises: TopicNotFound, InvalidInput, NotReplicated (changed, but not confirmed in time).
        """
        return self._change(lambda confirming: self._topics.set_shards(topic, shards, confirming))

    def configure(self, topic: str, **settings: Unpack[TopicChanges]) -> Topic:
        """Change settings of a live topic, or create a new topic with them; returns the topic.

        They have the names and units of `[topic]` in the settings file. Settings for new jobs and for promotion are in
        force when the call returns; workers apply the others within moments. Raises: InvalidInput, NotReplicated.
        """
        return self._change(lambda confirming: self._topics.configure(topic, settings, confirming))

    def pause(self, topic: str) -> Topic:
        """Pause a topic: nothing is promoted until `resume`; returns the topic.

        Jobs can still be scheduled, and wait. Workers finish running jobs, and within moments start no others.
        Raises: TopicNotFound, NotReplicated.
        """
        return self._change(lambda confirming: self._topics.pause(topic, True, confirming))

    def resume(self, topic: str) -> Topic:
        """Resume a paused topic; returns it. Jobs that fell due meanwhile are promoted at once, earliest first.

        Raises: TopicNotFound, NotReplicated.
        """
        return self._change(lambda confirming: self._topics.pause(topic, False, confirming))

    def forecast(self, topic: str) -> list[Span]:
        """Returns how many waiting jobs are due already, within a second, ten, a minute … a week, and later.

        Each span begins where the previous one ends. Cheap for any number of jobs. Raises: TopicNotFound.
        """
        return self._driver.run(self._topics.forecast(topic))

    def history(self, topic: str, hours: int = 24) -> list[TopicMinute]:
        """Returns what happened in each minute of the last `hours` (1 to 72): scheduled, promoted, done, and so on.

        Minutes in which nothing happened are left out. The running minute is not there yet, and a minute of a topic
        with little to do may appear 80 seconds late. While no scheduler runs, nothing is written down.
        Raises: InvalidInput, TopicNotFound.
        """
        return self._driver.run(history(self._topics, topic, hours))

    def topics(self) -> list[TopicInfo]:
        """Returns every topic with its job counts, by name."""
        return self._driver.run(self._topics.list())

    def make_group(self, topic: str, group: str) -> None:
        """Create a group that gets every job of the topic due from now on, before any of its workers runs.

        A worker creates its group when it starts; jobs that all other groups have finished before that are gone.
        """
        self._driver.run(self._topics.make_group(topic, check_id(group, "group")))

    def groups(self, topic: str) -> list[Group]:
        """Returns the groups of a topic, by name: how far behind each is, and its workers. Raises: TopicNotFound."""
        return self._driver.run(self._groups.list(topic))

    def remove_group(self, topic: str, group: str, *, force: bool = False) -> bool:
        """Remove a group with its unread, running, retrying and dead jobs in the topic.

        Returns when nothing of the group is left in any shard; False if there was nothing. The jobs of other groups
        stay, and ids that were taken only because of this group are free. The call may be repeated. Workers of the
        group that still run (`force`) log this and do not create it again; a worker started later does. Workers of
        releases without `remove_group` create it again at once: stop them first.

        Raises: InUse (the group has live workers, which it names), TopicNotFound, InvalidInput.
        """
        return self._change(lambda confirming: self._groups.remove(topic, group, force, confirming))

    def remove_topic(self, topic: str, *, force: bool = False) -> None:
        """Remove a topic with everything in it: groups, dead jobs, recurring and finished jobs, settings.

        Returns when nothing of it is left, which takes as long as producers cache a topic (`topics_ttl_ms`, 10 s).
        Until then their calls are refused (`BeingRemoved`); a job scheduled later creates the topic again. The call may
        be repeated, and must be if it was interrupted. Raises: InUse (unless `force`: live workers, or jobs that wait,
        run or recur), TopicNotFound.
        """
        self._change(lambda confirming: self._groups.remove_topic(topic, force, confirming))

    def _change(self, make: Callable[[Confirmation[Any] | None], Operation[T]]) -> T:
        return self._driver.run(self._scheduling.change(make))
