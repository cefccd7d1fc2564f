"""The queues in Django's admin site: how many tasks each has, its dead tasks, and an action that runs these again.

The site finds this module if `wheelq.contrib.django` and `django.contrib.admin` are in INSTALLED_APPS. The dashboard of
`wheelq server` shows more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from wheelq.client.dead import DeadLetters
from wheelq.contrib.django.backend import WheelqBackend
from wheelq.contrib.django.models import Queue
from wheelq.contrib.django.tasks import task_backends
from wheelq.errors import TopicNotFound, WheelqError
from wheelq.model.dead import ReplayOutcome

PAGE = 50
"""How many dead tasks a page shows."""


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin):
    """The pages of the queues. Redis holds what they show, so nothing can be added, edited or deleted here."""

    def get_urls(self) -> list[URLPattern]:
        """Returns the two pages."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.list_queues), name="wheelq_queue_changelist"),
            path("<str:alias>/<str:queue>/", view(self.list_dead), name="wheelq_queue_dead"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Queues are named in TASKS."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Queues are named in TASKS."""
        return False

    def list_queues(self, request: HttpRequest) -> HttpResponse:
        """Shows the counts of every queue; those that were never used have none."""
        self._check(request, self.has_view_permission)
        rows = []
        for alias, backend in wheelq_backends():
            try:
                counts = {topic.name: topic for topic in backend.client.topics()}
            except WheelqError as error:
                messages.error(request, f"TASKS[{alias!r}]: {error}")
            else:
                rows += [(alias, queue, counts.get(queue)) for queue in sorted(backend.queues or counts)]
        return self._page(request, "queues", "Queues", rows=rows)

    def list_dead(self, request: HttpRequest, alias: str, queue: str) -> HttpResponse:
        """Shows the dead tasks of a queue, newest first; a POST runs the chosen ones again."""
        self._check(request, self.has_view_permission)
        backend = dict(wheelq_backends()).get(alias)
        if backend is None or queue not in (backend.queues or [queue]):  # no queues are any queue
            raise Http404(f"TASKS[{alias!r}] is no wheelq backend with a queue {queue!r}")
        dead, page = backend.client.dead, None
        try:
            if request.method == "POST":
                self._check(request, self.has_change_permission)
                self._replay(request, dead, queue)
            else:
                page = dead.list(queue, limit=PAGE, cursor=request.GET.get("cursor"))
        except TopicNotFound:
            messages.info(request, f"No task was ever enqueued in {queue}.")
        except WheelqError as error:
            messages.error(request, str(error))
        if request.method == "POST":
            return HttpResponseRedirect(request.get_full_path())
        may_replay = self.has_change_permission(request)
        return self._page(request, "dead", f"Dead tasks of {queue}", page=page, may_replay=may_replay)

    def _replay(self, request: HttpRequest, dead: DeadLetters, queue: str) -> None:
        """Run the chosen tasks again, and say how many do: others may have been replayed or purged meanwhile."""
        outcomes = [dead.replay_one(queue, dead_id) for dead_id in request.POST.getlist("dead_id")]
        replayed = outcomes.count(ReplayOutcome.REPLAYED)
        messages.info(request, f"{replayed} of the {len(outcomes)} chosen tasks run again.")

    def _check(self, request: HttpRequest, may: Any) -> None:
        if not may(request):
            raise PermissionDenied

    def _page(self, request: HttpRequest, name: str, title: str, **shown: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        context = {**self.admin_site.each_context(request), "title": title, **shown}
        return TemplateResponse(request, f"admin/wheelq/{name}.html", context)


def wheelq_backends() -> Iterator[tuple[str, WheelqBackend]]:
    """The backends in TASKS that are wheelq's, with their aliases."""
    for alias in task_backends:
        if isinstance(backend := task_backends[alias], WheelqBackend):
            yield alias, backend
