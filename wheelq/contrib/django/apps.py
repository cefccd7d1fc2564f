"""The Django app: it brings the command `wheelq_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class WheelqConfig(AppConfig):
    """`wheelq.contrib.django` in INSTALLED_APPS."""

    name = "wheelq.contrib.django"
    label = "wheelq"
    verbose_name = "wheelq"
