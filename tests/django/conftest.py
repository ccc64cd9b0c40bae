"""A Django project without files for the tests in one process: its settings, and a queue in a file for each test."""

import django
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import override_settings

APPS = ["jqueue.django"] if django.VERSION >= (6, 0) else ["jqueue.django", "django_tasks"]

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=APPS,
        LOGGING_CONFIG=None,
        TASKS={"default": {"BACKEND": "jqueue.django.JQueueBackend", "QUEUES": [], "OPTIONS": {"url": "memory://"}}},
        USE_TZ=True,
    )
    django.setup()


class Site:
    """The settings of a test, and its worker."""

    def __init__(self, folder):
        self.folder = folder
        self.url = str(folder / "queue.json")

    def settings(self, queues=("default", "mail"), backend="jqueue.django.JQueueBackend", **options):
        """Return a context in which the backend has these options."""
        params = {"BACKEND": backend, "QUEUES": list(queues), "OPTIONS": {"url": self.url, **options}}
        return override_settings(TASKS={"default": params})

    def work(self, **options):
        """Run the worker until no task is ready, and return its exit status."""
        try:
            call_command("jqueue_worker", drain=True, **options)
        except CommandError as error:
            if "tasks failed" not in str(error):
                raise
            return error.returncode
        return 0


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    with site.settings():
        yield site
