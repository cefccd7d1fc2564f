"""Groups and topics that come and go beside those of the run: their removal must leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from random import Random

from loadtest.torture.faults.registry import Steps, fault
from loadtest.torture.scene import Scene
from wheelq import Client, JobSpec
from wheelq.errors import ServerError, TopicNotFound
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls import shard_counts
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import ClientSettings

JOBS = 100
LONGEST_DELAY_S = 3.0


@fault("remove-group")
def remove_group(scene: Scene, random: Random) -> Steps:
    """A group without workers gets the jobs of a topic for a while, and is removed while they flow."""
    # Confirmed, because a failover may bring back a group of whose removal the replica does not know.
    client = Client(scene.arena.control, settings=ClientSettings(durability=scene.arena.durability))
    topic, group = random.choice(scene.topics), f"bystander-{random.getrandbits(32):x}"
    yield from _until_done(lambda: client.make_group(topic, group))
    yield random.uniform(0.5, 3.0)
    yield from _until_done(lambda: client.remove_group(topic, group))
    for info in client.topics():
        for number in range(info.shards if info.name == topic else 0):
            left = scene.arena.control.send(shard_counts.groups(Keys().shard(topic, number)))
            if group in left:
                raise AssertionError(f"group {group} is still there in shard {number} of {topic}")


@fault("remove-topic")
def remove_topic(scene: Scene, random: Random) -> Steps:
    """A separate topic is removed while its jobs fall due."""
    # Confirmed, because a failover may undo a removal of which the replica knows only a part.
    client = Client(scene.arena.control, settings=ClientSettings(durability=scene.arena.durability))
    topic = f"scratch-{random.getrandbits(32):x}"
    specs = [JobSpec(delay=random.uniform(0.0, LONGEST_DELAY_S)) for _ in range(JOBS)]
    yield from _until_done(lambda: client.schedule_many(topic, specs))
    yield random.uniform(0.0, LONGEST_DELAY_S)
    yield from _until_done(lambda: client.remove_topic(topic, force=True))
    if left := [key for key in _keys(Keys().shard(topic, 0)) if scene.arena.control.send(_exists(key))]:
        raise AssertionError(f"of the removed topic {topic} there are still {left}")


def _until_done(act: Callable[[], object]) -> Steps:
    """Call `act` in a thread, and repeat it while other faults make it fail."""
    with ThreadPoolExecutor(1) as thread:
        while True:
            doing = thread.submit(act)
            while not doing.done():
                yield 0.1
            try:
                doing.result()
            except TopicNotFound:
                return  # it was never made, or is removed already
            except ServerError:
                yield 0.5
            else:
                return


def _keys(shard: ShardKeys) -> list[str]:
    return [str(getattr(shard, item.name)) for item in fields(shard)[3:]]  # behind prefix, topic and number


def _exists(key: str) -> Call[bool]:
    return command("EXISTS", key, read=bool, key=key)
