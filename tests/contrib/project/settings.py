"""A Django project with a wheelq backend: WHEELQ_URL says where, TEST_DB which SQLite file."""

import importlib.util
import os

SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = ["wheelq.contrib.django", "project.shop"]
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("TEST_DB", ":memory:")}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
WHEELQ = "wheelq.contrib.django.backend.WheelqBackend"
TASKS = {
    "default": {"BACKEND": WHEELQ, "QUEUES": ["default", "mail", "audited"], "OPTIONS": {}},
    "patient": {"BACKEND": WHEELQ, "QUEUES": ["patient"], "OPTIONS": {"max_attempts": 12}},
    "any": {"BACKEND": WHEELQ, "QUEUES": []},
    "careful": {"BACKEND": WHEELQ, "QUEUES": ["careful"], "OPTIONS": {"on_commit": True}},
}
