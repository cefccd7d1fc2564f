"""The Django app of the SQL outbox: `wheelq.contrib.django.outbox` in INSTALLED_APPS, and `OPTIONS = {"outbox": True}`.

apps        the Django app
migrations  make the tables
writing     writes tasks as rows in Django's transaction
"""
