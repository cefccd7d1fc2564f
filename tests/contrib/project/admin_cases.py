"""The queues in the admin site. Run by test_django, with a worker in another process."""
# ruff: noqa: PT009  (no pytest in the environments that run it)

from django.contrib.auth.models import Permission, User
from django.test import TestCase, override_settings
from django.urls import reverse

from project.cases import finished
from project.settings import WHEELQ
from project.shop import tasks

QUEUES = reverse("admin:wheelq_queue_changelist")
DEAD = reverse("admin:wheelq_queue_dead", args=["default", "default"])


class AdminCases(TestCase):
    @classmethod
    def setUpTestData(cls):
        User.objects.create_superuser("root", password="x")
        viewer = User.objects.create_user("viewer", password="x", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_queue"))
        User.objects.create_user("stranger", password="x", is_staff=True)

    def login(self, name):
        self.client.force_login(User.objects.get(username=name))

    def dead(self):
        return tasks.fail.get_backend().client.dead.list("default").jobs

    def test_the_queues_are_listed_with_their_counts(self):
        finished(tasks.fail.enqueue())
        self.login("viewer")
        self.assertContains(self.client.get(reverse("admin:index")), QUEUES)
        page = self.client.get(QUEUES)
        self.assertContains(page, DEAD)
        self.assertContains(page, f"<td>runs</td><td>{len(self.dead())}</td>")
        self.assertContains(page, "never used")

    def test_a_dead_task_is_shown_and_runs_again(self):
        finished(tasks.fail.enqueue())
        first = self.dead()[0]
        self.login("root")
        self.assertContains(self.client.get(DEAD), "no such customer")
        answer = self.client.post(DEAD, {"dead_id": [first.dead_id, "1-1:0"]}, follow=True)
        self.assertContains(answer, "1 of the 2 chosen tasks run again.")
        self.assertNotIn(first.dead_id, [job.dead_id for job in self.dead()])
        finished(tasks.fail.get_result(f"default:{first.id}"))
        again = next(job for job in self.dead() if job.id == first.id)
        self.assertEqual(again.replays, 1)

    def test_who_may_only_view_cannot_run_them_again(self):
        finished(tasks.fail.enqueue())
        first = self.dead()[0]
        self.login("viewer")
        self.assertNotContains(self.client.get(DEAD), "checkbox")
        self.assertEqual(self.client.post(DEAD, {"dead_id": first.dead_id}).status_code, 403)
        self.assertIn(first.dead_id, [job.dead_id for job in self.dead()])

    def test_others_see_nothing(self):
        self.login("stranger")
        for page in (QUEUES, DEAD):
            self.assertEqual(self.client.get(page).status_code, 403)

    def test_what_is_not_there_or_not_valid_is_told(self):
        self.login("root")
        strange = reverse("admin:wheelq_queue_dead", args=["default", "elsewhere"])
        self.assertEqual(self.client.get(strange).status_code, 404)
        self.assertContains(self.client.get(f"{DEAD}?cursor=x"), "Cursor: &#x27;x&#x27; is not valid")
        answer = self.client.post(DEAD, {"dead_id": "x"}, follow=True)
        self.assertContains(answer, "Dead_id: &#x27;x&#x27; is not valid")

    def test_a_server_that_is_away_is_told(self):
        self.login("root")
        away = {"default": {"BACKEND": WHEELQ, "OPTIONS": {"url": "redis://127.0.0.1:1"}}}
        with override_settings(TASKS=away):
            for page in (QUEUES, DEAD):
                self.assertContains(self.client.get(page), "127.0.0.1:1")
