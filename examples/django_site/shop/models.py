"""The orders."""

from django.db import models


class Order(models.Model):
    """An order, and the id of the task that confirms it."""

    address = models.EmailField()
    confirmed = models.BooleanField(default=False)
    task_id = models.CharField(max_length=64, blank=True)
