"""The application, which brings the command `manage.py jqueue_worker`."""

from django.apps import AppConfig


class JQueueConfig(AppConfig):
    """Names the application. Its own label would be `django`."""

    name = "jqueue.django"
    label = "jqueue"
    verbose_name = "jqueue"
