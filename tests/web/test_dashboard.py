"""The dashboard in a real browser: every page, every action by click and by keyboard, and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import redis

from wheelq import Client, JobSpec
from wheelq.base.clock import wall_ms
from wheelq.protocol import codec
from wheelq.protocol.keys import Keys

TAG = "<script>window.hit=1</script>"
MARKUP = "<img src=x onerror=window.hit=1>"
PAGES = (
    "/",
    "/future?span=minute",
    "/future?span=week",
    "/future?topic={topic}",
    "/topics",
    "/topics/{topic}",
    "/jobs",
    "/topics/{topic}/jobs",
    "/topics/{topic}/jobs?state=retrying",
    "/topics/{topic}/jobs?state=done",
    "/topics/{topic}/job?id={id}",
    "/topics/{topic}/bulk?action=cancel",
    "/schedule",
    "/dead",
    "/topics/{topic}/dead",
    "/topics/{topic}/dead/one?dead_id={dead_id}",
    "/topics/{topic}/dead/confirm?action=replay",
    "/recurring",
    "/recurring/edit",
    "/recurring/edit?topic={topic}&name=nightly",
    "/groups",
    "/fleet",
    "/callbacks",
)


class Scene:
    """A server of the dashboard, and a topic with something of everything, all of it with markup in it."""

    def __init__(self, site: str, url: str, topic: str, client: Client, dead_ids: list[str]) -> None:
        self.site = site
        self.url = url
        self.topic = topic
        self.client = client
        self.dead_ids = dead_ids
        self.id = f"job {TAG}"

    def pages(self) -> list[str]:
        """Every page's path."""
        known = {"topic": self.topic, "id": quote(self.id), "dead_id": self.dead_ids[0]}
        return [path.format(**known) for path in PAGES]


def bury(raw: redis.Redis, topic: str, id: str, error: str, group: str = "billing") -> str:
    """A dead job, as a worker's last failure leaves it; returns its `dead_id`."""
    entry: dict[Any, Any] = {
        "id": id,
        "group": group,
        "reason": "failed",
        "error": error,
        "traceback": f"Traceback {MARKUP}",
        "attempt": 5,
        "due": wall_ms(),
        "record": codec.encode({"text": TAG}, {"h": MARKUP}, 10_000),
    }
    return raw.xadd(Keys().shard(topic, 0).dead, entry).decode() + ":0"  # type: ignore[union-attr]


@pytest.fixture
def scene(site: str, url: str, topic: str) -> Iterator[Scene]:
    with Client.connect(url) as client, redis.Redis.from_url(url) as raw:
        client.schedule(topic, {"text": TAG}, delay=3_000, key=f"job {TAG}", headers={"h": MARKUP})
        client.schedule(topic, {"n": 2}, delay=3_100, key="job-2")
        client.schedule(topic, {"n": 3}, delay=3_200, key="job-3")
        client.recurring.put(topic, "nightly", {"text": TAG}, cron="30 2 * * MON-FRI", tz="Europe/Berlin")
        client.make_group(topic, "billing")
        dead = [bury(raw, topic, f"dead-{n}", f"Error {n}: {MARKUP}") for n in range(3)]
        dead.append(bury(raw, topic, "dead-other", "TimeoutError: no answer", "mail"))
        yield Scene(site, url, topic, client, dead)


