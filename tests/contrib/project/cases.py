"""The cases of Django's own tests of task backends (tests/tasks of its source; its package ships none), on wheelq's.

Run by test_django as `python -m django test project.cases`, with a worker in another process.
"""
# ruff: noqa: DTZ005, PT009, PT027, RUF012  (no pytest in the environments that run it; what Django refuses)

import asyncio
import dataclasses
import sys
import time
from datetime import datetime, timedelta
from io import StringIO

from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.utils import timezone

from project.settings import WHEELQ
from project.shop import tasks
from wheelq import Retry, Worker
from wheelq.contrib.django.backend import WheelqBackend
from wheelq.contrib.django.results import error_of
from wheelq.contrib.django.tasks import (
    InvalidTaskError,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)

LONG = 60
TaskResultMismatch = vars(__import__(TaskResultDoesNotExist.__module__, fromlist=["_"]))["TaskResultMismatch"]


def finished(result):
    """The result once it is finished."""
    deadline = time.monotonic() + LONG
    while not result.is_finished:
        assert time.monotonic() < deadline, result
        time.sleep(0.02)
        result.refresh()
    return result


def audit(*results):
    """Run a worker of the group audit until it has buried these tasks."""
    worker = Worker.connect(group="audit")
    left = {result.id for result in results}

    @worker.handler("audited", retry=Retry(max_attempts=1))
    def refuse(job):
        left.discard(f"audited:{job.id}")
        if not left:
            worker.stop()
        raise RuntimeError("the audit log is away")

    asyncio.run(worker.run())


