"""`JQueueBackend`: a backend for `django.tasks`, whose queue needs no database, no broker and no daemon.

    INSTALLED_APPS = [..., "jqueue.django"]
    TASKS = {
        "default": {
            "BACKEND": "jqueue.django.JQueueBackend",
            "OPTIONS": {"url": BASE_DIR / "queue.json"},
        }
    }

`manage.py jqueue_worker` runs the tasks. docs/guide/frameworks/django.md describes both.
"""

from jqueue.django.backend import JQueueBackend, JQueueTask

__all__ = ["JQueueBackend", "JQueueTask"]
