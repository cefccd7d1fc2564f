"""A shop: an order that nobody pays is closed after half an hour."""

from wheelq import Client, Retry, Worker

worker = Worker.connect()
client = Client.connect()


@worker.task("orders", retry=Retry(max_attempts=5), timeout=30)  # its parameters are the payload of its jobs
async def close_order(order_id: int, reason: str = "unpaid") -> None:
    print(f"order {order_id} is closed: {reason}", flush=True)


@worker.task("reminders")  # a plain function runs in a thread
def remind(customer: str) -> None:
    print(f"{customer} is reminded", flush=True)


def place_order(order_id: int, customer: str) -> None:
    """Close the order in half an hour, unless it is paid; remind the customer before that."""
    client.schedule(close_order.job(order_id), delay=1800, key=f"order-{order_id}")
    client.schedule(remind.job(customer), delay=1200, key=f"remind-{order_id}")


def pay_order(order_id: int) -> None:
    """Cancel what `place_order` scheduled."""
    client.cancel("orders", f"order-{order_id}")
    client.cancel("reminders", f"remind-{order_id}")