class BackendCases(SimpleTestCase):
    def test_using_correct_backend(self):
        backend = task_backends["default"]
        self.assertIsInstance(backend, WheelqBackend)
        self.assertEqual((backend.alias, backend.options), ("default", {}))
        self.assertIs(tasks.add.get_backend(), backend)
        self.assertEqual(tasks.fail_twice.get_backend().alias, "patient")

    def test_enqueue_task(self):
        for task, args, kwargs in ((tasks.add, [1], {"b": 3}), (tasks.send, ["anna"], {})):
            for enqueue in (task.enqueue, async_to_sync(task.aenqueue)):
                with self.subTest(task):
                    result = enqueue(*args, **kwargs)
                    self.assertEqual((result.status, result.is_finished), (TaskResultStatus.READY, False))
                    self.assertIsNotNone(result.enqueued_at)
                    with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
                        _ = result.return_value
                    finished(result)
                    self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
                    self.assertIsNotNone(result.last_attempted_at)
                    self.assertGreaterEqual(result.started_at, result.enqueued_at - timedelta(seconds=1))
                    self.assertGreaterEqual(result.finished_at, result.started_at)
                    self.assertEqual((result.task, result.args, result.kwargs), (task, args, kwargs))
                    self.assertEqual((result.attempts, result.errors), (1, []))

    def test_catches_exception(self):
        for task, exception, message in (
            (tasks.fail, ValueError, "no such customer"),
            (tasks.leave, SystemExit, "the task leaves"),
            (tasks.complex_exception, ValueError, 'ValueError("This task failed")'),
        ):
            with self.subTest(task):
                result = finished(task.enqueue())
                self.assertEqual(result.status, TaskResultStatus.FAILED)
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    _ = result.return_value
                self.assertGreaterEqual(result.finished_at, result.started_at)
                [error] = result.errors
                self.assertIs(error.exception_class, exception)
                self.assertIn(message, error.traceback)
                self.assertTrue(error.traceback.strip().rpartition("\n")[2].startswith(exception.__name__))

    def test_the_class_of_an_error_is_named_whatever_its_text(self):
        for how, path in {
            "lines": "builtins.LookupError",
            "note": "builtins.LookupError",
            "nested": "project.shop.tasks.Stock.Empty",
            "group": "builtins.ExceptionGroup",
            "local": "builtins.Exception",
            "locked": "wheelq.model.retry.RetryAfter",
        }.items():
            with self.subTest(how):
                result = finished(tasks.fail_as.enqueue(how))
                self.assertEqual([error.exception_class_path for error in result.errors], [path])
                self.assertEqual(tasks.finished_signals(result.id), [f"FAILED {path}"])

    def test_the_line_of_an_error_names_a_class_only_if_it_is_loaded(self):
        for line, path in {
            "OSError: try 1": "builtins.OSError",
            "account is locked": "builtins.Exception",
            "its grace of 50 ms has passed, and it is 512 ms late": "builtins.Exception",
            "api.example.com: away": "builtins.Exception",
            "this.zen: beautiful": "builtins.Exception",
            "": "builtins.Exception",
        }.items():
            with self.subTest(line):
                self.assertEqual(error_of(line).exception_class_path, path)
        self.assertNotIn("this", sys.modules)

    def test_complex_return_value(self):
        result = finished(tasks.unserialisable.enqueue())
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertIs(result.errors[0].exception_class, TypeError)

    def test_a_value_that_cannot_be_kept_fails_the_task(self):
        self.assertEqual(len(finished(tasks.repeat.enqueue("x", 65_000)).return_value), 65_000)
        for args, problem in {
            ("x", 70_000): "the limit is 65,536; ",
            ("y", 70_000): "raise result_max_bytes: wheelq configure default --result-max-bytes 70005",
            (2**62, 4): "the return value cannot be kept: 18446744073709551616 does not fit",
        }.items():
            with self.subTest(args):
                result = finished(tasks.repeat.enqueue(*args))
                self.assertEqual(result.status, TaskResultStatus.FAILED)
                self.assertIn(problem, result.errors[-1].traceback)

    def test_context(self):
        result = finished(tasks.look.enqueue())
        self.assertEqual(result.return_value, [result.id, 1])

    def test_get_result(self):
        later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1))
        result = later.enqueue(1)
        self.assertEqual(dataclasses.asdict(tasks.add.get_result(result.id))["id"], result.id)
        found = async_to_sync(tasks.add.aget_result)(result.id)
        self.assertEqual((found.id, found.args, found.enqueued_at), (result.id, [1], result.enqueued_at))

    def test_refresh_result_that_has_not_changed(self):
        result = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        for refresh in (result.refresh, async_to_sync(result.arefresh)):
            before = dataclasses.asdict(result)
            refresh()
            self.assertEqual({**dataclasses.asdict(result), "task": None}, {**before, "task": None})

    def test_get_missing_result(self):
        for id in ("123", "default:123", "nowhere:123"):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.add.get_result(id)
            with self.assertRaises(TaskResultDoesNotExist):
                async_to_sync(tasks.add.aget_result)(id)

    def test_get_incorrect_result(self):
        result = tasks.send.enqueue("anna")
        with self.assertRaisesMessage(TaskResultMismatch, "Task does not match"):
            tasks.add.get_result(result.id)
        with self.assertRaisesMessage(TaskResultMismatch, "Task does not match"):
            async_to_sync(tasks.add.aget_result)(result.id)

    def test_backend_does_not_support_priority(self):
        with self.assertRaisesMessage(InvalidTaskError, "Backend does not support setting priority of tasks."):
            tasks.add.using(priority=10)

    def test_naive_datetime(self):
        with self.assertRaisesMessage(InvalidTaskError, "run_after must be an aware datetime."):
            tasks.add.using(run_after=datetime.now())

    def test_enqueue_with_invalid_argument(self):
        for enqueue in (tasks.add.enqueue, async_to_sync(tasks.add.aenqueue)):
            with self.assertRaisesMessage(TypeError, "Unsupported type"):
                enqueue(datetime.now())

    def test_unknown_queue_name(self):
        with self.assertRaisesMessage(InvalidTaskError, "Queue 'queue-2' is not valid for backend"):
            tasks.add.using(queue_name="queue-2")

    def test_validate_on_enqueue(self):
        mailing = tasks.add.using(queue_name="mail")
        with override_settings(TASKS={"default": {"BACKEND": WHEELQ, "QUEUES": ["queue-1"]}}):
            for enqueue in (mailing.enqueue, async_to_sync(mailing.aenqueue)):
                with self.assertRaisesMessage(InvalidTaskError, "Queue 'mail' is not valid for backend"):
                    enqueue(1)

    def test_no_queues_are_any_queue(self):
        with override_settings(TASKS={"default": {"BACKEND": WHEELQ, "QUEUES": []}}):
            result = tasks.add.using(queue_name="queue-2").enqueue(1)
            self.assertEqual(tasks.add.get_result(result.id).status, TaskResultStatus.READY)

    def test_a_queue_that_cannot_be_a_topic_is_refused(self):
        with (
            override_settings(TASKS={"default": {"BACKEND": WHEELQ, "QUEUES": ["no spaces"]}}),
            self.assertRaises(ImproperlyConfigured),
        ):
            _ = task_backends["default"]

    def test_enqueue_logs(self):
        name = type(task_backends["default"]).__mro__[1].__module__.partition(".backends")[0]
        with self.assertLogs(name, level="DEBUG") as captured:
            result = tasks.add.enqueue(1)
        self.assertEqual(len(captured.output), 1)
        self.assertIn("enqueued", captured.output[0])
        self.assertIn(result.id, captured.output[0])

    def test_call_task(self):
        self.assertEqual(tasks.add.call(1, 2), 3)
        self.assertEqual(async_to_sync(tasks.send.acall)("anna"), {"to": "anna"})

    def test_other_groups_do_not_count(self):
        """The group of another worker has not begun at first; then it gives the same jobs up."""
        client = task_backends["default"].client
        client.make_group("audited", "audit")
        added = finished(tasks.add.using(queue_name="audited").enqueue(1))
        failed = finished(tasks.fail.using(queue_name="audited").enqueue())
        audit(added, failed)
        client.dead.replay("audited", group="default")  # so that Django's burial is the later one
        for result in (added, failed):
            result.refresh()
            finished(result)
        self.assertEqual((added.return_value, added.errors, added.attempts), (2, [], 1))
        self.assertEqual([error.exception_class for error in failed.errors], [ValueError] * 2)

    def test_check(self):
        self.assertEqual(list(task_backends["default"].check()), [])


class TransactionCases(TransactionTestCase):
    available_apps = []

    def test_doesnt_wait_until_transaction_commit_by_default(self):
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            self.assertIsNotNone(result.enqueued_at)
            self.assertIn(tasks.add.get_result(result.id).status, set(TaskResultStatus))


class DumpCases(TestCase):
    def test_dumpdata_passes_over_the_queues(self):
        for options in ([], ["--all"]):
            call_command("dumpdata", "wheelq", *options, stdout=(dumped := StringIO()))
            self.assertEqual(dumped.getvalue().strip(), "[]")
