"""The dashboard with many jobs: no page reads all of them, and open tabs cost little."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
import redis.asyncio

from loadtest.watchers import watch
from tests.http.conftest import Counting, Http
from tests.transports import ALWAYS
from wheelq import AsyncClient, JobSpec, Settings
from wheelq.base.clock import wall_ms
from wheelq.protocol import codec
from wheelq.protocol.keys import Keys

SLOWEST_S = 1.5
"""No page takes longer, with the whole population."""


class Population(NamedTuple):
    """How much there is."""

    topics: int
    waiting: int
    dead: int


SMALL = Population(50, 20_000, 3_000)
WHOLE = Population(200, 1_000_000, 50_000)
PAGES = (
    "/",
    "/future?span=minute",
    "/future?span=hour",
    "/future?span=week",
    "/future?topic=busy",
    "/topics",
    "/topics/busy",
    "/jobs",
    "/topics/busy/jobs",
    "/topics/busy/jobs?state=retrying",
    "/topics/busy/jobs?state=ready",
    "/topics/busy/jobs?state=done",
    "/topics/busy/jobs?state=dead&error=nothing",
    "/topics/busy/bulk?action=cancel",
    "/topics/busy/dead",
    "/topics/busy/dead/confirm?action=purge&reason=failed",
    "/dead",
    "/recurring",
    "/groups",
    "/fleet",
    "/callbacks",
    "/schedule",
)


async def populate(client: AsyncClient, raw: redis.asyncio.Redis, prefix: str, wanted: Population) -> None:
    """Most of the jobs are in one topic; all dead ones are."""
    others = wanted.topics - 1
    each = wanted.waiting // 10 // others
    for number in range(others):
        await client.schedule_many(f"topic-{number}", [JobSpec(n, delay=600 + 37 * n) for n in range(each)])
    left = wanted.waiting - each * others
    await client.schedule_many("busy", (JobSpec({"n": n}, delay=600 + n % 600_000) for n in range(left)))
    record, dead = codec.encode({"x": "y" * 200}, {}, 10_000), Keys(prefix).shard("busy", 0).dead
    for first in range(0, wanted.dead, 1_000):
        pipe = raw.pipeline(transaction=False)
        for n in range(first, first + 1_000):
            told = {"id": f"dead-{n}", "group": "g", "reason": "failed", "error": f"Error {n % 7}: code {n}"}
            pipe.xadd(dead, {**told, "traceback": "t" * 500, "attempt": 5, "due": wall_ms(), "record": record})
        await pipe.execute()


@pytest.fixture
async def raw(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(redis.asyncio.Redis.from_url(url))


async def timed(http: Http, path: str) -> float:
    began = time.perf_counter()
    answer = await http.get(path)
    assert answer.status_code == 200, path
    return time.perf_counter() - began


async def test_every_page_answers_with_many_topics_and_jobs(
    serve: Callable[..., Any], aclient: AsyncClient, raw: redis.asyncio.Redis, settings: Settings
) -> None:
    await populate(aclient, raw, settings.prefix, SMALL)
    http = await serve()
    for path in PAGES:
        await timed(http, path)
    page = (await http.get("/topics/busy/dead")).text
    assert "Among the newest 2,000 of 3,000." in page
    assert 'data-label="jobs">2,000</td>' in page, "their errors differ only in numbers"


async def test_a_first_overview_writes_few_batches_however_many_topics_there_are(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    """The look, the checkup, what is due next, and the last two hours tell of each shard."""
    for number in range(SMALL.topics):
        await aclient.schedule(f"topic-{number}", delay=60)
    shards = sum(info.settings.all_shards for info in await aclient.topics())
    sent = Counting(times=ALWAYS)
    http = await serve(sent)
    await timed(http, "/")
    assert shards == 2 * SMALL.topics
    assert sent.met < shards


async def test_a_topic_without_jobs_in_a_window_is_not_asked_for_it(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    await aclient.schedule_many("far", [JobSpec(n, delay=7_200 + n) for n in range(3)])
    asked = Counting("forecast", times=ALWAYS)
    http = await serve(asked)
    assert "3 later" in (await http.get("/future?span=hour")).text
    assert asked.met == 0
    assert "3 jobs due" in re.sub("<[^>]+>", "", (await http.get("/future?span=day")).text)
    assert asked.met == 1


@pytest.mark.soak
def test_five_open_pages_and_a_scrape_each_second_cost_little() -> None:
    found = watch(topics=200, streams=5, seconds=20)
    assert found.missed == [], str(found)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
async def test_every_page_answers_at_once_with_a_million_jobs(
    serve: Callable[..., Any], aclient: AsyncClient, raw: redis.asyncio.Redis, settings: Settings
) -> None:
    await populate(aclient, raw, settings.prefix, WHOLE)
    http = await serve()
    taken = {path: min([await timed(http, path) for _ in range(2)]) for path in PAGES}
    first = await timed(await serve(), "/")  # nothing is remembered yet
    print("first", round(first, 3), {path: round(s, 3) for path, s in taken.items()})
    assert {path: s for path, s in {**taken, "first": first}.items() if s > SLOWEST_S} == {}
