"""Bundles over HTTP: looked up, cancelled, counted by leases, and shown on the page of a member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.http.conftest import Give, Http
from tests.waiting import until
from wheelq import AsyncClient, Continuation, JobSpec

GROUP = "/v1/topics/orders/groups/billing"


async def bundle_of(client: AsyncClient, count: int = 2, due_in: float = 600, **given: Any) -> str:
    specs = [JobSpec(n, delay=due_in, key=f"job-{n}") for n in range(count)]
    await client.configure("bills", keep_done_ms=60_000)
    return (await client.schedule_many("orders", specs, then=Continuation("bills", 1, **given))).bundle or ""


async def test_a_bundle_is_looked_up_and_cancelled(http: Http, aclient: AsyncClient) -> None:
    bundle = await bundle_of(aclient)
    path = f"/v1/bundles/{bundle}"
    found = (await http.get(path)).json()
    numbers = {"members": 2, "done": 0, "dead": 0, "cancelled": 0, "left": 2}
    assert found.items() >= numbers.items()
    assert (found["id"], found["state"], found["when"]) == (bundle, "closed", "all_done")
    assert (found["topics"], found["follower_topic"], found["dead_jobs"]) == (["orders"], "bills", [])
    assert (await http.delete(path)).json() == {"cancelled": 2}
    assert (await http.delete(path)).json() == {"cancelled": 0}
    found = (await http.get(path)).json()
    assert (found["state"], found["cancelled"], found["left"]) == ("cancelled", 2, 0)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_bundle_that_is_not_known(http: Http, method: str) -> None:
    answer = await http.request(method, "/v1/bundles/bills:01H")
    assert (answer.status_code, answer.json()["type"].rpartition("#")[2]) == (404, "bundle-not-found")


async def test_leases_count(http: Http, aclient: AsyncClient) -> None:
    bundle = await bundle_of(aclient, 3, 0)
    jobs = (await http.post(f"{GROUP}/lease", json={"count": 3})).json()["jobs"]
    await http.post(f"{GROUP}/ack", json={"handles": [job["handle"] for job in jobs[:2]]})
    await http.post(f"{GROUP}/fail", json={"handles": [jobs[2]["handle"]], "bury": True, "error": "no"})
    found = (await http.get(f"/v1/bundles/{bundle}")).json()
    assert (found["done"], found["dead"], found["left"]) == (2, 1, 0)
    [dead] = found["dead_jobs"]
    assert (dead["topic"], dead["id"], dead["error"]) == ("orders", jobs[2]["id"], "no")
    assert (await aclient.waiting("bills")).jobs == []


async def test_a_handle_that_hides_a_bundle_does_nothing(http: Http, aclient: AsyncClient) -> None:
    """Otherwise the member would end without being counted, and the bundle would never end."""
    bundle = await bundle_of(aclient, 1, 0)
    [job] = (await http.post(f"{GROUP}/lease", json={})).json()["jobs"]
    for handle, left in ((job["handle"].removesuffix(".b"), 1), (job["handle"], 0)):
        await http.post(f"{GROUP}/ack", json={"handles": [handle]})
        assert (await http.get(f"/v1/bundles/{bundle}")).json()["left"] == left


async def test_the_last_lease_makes_what_follows(http: Http, aclient: AsyncClient) -> None:
    await bundle_of(aclient, 2, 0, key="bill", delay=600)
    jobs = (await http.post(f"{GROUP}/lease", json={"count": 2})).json()["jobs"]
    await http.post(f"{GROUP}/ack", json={"handles": [jobs[0]["handle"]]})
    assert (await aclient.waiting("bills")).jobs == []
    for _ in range(2):
        await http.post(f"{GROUP}/ack", json={"handles": [job["handle"] for job in jobs]})

    async def is_made() -> bool:
        return [job.id for job in (await aclient.waiting("bills")).jobs] == ["bill"]

    await until(is_made)


async def test_a_key_sees_and_cancels_what_it_may(serve: Callable[..., Any], give: Give, aclient: AsyncClient) -> None:
    bundle = await bundle_of(aclient)
    path = f"/v1/bundles/{bundle}"
    for scopes, get, delete in [
        (("read:orders", "change:orders"), 403, 403),
        (("read:bills", "change:bills"), 200, 403),
        (("read:*", "change:*"), 200, 200),
    ]:
        http = await serve(access="keys", token=(await give(*scopes))[1])
        if scopes[0] != "read:bills":
            shown = (await http.get("/v1/topics/orders/jobs/job-0")).json()["bundle"]
            assert shown == (bundle if scopes[0] == "read:*" else None), "it begins with the topic of what follows"
        answer = await http.get(path)
        assert answer.status_code == get
        if get == 200:
            assert answer.json()["topics"] == (["orders"] if "read:*" in scopes else []), "only those that it may read"
        assert (await http.delete(path)).status_code == delete


async def test_the_page_of_a_member_shows_its_bundle(http: Http, aclient: AsyncClient) -> None:
    bundle = await bundle_of(aclient)
    page = (await http.get("/topics/orders/job", params={"id": "job-0"})).text
    assert bundle in page
    assert "When all are done" in page
    await aclient.schedule("orders", delay=600, key="other")
    assert "Bundle" not in (await http.get("/topics/orders/job", params={"id": "other"})).text
    assert (await http.get("/v1/topics/orders/jobs/job-0")).json()["bundle"] == bundle
