"""The Django app: it brings the command `wheelq_worker` and the pages of the admin site."""

from django.apps import AppConfig


class WheelqConfig(AppConfig):
    """`wheelq.contrib.django` in INSTALLED_APPS."""

    name = "wheelq.contrib.django"
    label = "wheelq"
    verbose_name = "wheelq"
    default_auto_field = "django.db.models.BigAutoField"
