"""Tests of the shop, in memory: time stands still until a test moves it."""

import shop


def test_an_order_is_closed_after_half_an_hour(wheelq):
    wheelq.add(shop.worker)
    wheelq.client.schedule(shop.close_order.job(42), delay=1800, key="order-42")
    wheelq.advance(minutes=29)
    wheelq.assert_not_ran("orders")
    wheelq.advance(minutes=1)
    wheelq.assert_ran("orders", "order-42", times=1)


def test_a_paid_order_is_not_closed(wheelq):
    wheelq.add(shop.worker)
    wheelq.client.schedule(shop.close_order.job(42), delay=1800, key="order-42")
    wheelq.client.cancel("orders", "order-42")
    wheelq.advance(hours=1)
    wheelq.assert_not_ran("orders")


def test_a_task_is_a_function(capsys):
    shop.remind("Ada")
    assert capsys.readouterr().out == "Ada is reminded\n"
