"""The Django app: it brings the migration that makes the outbox's tables."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """`wheelq.contrib.django.outbox` in INSTALLED_APPS."""

    name = "wheelq.contrib.django.outbox"
    label = "wheelq_outbox"
    verbose_name = "wheelq outbox"
