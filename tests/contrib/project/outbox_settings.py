"""The project with the outbox in Django's own transaction; TEST_DATABASE may be the URL of a server's database."""

import os
import secrets
from urllib.parse import urlsplit

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS, TASKS

INSTALLED_APPS = [*INSTALLED_APPS, "wheelq.contrib.django.outbox"]
TASKS = {**TASKS, "default": {**TASKS["default"], "OPTIONS": {"outbox": True}}}

if server := urlsplit(os.environ.get("TEST_DATABASE", "")).hostname:
    at = urlsplit(os.environ["TEST_DATABASE"])
    kind = at.scheme.partition("+")[0]
    if kind == "mysql":
        import pymysql

        pymysql.version_info = (2, 2, 7, "final", 0)  # it stands in for mysqlclient, which needs a compiler
        pymysql.install_as_MySQLdb()
    DATABASES = {
        "default": {
            "ENGINE": f"django.db.backends.{kind}",
            "HOST": server,
            "PORT": at.port,
            "USER": at.username,
            "PASSWORD": at.password or "",
            "NAME": at.path[1:],
            "TEST": {"NAME": f"wheelq_{secrets.token_hex(4)}"},
        }
    }
