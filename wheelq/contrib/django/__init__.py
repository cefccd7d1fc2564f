"""A backend for Django's tasks: `django.tasks` of Django 6, or the package `django-tasks` with Django 5.2.

    INSTALLED_APPS = [..., "wheelq.contrib.django"]
    TASKS = {
        "default": {
            "BACKEND": "wheelq.contrib.django.backend.WheelqBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"url": "redis://localhost:6379"},
        }
    }

    python manage.py wheelq_worker --with-scheduler

admin       the queues and their dead tasks in the admin site
apps        the Django app, which brings the command and the pages
backend     `WheelqBackend`: enqueues tasks as jobs, looks results up; its OPTIONS
models      the queues as a model without a table, for the admin site
outbox      an app of its own: tasks as rows in Django's transaction, delivered by `wheelq courier`
payloads    a task as the payload of a job, and back
results     a job as a task's result
tasks       imports the names of Django's tasks from either source
management  the command `wheelq_worker`, which runs the tasks
"""