class Seen:
    """A page, and all that went wrong or elsewhere in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("dialog", lambda dialog: dialog.accept())

    def _hear(self, message: Any) -> None:
        if "status of 422" not in message.text:  # a form with a mistake, which the browser tells
            self.said.append(message.text)


@pytest.fixture
def seen(new_page: Callable[..., Any], scene: Scene) -> Iterator[Seen]:
    """A page that must say nothing on the console, run no markup, and ask nobody but the server."""
    seen = Seen(new_page(viewport={"width": 1280, "height": 900}))
    yield seen
    assert seen.said == []
    assert seen.hosts <= {urlsplit(scene.site).netloc}
    assert seen.page.evaluate("window.hit") is None


@pytest.fixture
def page(seen: Seen) -> Any:
    return seen.page


# What pages show


def test_every_page_loads_and_shows_markup_as_text(page: Any, scene: Scene) -> None:
    with redis.Redis.from_url(scene.url) as raw:
        raw.hset(Keys().topics, MARKUP, b"junk")  # a topic's name as another program might write it
    try:
        for path in scene.pages():
            answer = page.goto(f"{scene.site}{path}")
            assert answer.status == 200, path
            page.wait_for_selector("main")
            assert page.evaluate("window.hit") is None, path
            assert page.locator("main img, main script").count() == 0, path
        page.goto(f"{scene.site}/topics/{scene.topic}/job?id={quote(scene.id)}")
        assert scene.id in page.inner_text("h1")
        assert TAG in page.inner_text("pre")
        page.goto(f"{scene.site}/topics/{scene.topic}/dead")
        assert MARKUP in page.inner_text("main")
        page.goto(scene.site)
        assert MARKUP in page.inner_text("main")
    finally:
        with redis.Redis.from_url(scene.url) as raw:
            raw.hdel(Keys().topics, MARKUP)


def test_a_cron_text_with_markup_is_shown_as_text(page: Any, scene: Scene) -> None:
    page.goto(f"{scene.site}/recurring/edit")
    page.fill("[name=topic]", scene.topic)
    page.fill("[name=name]", "new")
    page.fill("[name=cron]", f"{MARKUP} * * * *")
    with page.expect_response(lambda answer: answer.status == 422):
        page.click("text=Make it")
    assert page.input_value("[name=cron]") == f"{MARKUP} * * * *"
    assert page.locator("main img").count() == 0


def test_live_figures_change_without_a_reload(page: Any, scene: Scene) -> None:
    page.goto(f"{scene.site}/topics/{scene.topic}")
    page.evaluate("window.mark = 1")
    scene.client.schedule_many(scene.topic, [JobSpec({"n": n}, delay=3_000) for n in range(40)])
    page.locator(".tile-value").first.filter(has_text="43").wait_for()
    assert page.evaluate("window.mark") == 1, "it was not loaded again"


def test_a_bar_of_the_future_leads_to_its_jobs(page: Any, scene: Scene) -> None:
    page.goto(f"{scene.site}/future?span=hour&topic={scene.topic}")
    assert "3 jobs due" in page.inner_text(".big")
    bar = page.locator("a.bar").first
    bar.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?state=waiting*")
    assert scene.id in page.inner_text("#jobs")


def test_a_bar_of_all_topics_leads_closer_and_closer(page: Any, scene: Scene) -> None:
    page.goto(f"{scene.site}/future?span=hour")
    page.locator("a.bar").first.click()
    page.wait_for_url("**/future?from=*")
    assert page.locator("a.bar").count() >= 1
    page.locator("a.bar").first.click()
    page.wait_for_url("**/jobs?state=waiting*")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(new_page: Callable[..., Any], scene: Scene, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    scene.client.schedule("t", delay=3_000)  # the shorter a link, the more it must differ from the text beside it
    page, found = new_page(color_scheme=scheme, bypass_csp=True), {}
    for path in scene.pages():
        page.goto(f"{scene.site}{path}")
        violations = axe.Axe().run(page).response["violations"]
        serious = [
            (one["id"], [node["html"][:120] for node in one["nodes"][:3]])
            for one in violations
            if one["impact"] in ("serious", "critical")
        ]
        if serious:
            found[path] = serious
    assert found == {}


def test_on_a_phone_nothing_is_wider_than_the_screen(new_page: Callable[..., Any], scene: Scene) -> None:
    page = new_page(viewport={"width": 390, "height": 844})
    wide = {}
    for path in scene.pages():
        page.goto(f"{scene.site}{path}")
        if (width := page.evaluate("document.documentElement.scrollWidth")) > 390:
            wide[path] = width
    assert wide == {}


PHONE = {"width": 375, "height": 812}


def test_on_a_phone_dead_counts_and_buttons_are_seen_without_scrolling(
    new_page: Callable[..., Any], scene: Scene
) -> None:
    page, topic = new_page(viewport=PHONE), f"/topics/{scene.topic}"
    for path, selector in (
        ("/topics?q=" + scene.topic, f"tr:has-text('{scene.topic}') td[data-label=dead]"),
        (topic, "#shards td[data-label=dead]"),
        (topic, "#groups button:text-is('Remove')"),
        (f"{topic}/dead", "tr:has-text('TimeoutError') button:text-is('Purge')"),
        (f"{topic}/dead", "[data-all=dead_id]"),
        (f"/recurring?topic={scene.topic}", "tr:has-text('nightly') a:text-is('Edit')"),
    ):
        page.goto(f"{scene.site}{path}")
        box = page.locator(selector).first.bounding_box()
        assert box["x"] >= 0, path
        assert box["x"] + box["width"] <= PHONE["width"], path
        for region in page.locator(".scroll").all():
            assert region.evaluate("(one) => one.scrollWidth <= one.clientWidth"), path


def test_on_a_phone_a_finding_is_one_line_until_it_is_opened(new_page: Callable[..., Any], scene: Scene) -> None:
    page, wide = new_page(viewport=PHONE), new_page(viewport={"width": 1280, "height": 900})
    page.goto(scene.site)
    finding = page.locator(".finding", has_text="No scheduler runs")
    explanation = finding.locator(".detail")
    line = page.evaluate("1.5 * parseFloat(getComputedStyle(document.querySelector('.finding h2')).fontSize)")
    for one in page.locator(".finding").all():
        assert one.bounding_box()["height"] < 2.2 * line
    assert not explanation.is_visible()
    finding.locator("summary").click()
    assert explanation.is_visible()
    finding.evaluate("(one) => one.querySelector('h2').append('7')")  # another number than the next answer has
    page.evaluate("refresh()")
    assert explanation.is_visible(), "what was opened stays open"
    wide.goto(scene.site)
    assert wide.locator(".finding .detail").first.is_visible()


def test_purge_does_not_look_like_replay(page: Any, scene: Scene) -> None:
    page.goto(f"{scene.site}/topics/{scene.topic}/dead")
    look = (
        "(one) => { const has = getComputedStyle(one); return [has.color, has.backgroundColor, has.borderTopColor]; }"
    )
    pairs = zip(*(page.locator(f"button:has-text('{name}')").all() for name in ("Replay", "Purge")), strict=True)
    for replay, purge in pairs:
        assert not {*replay.evaluate(look)} & {*purge.evaluate(look)}


def test_no_topic_has_the_colour_of_failure(new_page: Callable[..., Any], scene: Scene) -> None:
    for scheme in ("light", "dark"):
        page = new_page(color_scheme=scheme)
        page.goto(scene.site)
        style = "getComputedStyle(document.documentElement)"
        found = [
            page.evaluate(f"{style}.getPropertyValue('--{name}')") for name in ("bad", *(f"c{n}" for n in range(8)))
        ]
        colours = [bytes.fromhex(colour.strip().removeprefix("#")) for colour in found]
        for colour in colours[1:]:
            assert sum((one - other) ** 2 for one, other in zip(colour, colours[0], strict=True)) ** 0.5 > 60, colour


# Actions


class Hand:
    """Presses a button, by mouse or by keyboard."""

    def __init__(self, page: Any, by: str) -> None:
        self.page = page
        self.by = by

    def press(self, selector: str) -> None:
        """Press it, and wait for the page that follows."""
        target = self.page.locator(selector).first
        with self.page.expect_navigation():
            if self.by == "click":
                target.click()
            else:
                target.focus()
                self.page.keyboard.press("Enter")

    def note(self) -> str:
        """The sentence on the page that follows an action."""
        text: str = self.page.inner_text(".note")
        return text


@pytest.fixture(params=["keyboard", pytest.param("click", marks=pytest.mark.long)])
def hand(request: pytest.FixtureRequest, page: Any) -> Hand:
    return Hand(page, request.param)


def test_a_topic_is_paused_resumed_and_configured(hand: Hand, scene: Scene) -> None:
    page = hand.page
    page.goto(f"{scene.site}/topics/{scene.topic}")
    hand.press("button:text-is('Pause')")
    assert "paused" in hand.note()
    assert _topic(scene).paused
    hand.press("button:text-is('Resume')")
    assert not _topic(scene).paused
    page.fill("[name=max_pending]", "1000")
    hand.press("button:text-is('Change settings')")
    assert hand.note() == "Changed: max_pending."
    assert _topic(scene).max_pending == 1_000
    assert page.input_value("[name=max_pending]") == "1,000"
    assert page.input_value("[name=dead_retention_ms]") == "90d"
    page.fill("[name=dead_retention_ms]", "36h 30min")
    hand.press("button:text-is('Change settings')")
    assert _topic(scene).dead_retention_ms == 131_400_000
    assert page.input_value("[name=dead_retention_ms]") == "1d 12h 30m"
    page.fill("[name=shards]", "2")
    hand.press("button:text-is('Change shards')")
    assert _topic(scene).shards == 2
    hand.press("#groups button:text-is('Remove')")
    assert scene.client.groups(scene.topic) == []


def _topic(scene: Scene) -> Any:
    return next(info for info in scene.client.topics() if info.name == scene.topic).settings


def test_a_job_is_scheduled_moved_run_and_cancelled(hand: Hand, scene: Scene) -> None:
    page = hand.page
    page.goto(f"{scene.site}/schedule?topic={scene.topic}")
    page.fill("[name=delay]", "1h 30min")
    page.fill("[name=payload]", '{"order": 7}')
    page.fill("[name=id]", "order-7")
    hand.press("main button:text-is('Schedule')")
    assert hand.note() == "The job is scheduled."
    before = scene.client.get(scene.topic, "order-7")
    assert before is not None
    assert before.payload == {"order": 7}
    page.fill("[name=delay]", "2d")
    hand.press("button:text-is('Reschedule')")
    after = scene.client.get(scene.topic, "order-7")
    assert after is not None
    assert after.due_ms > before.due_ms + 86_400_000
    hand.press("button:text-is('Run now')")
    assert "ready" in hand.note()
    page.goto(f"{scene.site}/topics/{scene.topic}/job?id=job-2")
    hand.press("button:text-is('Cancel')")
    assert scene.client.get(scene.topic, "job-2") is None


def test_dead_jobs_are_replayed_and_purged_one_some_alike_and_all(hand: Hand, scene: Scene) -> None:
    page, dead = hand.page, f"{scene.site}/topics/{scene.topic}/dead"
    page.goto(dead)
    page.check(f"[value='{scene.dead_ids[0]}']")
    hand.press("button:text-is('Replay chosen')")
    assert hand.note() == "1 job replayed."
    page.check("[data-all=dead_id]")
    assert page.locator("[name=dead_id]:checked").count() == 3
    page.uncheck("[data-all=dead_id]")
    page.goto(f"{dead}/one?dead_id={scene.dead_ids[1]}")
    hand.press("button:text-is('Purge')")
    assert hand.note() == "1 job purged for good."
    assert "2" in page.inner_text(".title .count")
    hand.press("tr:has-text('TimeoutError') button:text-is('Purge')")
    assert hand.note() == "1 job purged for good."
    hand.press("button:text-is('Replay all that match …')")
    assert page.inner_text("h1") == "Replay 1 job?"
    page.fill("[name=rate]", "5")
    hand.press("button:text-is('Replay 1 job')")
    assert hand.note() == "1 job replayed."
    assert "No job of this topic is dead." in page.inner_text("main")


def test_a_recurring_job_is_made_edited_run_paused_and_removed(hand: Hand, scene: Scene) -> None:
    page = hand.page
    page.goto(f"{scene.site}/recurring?topic={scene.topic}")
    assert "at 02:30 on Monday through Friday" in page.inner_text("#recurring")
    hand.press("tr:has-text('nightly') button:text-is('Pause')")
    assert "paused" in page.inner_text("#recurring")
    hand.press("tr:has-text('nightly') button:text-is('Resume')")
    hand.press("tr:has-text('nightly') a:text-is('Edit')")
    page.fill("[name=cron]", "0 9 * * *")
    hand.press("button:text-is('Save')")
    info = scene.client.recurring.get(scene.topic, "nightly")
    assert info is not None
    assert (info.rule.cron, info.payload) == ("0 9 * * *", {"text": TAG})
    page.goto(f"{scene.site}/recurring?topic={scene.topic}")
    hand.press("tr:has-text('nightly') button:text-is('Run now')")
    assert "runs now" in hand.note()
    page.goto(f"{scene.site}/recurring/edit?topic={scene.topic}")
    page.fill("[name=name]", "often")
    page.fill("[name=every]", "5min")
    hand.press("button:text-is('Make it')")
    page.goto(f"{scene.site}/recurring/edit?topic={scene.topic}&name=often")
    hand.press("button:text-is('Remove')")
    assert [one.name for one in scene.client.recurring.list(scene.topic)] == ["nightly"]


def test_waiting_jobs_are_moved_and_cancelled_by_due_range(hand: Hand, scene: Scene) -> None:
    page = hand.page
    page.goto(f"{scene.site}/topics/{scene.topic}/jobs")
    hand.press("button:text-is('Reschedule all of these …')")
    assert page.inner_text("h1") == "Reschedule 3 jobs?"
    page.fill("[name=by]", "1d")
    hand.press("button:text-is('Reschedule 3 jobs')")
    assert hand.note() == "3 jobs rescheduled."
    hand.press("button:text-is('Cancel all of these …')")
    hand.press("button:text-is('Cancel 3 jobs')")
    assert hand.note() == "3 jobs cancelled."
    assert scene.client.waiting(scene.topic).jobs == []


def test_without_script_every_form_works(new_page: Callable[..., Any], scene: Scene) -> None:
    hand = Hand(new_page(java_script_enabled=False), "click")
    hand.page.goto(f"{scene.site}/topics/{scene.topic}")
    hand.press("button:text-is('Pause')")
    assert "Nothing is promoted until it is resumed." in hand.page.inner_text("h1")
    hand.press("a:text-is('Do nothing')")
    assert not _topic(scene).paused
    hand.press("button:text-is('Pause')")
    hand.press("button:text-is('Yes')")
    assert _topic(scene).paused
    hand.page.goto(f"{scene.site}/topics/{scene.topic}/job?id=job-2")
    hand.press("button:text-is('Cancel')")
    hand.press("button:text-is('Yes')")
    assert scene.client.get(scene.topic, "job-2") is None
    hand.page.goto(f"{scene.site}/topics/{scene.topic}/jobs")
    hand.press("button:text-is('Cancel all of these …')")
    hand.press("button:text-is('Cancel 2 jobs')")
    assert hand.note() == "2 jobs cancelled."


def test_a_question_that_is_answered_no_changes_nothing(new_page: Callable[..., Any], scene: Scene) -> None:
    page, answers = new_page(), [False, True]
    page.on("dialog", lambda dialog: dialog.accept() if answers.pop(0) else dialog.dismiss())
    page.goto(f"{scene.site}/topics/{scene.topic}/job?id=job-2")
    page.click("button:text-is('Cancel')")
    assert scene.client.get(scene.topic, "job-2") is not None
    Hand(page, "click").press("button:text-is('Cancel')")
    assert scene.client.get(scene.topic, "job-2") is None
    page.goto(f"{scene.site}/topics/{scene.topic}/dead")
    page.check(f"[value='{scene.dead_ids[0]}']")
    Hand(page, "click").press("button:text-is('Purge chosen …')")
    assert page.inner_text("h1") == "Purge 1 job for good?"
    Hand(page, "click").press("button:text-is('Yes')")
    assert page.inner_text(".note") == "1 job purged for good."


def test_a_hidden_tab_listens_no_longer(page: Any, scene: Scene) -> None:
    with page.expect_response("**/events"):
        page.goto(scene.site)
    page.wait_for_selector("#live.on")
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert page.evaluate("stream") is None
