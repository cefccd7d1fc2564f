"""`Queue`, a model without a table, which gives the admin site an entry, an address and permissions for the queues."""

from django.db import models


class NoRows(models.Manager):
    """Finds nothing and asks no database: `dumpdata` would fail without the table."""

    def get_queryset(self) -> models.QuerySet:
        """Returns an empty query."""
        return super().get_queryset().none()


class Queue(models.Model):
    """A queue of a wheelq backend in TASKS. The permission `view` shows its counts and dead tasks; `change` replays."""

    objects = NoRows()

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        base_manager_name = "objects"
