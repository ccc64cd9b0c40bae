"""The settings of the site. `SITE_DATA` is the folder of its database and of its queue."""

import os
from pathlib import Path

import django

from jqueue import Exponential

DATA = Path(os.environ.get("SITE_DATA", Path(__file__).parent))

SECRET_KEY = "of an example"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop", "jqueue.django"]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATA / "db.sqlite3"}}

TASKS = {
    "default": {
        "BACKEND": "jqueue.django.JQueueBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": DATA / "queue.json", "max_attempts": 3, "backoff": Exponential(base=3600, cap=86400)},
    }
}
