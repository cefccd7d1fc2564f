"""`Queue`, a model without a table, which gives the admin site an entry, an address and permissions for the queues."""

from django.db import models


class Queue(models.Model):
    """A queue of a wheelq backend in TASKS. The permission `view` shows its counts and dead tasks; `change` replays."""

    class Meta:
        managed = False
        default_permissions = ("view", "change")
