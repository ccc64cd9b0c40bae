"""The guide: its snippets run with its own settings, and a worker runs its tasks."""

import sys
from types import SimpleNamespace

from django.db import transaction
from django.test import override_settings

from jqueue.django.api import TaskResultStatus, task_backends
from tests.docs.test_snippets import ON_DJANGO, examples_of


def test_the_snippets_of_the_page_about_django_run(site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = sys.modules[type(task_backends).__module__]
    monkeypatch.setitem(sys.modules, "django.tasks", package)  # django_tasks, before Django 6.0
    settings, tasks, *rest = examples_of(ON_DJANGO)
    settings.namespace["__file__"] = str(tmp_path / "shop" / "settings.py")
    settings.evaluate()
    own = {name: value for name, value in settings.namespace.items() if name in ("TASKS", "BASE_DIR")}
    with override_settings(**own):
        tasks.evaluate()
        monkeypatch.setitem(sys.modules, "shop.tasks", SimpleNamespace(welcome=tasks.namespace["welcome"]))
        for example in rest:
            example.evaluate()
        settings.namespace["sign_up"]("ada@example.org")
        assert 0 == site.work()
        result = settings.namespace["result"]
        result.refresh()
        assert (TaskResultStatus.SUCCESSFUL, "welcome, bob@example.org") == (result.status, result.return_value)


def test_nothing_is_enqueued_by_a_transaction_that_is_rolled_back(site, tmp_path):
    from tests.django.test_backend import send

    try:
        with transaction.atomic():
            transaction.on_commit(send.enqueue)
            raise LookupError
    except LookupError:
        pass
    assert not (tmp_path / "queue.json").exists()
    with transaction.atomic():
        transaction.on_commit(send.enqueue)
        assert not (tmp_path / "queue.json").exists()
    assert (tmp_path / "queue.json").exists()
