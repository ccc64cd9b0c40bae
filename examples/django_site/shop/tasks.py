"""The tasks. A worker finds them here, in the module `tasks` of an app."""

import os
import signal

from shop.models import Order

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


class Refused(Exception):
    """The mail server refused an address."""


@task(queue_name="mail", takes_context=True)
def confirm(context, order_id):
    """Confirm an order."""
    order = Order.objects.get(id=order_id)
    if order.address.startswith("lost") and context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # an address for which the worker is lost, to see the next one go on
    if order.address.startswith("refused"):
        raise Refused("the mail server refused the address")
    order.confirmed = True
    order.save(update_fields=["confirmed"])
    return {"attempt": context.attempt}


@task(priority=10)
async def count():
    """Return the number of orders."""
    return await Order.objects.acount()
