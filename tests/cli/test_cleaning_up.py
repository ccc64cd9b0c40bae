"""The doctor leaves no objects in the store, and names any objects that it cannot remove."""

import asyncio
import json
import signal

import pytest

from jqueue.cli import doctor as module
from jqueue.domain.errors import StorageError, StorageFatalError
from tests.cli import stores
from tests.cli.test_verdicts import nothing_is_left

CALLS = [*range(1, 45, 3), 60, 110, 230]
"""Numbers of the calls that are disturbed: at least one in each check, and some of racing writers."""


def _press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def _refuse():
    raise StorageFatalError("the credentials have expired")


@pytest.mark.parametrize("number", CALLS)
def test_ctrl_c_leaves_nothing(doctor, number):
    storage = stores.DoesAtCall(number, _press_ctrl_c)
    result = doctor(storage)
    assert 130 == result.exit_code
    assert "interrupted before all checks were done" in result.stderr
    assert "left behind" not in result.stderr
    assert nothing_is_left(storage)
    assert storage.released


@pytest.mark.parametrize("number", CALLS)
def test_a_refusal_leaves_nothing(doctor, number):
    storage = stores.DoesAtCall(number, _refuse)
    result = doctor(storage)
    assert 2 == result.exit_code
    assert "left behind" not in result.stderr
    assert nothing_is_left(storage)


def test_a_defect_leaves_nothing(doctor):
    storage = stores.DoesAtCall(20, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        doctor(storage)
    assert nothing_is_left(storage)
    assert storage.released


def test_sigterm_leaves_nothing(doctor):
    storage = stores.DoesAtCall(8, lambda: signal.raise_signal(signal.SIGTERM))
    result = doctor(storage, real_time=True)
    assert 143 == result.exit_code
    assert "terminated before all checks were done" in result.stderr
    assert nothing_is_left(storage)


def test_a_second_ctrl_c_ends_the_doctor_at_once_with_a_list_of_left_objects(doctor):
    class Interrupted(stores.DoesAtCall):
        async def remove(self):
            _press_ctrl_c()

    storage = Interrupted(20, _press_ctrl_c)
    result = doctor(storage)
    assert 130 == result.exit_code
    assert "may be left behind" in result.stderr
    left = storage.objects.keys() - {"queue.json"}
    assert left
    assert all(name in result.stderr for name in left)


@pytest.mark.parametrize("kind", [stores.KeepsAll], ids=["KeepsAll"])
def test_objects_that_cannot_be_removed_are_named_and_the_verdict_stands(doctor, kind):
    storage = kind()
    result = doctor(storage)
    assert 0 == result.exit_code
    assert "Safe." in result.stdout
    left = storage.objects.keys() - {"queue.json"}
    assert left
    assert all(name in result.stderr for name in left)
    assert 1 == result.stderr.count("s3:DeleteObject is needed")
    as_json = json.loads(doctor(kind(), "--json").stdout)
    assert len(left) == len(as_json["left"])
    assert "s3:DeleteObject" in as_json["left"][0]["reason"]


def test_a_failed_removal_is_retried(doctor):
    class FailsToRemove(stores.Honest):
        async def remove(self):
            await super().remove()
            if sum(doing == "remove" for doing, _ in self.calls) < 5:
                raise StorageError("the connection was reset")

    storage = FailsToRemove()
    result = doctor(storage)
    assert (0, "") == (result.exit_code, result.stderr)
    assert nothing_is_left(storage)


def test_an_absent_object_is_not_reported_as_left_behind(doctor):
    class MayNotRemove(stores.KeepsAll, stores.Refuses):
        pass

    result = doctor(MayNotRemove())
    assert 2 == result.exit_code
    assert "left behind" not in result.stderr


def test_each_run_names_its_scratch_objects_by_its_own_id(doctor):
    names = set()
    for _ in range(2):
        storage = stores.Honest()
        doctor(storage)
        names |= {name.rpartition("-")[0] for _, name in storage.calls}
    assert 2 == len(names)
    assert all(name.startswith("queue.json.doctor-") for name in names)


def test_messages_of_a_store_are_escaped_for_the_terminal(doctor):
    class Loud(stores.Honest):
        def check(self, if_match):
            raise StorageFatalError("refused\x1b[2J[bold]\r\nSafe.")

    result = doctor(Loud())
    assert r"refused\x1b[2J[bold]\r\nSafe." in result.stderr
    assert "\x1b" not in result.output


def test_the_clean_up_does_not_run_without_a_scratch_object(doctor, monkeypatch):
    """A storage whose `beside` fails has nothing to remove."""

    class Odd(stores.Honest):
        def beside(self, suffix):
            raise StorageFatalError("no name is left")

    storage = Odd()
    result = doctor(storage)
    assert 2 == result.exit_code
    assert [] == storage.calls
    assert storage.released


def test_the_event_loop_ends_without_other_tasks(doctor, monkeypatch):
    loops = []
    run = module._examine

    async def examine(*arguments, **options):
        try:
            await run(*arguments, **options)
        finally:
            loops.append(len(asyncio.all_tasks()))

    monkeypatch.setattr(module, "_examine", examine)
    doctor(stores.DoesAtCall(40, _refuse))
    assert [1] == loops


def test_an_object_that_was_never_written_is_not_listed_for_removal(doctor):
    """The store refuses every write, read and removal."""
    result = doctor(stores.RefusesAll())
    assert 2 == result.exit_code
    assert "was refused" in result.stderr
    assert "remove by hand" not in result.stderr
