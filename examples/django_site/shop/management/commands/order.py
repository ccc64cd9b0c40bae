"""`manage.py order ADDRESS...` takes orders, and `manage.py order --list` says what became of them."""

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from shop.models import Order
from shop.tasks import confirm, count


def confirm_later(order):
    """Enqueue the task that confirms an order. It is called when the transaction of the order is committed."""
    order.task_id = confirm.enqueue(order.id).id
    order.save(update_fields=["task_id"])


class Command(BaseCommand):
    """The command."""

    def add_arguments(self, parser):
        """See Django."""
        parser.add_argument("addresses", nargs="*")
        parser.add_argument("--list", action="store_true")

    def handle(self, *args, **options):
        """Take the orders, all or none of them; or list them."""
        with transaction.atomic():
            for address in options["addresses"]:
                order = Order.objects.create(address=address)
                transaction.on_commit(lambda order=order: confirm_later(order))
                if "@" not in address:
                    raise CommandError("that is no address: no order was taken")
        if options["addresses"]:
            self.stdout.write(f"counting in {count.enqueue().id}")
        for order in Order.objects.all() if options["list"] else ():
            result = confirm.get_result(order.task_id)
            workers = [worker.partition("@")[0] for worker in result.worker_ids]
            errors = [error.exception_class_path for error in result.errors]
            self.stdout.write(" ".join([order.address, result.status, *workers, *errors]))
