"""The project with the outbox in Django's own transaction."""

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS, TASKS

INSTALLED_APPS = [*INSTALLED_APPS, "wheelq.contrib.django.outbox"]
TASKS = {**TASKS, "default": {**TASKS["default"], "OPTIONS": {"outbox": True}}}
