"""wheelq in memory, with a clock that the test moves.

    def test_an_unpaid_order_is_closed(wheelq):              def test(…): WheelqTest, fixture `wheelq`
        wheelq.add(shop.worker)                              async def test(…): AsyncWheelqTest, fixture `async_wheelq`
        shop.place_order(42)                                 → await async_wheelq.advance(minutes=30)
        wheelq.assert_scheduled("orders", "order-42", due_in=1800)
        wheelq.advance(minutes=30)
        wheelq.assert_ran("orders", "order-42")

Only the server and its clock are fakes: the real clients write to an in-memory server with the real scripts, the real
leader promotes, and the real worker reads, runs handlers, retries and buries. Time stands still between two calls;
`advance` goes from one due time to the next and runs the jobs due at each, so a week takes milliseconds.

    kit         `WheelqTest`, `AsyncWheelqTest`: one wheelq under test, and their assertions
    engine      advances time and runs the jobs that fall due                 leading   makes occurrences, promotes
    observed    the jobs and runs that a test sees                            plugin    the pytest fixtures
    locust      load tests of your own topics with Locust (extra `locust`)    limits    limits for their figures

Code under test that connects by itself finds the server by WHEELQ_URL, which is set while the test runs; pass
`wheelq.url` to code that has settings of its own. A module may create its worker or client at import, also while
WHEELQ_URL names a real server: the variable is read at their first use.

Not simulated: interaction between machines (take-over, recovery, renewal of long jobs), and the real time that a
handler takes. Needs the extra `testing`.
"""

from wheelq.testing.kit import URL, AsyncWheelqTest, WheelqTest
from wheelq.testing.observed import Run, Waiting

__all__ = ["URL", "AsyncWheelqTest", "Run", "Waiting", "WheelqTest"]
