"""A wheelq in memory whose time is in the test's hands.

    def test_an_unpaid_order_is_closed(wheelq):              def test(…): WheelqTest, fixture `wheelq`
        wheelq.add(shop.worker)                              async def test(…): AsyncWheelqTest, fixture `async_wheelq`
        shop.place_order(42)                                 → await async_wheelq.advance(minutes=30)
        wheelq.assert_scheduled("orders", "order-42", due_in=1800)
        wheelq.advance(minutes=30)
        wheelq.assert_ran("orders", "order-42")

Nothing is mocked but the server and its clock: the real clients write to an in-memory server with the real scripts, the
real leader promotes, the real worker reads, runs handlers, retries and buries. Time stands still between two calls;
`advance` goes from one due time to the next and runs at each what is due then, so that a week takes milliseconds.

    kit         `WheelqTest`, `AsyncWheelqTest`: one wheelq under test        asserts   what they can be asked
    engine      moves the time on, and lets everything happen                 leading   makes, promotes
    observed    what a test sees                                              plugin    the pytest fixtures

Code under test that connects by itself finds the server by WHEELQ_URL, which is set while the test runs; code that
takes its URL from settings of its own is given `wheelq.url`. A module that makes its worker or client when it is
imported needs the variable before that: in conftest.py, `os.environ["WHEELQ_URL"] = wheelq.testing.URL`.

Not here: what several machines do to each other (take-over, recovery, renewal of long jobs); what a handler takes in
real time is real. Needs the extra `testing`.
"""

from __future__ import annotations

from wheelq.testing.kit import URL, AsyncWheelqTest, WheelqTest
from wheelq.testing.observed import Run, Waiting

__all__ = ["URL", "AsyncWheelqTest", "Run", "Waiting", "WheelqTest"]
