"""The guide: its snippets run with its own settings, and a worker runs its tasks."""

import sys
from types import SimpleNamespace

from django.test import override_settings

from jqueue import SyncQueue
from jqueue.django.api import TaskResultStatus, task_backends
from jqueue.domain.operations.rules import RunSchedule
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


def test_a_cron_entry_enqueues_a_task_with_the_options_and_the_result_of_others(site):
    from tests.django.test_backend import send, try_again

    with SyncQueue(site.url) as queue:
        jobs = []
        for task in (send, try_again):
            queue.schedule("nightly", "0 3 * * *", f"mail:{task.module_path}", b'{"args": [], "kwargs": {}}')
            jobs += queue.apply(RunSchedule("nightly"))
        with site.settings(max_attempts=2):
            assert 1 == site.work()
    done, failed = send.get_result(jobs[0].id), try_again.get_result(jobs[1].id)
    assert (TaskResultStatus.SUCCESSFUL, [{}]) == (done.status, done.return_value)
    assert (TaskResultStatus.FAILED, 2) == (failed.status, failed.attempts)
