"""Tasks that are enqueued in Django's transaction, over an outbox. Run by test_django."""
# ruff: noqa: PT009, PT027  (no pytest in the environments that run it)

from datetime import timedelta

from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

from project.settings import WHEELQ
from project.shop import tasks
from wheelq.contrib.django.tasks import task_backends


def rows():
    with connection.cursor() as cursor:
        cursor.execute("SELECT kind, topic, job_id, due, asked_us FROM wheelq_outbox ORDER BY seq")
        found = cursor.fetchall()
    # MySQL has no text that is compared byte by byte, so names are bytes there.
    return [tuple(one.decode() if isinstance(one, bytes) else one for one in row) for row in found]


class OutboxCases(TransactionTestCase):
    def tearDown(self):
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM wheelq_outbox")

    def test_a_task_is_enqueued_if_its_transaction_commits(self):
        with transaction.atomic():
            kept = tasks.add.enqueue(1, b=2)
            later = tasks.send.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("anna")
        found = rows()
        self.assertEqual([row[:3] for row in found], [("schedule", *one.id.split(":")) for one in (kept, later)])
        self.assertEqual(found[0][3], "+0")
        self.assertGreater(found[0][4], (timezone.now().timestamp() - 60) * 1e6)

    def test_a_task_of_a_transaction_that_is_rolled_back_is_not(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            tasks.add.enqueue(1, b=2)
            raise ZeroDivisionError
        self.assertEqual(rows(), [])

    def test_the_migration_can_be_undone_and_made_again(self):
        call_command("migrate", "wheelq_outbox", "zero", verbosity=0)
        self.assertNotIn("wheelq_outbox", connection.introspection.table_names())
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_proc WHERE proname = 'wheelq_outbox_notify'")
                self.assertEqual(cursor.fetchone(), (0,))
        call_command("migrate", "wheelq_outbox", verbosity=0)
        self.assertEqual(rows(), [])

    def test_on_commit_beside_it_is_refused(self):
        both = {"default": {"BACKEND": WHEELQ, "OPTIONS": {"outbox": True, "on_commit": True}}}
        with override_settings(TASKS=both), self.assertRaisesRegex(ImproperlyConfigured, "leave it out"):
            task_backends["default"]
