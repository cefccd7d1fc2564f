"""Takes pictures of the dashboard in a browser, for a shop with jobs of many kinds, a scheduler and a worker.

python -m loadtest.pictures                     writes wheelq/guide/images/dashboard.png, the picture of the README
python -m loadtest.pictures --all DIRECTORY     every page, at desktop and phone width, light and dark
"""

from __future__ import annotations

import asyncio
import math
import random
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.command import parser
from wheelq import AsyncClient, Bury, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.server.run import HttpServer
from wheelq.settings import ServerSettings

PICTURE = Path(__file__).parents[1] / "wheelq" / "guide" / "images" / "dashboard.png"
PICTURE_BYTES = 150_000
SETTLE_S = 12.0
"""How long the shop runs before the first picture: rates need two looks."""


class Kind(NamedTuple):
    """One kind of job of the shop."""

    topic: str
    jobs: int
    about_s: float
    """When most of them are due, from now."""
    spread_s: float


KINDS = (
    Kind("orders.close", 9_000, 1_800, 700),
    Kind("orders.close", 1_500, 60, 45),
    Kind("mail.welcome", 2_600, 900, 500),
    Kind("payments.retry", 1_400, 2_700, 600),
    Kind("reminders", 2_200, 2_400, 1_400),
    Kind("reminders", 12_000, 40_000, 20_000),
    Kind("reports", 900, 3_300, 90),
    Kind("coupons.expire", 30_000, 200_000, 120_000),
    Kind("webhooks", 1_200, 500, 260),
    Kind("cache.refresh", 800, 1_500, 1_000),
)
PAGES = {
    "overview": "/",
    "future": "/future?span=hour",
    "future-minute": "/future?span=minute",
    "future-week": "/future?span=week",
    "future-topic": "/future?topic=orders.close",
    "topics": "/topics",
    "topic": "/topics/orders.close",
    "jobs": "/topics/orders.close/jobs",
    "done": "/topics/orders.close/jobs?state=done",
    "job": "/topics/payments.retry/job?id=payment-1",
    "dead": "/topics/webhooks/dead",
    "confirm": "/topics/webhooks/dead/confirm?action=replay",
    "recurring": "/recurring",
    "recurring-form": "/recurring/edit?topic=reports&name=nightly",
    "groups": "/groups",
    "fleet": "/fleet",
    "callbacks": "/callbacks",
    "schedule": "/schedule",
    "find": "/jobs",
}


async def fill(client: AsyncClient) -> None:
    """Schedule the shop's jobs; the same ones each time."""
    draw = random.Random(7)
    for kind in KINDS:
        delays = (abs(draw.gauss(kind.about_s, kind.spread_s)) + 20 for _ in range(kind.jobs))
        specs = [JobSpec({"to": n, "by": "shop"}, delay=math.ceil(delay)) for n, delay in enumerate(delays)]
        await client.schedule_many(kind.topic, specs)
    await client.configure("orders.close", keep_done_ms=3_600_000)
    await client.schedule("payments.retry", {"amount": 42.5, "card": "visa"}, delay=0, key="payment-1")
    await client.schedule_many("webhooks", [JobSpec({"to": n}, delay=0, key=f"hook-{n}") for n in range(60)])
    for name, rule in {
        "nightly": {"cron": "30 2 * * MON-FRI", "tz": "Europe/Berlin"},
        "monthly": {"cron": "0 9 1 * *", "tz": "America/New_York"},
        "heartbeat": {"every": timedelta(minutes=5)},
    }.items():
        await client.recurring.put("reports", name, {"kind": name}, **rule)  # type: ignore[arg-type]
    await client.recurring.pause("reports", "monthly")


def make_worker(url: str, settings: Settings) -> Worker:
    """The shop's worker: most of its handlers succeed."""
    worker = Worker.connect(url, group="shop", settings=settings)

    async def work(job: Job) -> None:
        await asyncio.sleep(0.02)

    for topic in sorted({kind.topic for kind in KINDS} - {"webhooks", "payments.retry"}):
        worker.handler(topic)(work)

    @worker.handler("webhooks", retry=Retry(max_attempts=1))
    async def call(job: Job) -> None:
        if job.payload["to"] % 5 == 0:
            raise Bury(f"receiver {job.payload['to']} answered 410 Gone")
        raise TimeoutError(f"no answer from receiver {job.payload['to']} within 10 s")

    @worker.handler("payments.retry", retry=Retry(delays=[2, 3, 3_600]))
    async def pay(job: Job) -> None:
        raise ConnectionError("the bank does not answer")

    return worker


@asynccontextmanager
async def shop(settings: Settings | None = None) -> AsyncIterator[str]:
    """Runs the whole shop in this process; yields the dashboard's address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = ServerSettings(port=port, environment="demo shop")
    with EmbeddedServer(appendonly=False) as redis:
        own = settings or Settings(server=server)
        async with AsyncClient.connect(redis.url, own) as client:
            await fill(client)
        scheduler, worker = Scheduler.connect(redis.url, own), make_worker(redis.url, own)
        http = HttpServer.connect(redis.url, own)
        running = [asyncio.create_task(part) for part in (scheduler.run(), worker.run(), http.listen())]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            http.stop()
            worker.stop()
            scheduler.stop()
            await asyncio.gather(*running, return_exceptions=True)


async def take(directory: Path | None) -> None:
    """Take the pictures."""
    from playwright.async_api import async_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    async with shop() as site, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        first = await browser.new_page()
        await first.goto(site)  # the server looks while somebody does
        await asyncio.sleep(SETTLE_S)
        if directory is None:
            await _take_one(browser, site)
        else:
            for scheme in ("light", "dark"):
                for device, width, height in (("desktop", 1280, 900), ("phone", 390, 844)):
                    await _take_all(browser, site, directory, f"{device}-{scheme}", scheme, width, height)
        await browser.close()


async def _take_one(browser: Any, site: str) -> None:
    page = await browser.new_page(viewport={"width": 1240, "height": 860}, color_scheme="light")
    await page.goto(f"{site}/future?span=hour")
    PICTURE.parent.mkdir(exist_ok=True)
    await page.screenshot(path=PICTURE)
    size = PICTURE.stat().st_size
    print(f"{PICTURE}: {size:,} bytes")
    if size > PICTURE_BYTES:
        raise SystemExit(f"the picture must be smaller than {PICTURE_BYTES:,} bytes")


async def _take_all(
    browser: Any, site: str, directory: Path, suffix: str, scheme: str, width: int, height: int
) -> None:
    page = await browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    for name, path in PAGES.items():
        await page.goto(f"{site}{path}")
        await page.screenshot(path=directory / f"{name}-{suffix}.png", full_page=True)
    await page.close()


def main() -> None:
    """Read the options, and take the pictures."""
    arguments = parser("pictures", __doc__)
    arguments.add_argument(
        "--all", type=Path, metavar="DIRECTORY", help="every page, in both widths and colour schemes"
    )
    directory: Path | None = arguments.parse_args().all
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(directory))


if __name__ == "__main__":
    main()
