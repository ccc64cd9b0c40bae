"""The audits of worker processes on made-up histories: they find each fault, and none in a correct history."""

import json

import pytest

from tests.worker_processes.accounts import Accounts
from tests.worker_processes.claim_history import End, Lives, steps
from tests.worker_processes.history import BrokenHistory, read_history
from tests.worker_processes.journal import BEGINS, ENDS, Line
from tests.worker_processes.limits import CronAudit, LimitsAudit
from tests.worker_processes.processes import Fate
from tests.worker_processes.recording import SUFFIX, Kind, Log

START = 1_800_000_000
WORKED, STOPPED, KILLED = "worked", Fate(None, False, True, True, 0), Fate(START + 3.0, False, True, False, -9)


def when(seconds):
    """A time in the format of the queue."""
    minutes, seconds = divmod(seconds, 60)
    return f"2027-01-15T08:{minutes:02.0f}:{seconds:09.6f}+00:00"


def queued(**fields):
    return {"entrypoint": "t", "payload": "", "status": "queued", **fields}


def held(at=0.0, attempt=1, **fields):
    more = {"attempt": attempt, "failures": 1, "heartbeat_at": when(at), **fields}
    return queued(**more) | {"status": "in_progress"}


class Chain:
    """A chain of versions."""

    def __init__(self, folder):
        self.folder = folder
        self.logs = {}
        self.commits = {}
        self.number = 0
        self.final = b""

    def add(self, jobs, by="a", at=None, lands=True, confirmed=True, **header):
        """Send a version, which lands unless `lands` is False."""
        number = self.number + 1
        sequence = self.commits.get(by, [0])[0] + 1
        commits = {**self.commits, by: [sequence, number, START + (number if at is None else at), 0.01]}
        head = {"format": 2, "version": number, "commits": commits, "attempt_floor": 0, **header, "jobs": {}}
        lines = b",\n".join(json.dumps({name: job}).encode()[1:-1] for name, job in jobs.items())
        content = json.dumps(head).encode()[:-2] + b"\n" + lines + (b"\n" if lines else b"") + b"}}\n"
        if by not in self.logs:
            self.logs[by] = Log(self.folder / f"{by}{SUFFIX}")
        self.logs[by].note(Kind.SENT, content, START + (number if at is None else at))
        if lands:
            self.commits, self.number, self.final = commits, number, content
        if lands and confirmed:
            self.logs[by].note(Kind.LANDED)

    def read(self):
        return list(read_history(self.folder, self.final))

    def lives(self):
        lives = Lives()
        for before, after in steps(self.read()):
            lives.see(before, after)
        return lives


@pytest.fixture
def chain(tmp_path):
    return Chain(tmp_path)


def test_refused_and_unconfirmed_writes_still_give_one_history(chain):
    chain.add({"x": queued()}, by="a")
    chain.add({"refused": queued()}, by="b", lands=False)
    chain.add({"x": held()}, by="a", confirmed=False)
    chain.add({"refused": queued()}, by="b", lands=False)
    chain.add({}, by="c")
    chain.add({"refused": queued()}, by="a", lands=False)
    assert [(1, "a", {"x"}), (2, "a", {"x"}), (3, "c", set())] == [
        (version.number, version.by, set(version.jobs)) for version in chain.read()
    ]


def test_a_version_missing_from_all_logs_is_detected(chain):
    chain.add({"x": queued()})
    chain.number += 1
    chain.add({})
    with pytest.raises(BrokenHistory, match="version 2 is in no log"):
        chain.read()


def test_a_last_version_missing_from_all_logs_is_detected(chain):
    chain.add({"x": queued()})
    chain.final = chain.final.replace(b'"version": 1', b'"version": 2').replace(b"[1, 1,", b"[2, 2,")
    with pytest.raises(BrokenHistory, match="in no log"):
        chain.read()


def test_a_confirmed_last_version_missing_from_the_store_is_detected(chain):
    chain.add({"x": queued()})
    final = chain.final
    chain.add({})
    chain.final = final
    with pytest.raises(BrokenHistory, match="version 2 was confirmed"):
        chain.read()


def test_a_confirmed_write_missing_from_the_chain_is_detected(chain):
    chain.add({"x": queued()}, by="a")
    chain.add({"lost": queued()}, by="b", lands=False)
    chain.logs["b"].note(Kind.LANDED)
    chain.add({"x": held()}, by="c")
    chain.add({}, by="c")
    with pytest.raises(BrokenHistory, match="b was told that it wrote version 2, and c wrote it"):
        chain.read()


SAID = [Line(BEGINS, "x", 1, START + 2.0), Line(ENDS, "x", 1, START + 2.5)]


def faults(chain, said=SAID, fate=STOPPED, threads=frozenset()):
    return Accounts(chain.lives(), {"w": said}, {"w": fate, "other": STOPPED}, threads).faults(["x"])


def claimed(chain, **fields):
    chain.add({"x": queued()}, by="producer")
    chain.add({"x": held(**fields)}, by="w")


def done_by_another(chain):
    chain.add({"x": held(attempt=2, failures=2)}, by="other")
    chain.add({}, by="other")


def test_a_job_that_was_done_once_has_no_faults(chain):
    claimed(chain)
    chain.add({}, by="w")
    assert [] == faults(chain)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([], "its handler has not ended"),
        (SAID[:1], "its handler has not ended"),
        ([SAID[0], SAID[1]._replace(at=START + 3.1)], "its handler ended 0.100 s after its ack was sent"),
        ([*SAID, *SAID], "its handler wrote"),
        ([*SAID, Line(BEGINS, "y", 1, START)], "which was not claimed"),
    ],
)
def test_a_journal_that_contradicts_the_ack_is_detected(chain, said, found):
    claimed(chain)
    chain.add({}, by="w")
    [fault] = faults(chain, said)
    assert found in fault


def test_a_job_left_over_or_removed_without_an_ack_is_detected(chain):
    claimed(chain)
    assert "acked 0 times" in faults(chain)[0]
    chain.add({"x": queued(attempt=1)}, by="w")
    chain.add({}, by="w")
    assert "vanished while it was queued" in faults(chain, SAID[:1])[0]


def test_a_job_that_comes_back_after_its_ack_is_detected(chain):
    claimed(chain)
    chain.add({}, by="w")
    chain.add({"x": queued(attempt=1)}, by="w")
    chain.add({"x": held(attempt=2)}, by="other")
    chain.add({}, by="other")
    assert "came into the queue 2 times, and was acked 2 times" in faults(chain)[0]


def test_an_ack_by_another_process_is_detected(chain):
    claimed(chain)
    chain.add({}, by="other")
    assert ["another process acked it"] == [fault.partition(": ")[2] for fault in faults(chain)]


def test_a_charged_hand_back_is_detected_unless_its_worker_was_killed(chain):
    claimed(chain)
    chain.add({"x": queued(attempt=1, failures=1)}, by="other", at=3.5)
    chain.add({"x": held(attempt=2, failures=2)}, by="other")
    assert End.CHARGED == chain.lives().claims["x", 1].end
    found = [fault for fault in faults(chain, SAID[:1]) if "is charged" in fault]
    assert 1 == len(found)
    assert not [fault for fault in faults(chain, SAID, KILLED) if "charged: " in fault]
    assert [fault for fault in faults(chain, SAID, KILLED._replace(killed_at=START + 3.6)) if "charged: " in fault]


def test_a_finished_job_that_is_handed_back_is_detected_except_in_a_stopped_thread(chain):
    claimed(chain)
    chain.add({"x": queued(attempt=1)}, by="w")
    assert any("done twice" in fault for fault in faults(chain))
    told = STOPPED._replace(told_at=START + 2.4)
    assert any("done twice" in fault for fault in faults(chain, fate=told))
    threads = frozenset({"t"})
    assert not any("done twice" in fault for fault in faults(chain, fate=told, threads=threads))
    later = STOPPED._replace(told_at=START + 2.6)
    assert any("done twice" in fault for fault in faults(chain, fate=later, threads=threads))


def test_a_job_claimed_anew_in_one_version_ends_its_earlier_claim(chain):
    claimed(chain)
    chain.add({"x": held(attempt=2, failures=1)}, by="other")
    assert End.RETURNED == chain.lives().claims["x", 1].end
    chain.add({"x": held(attempt=4, failures=2)}, by="other")
    assert End.CHARGED == chain.lives().claims["x", 2].end
    assert ["attempt 4 came after 2"] == [fault[-22:] for fault in chain.lives().faults]


@pytest.mark.parametrize(
    ("fate", "well"),
    [
        (STOPPED, True),
        (STOPPED._replace(exit_code=-15), False),
        (STOPPED._replace(exit_code=1), False),
        (STOPPED._replace(started=False, stopped=False, exit_code=-15), True),
        (STOPPED._replace(hurried=True, exit_code=-15), True),
        (STOPPED._replace(hurried=True, stopped=False, exit_code=-15), False),
        (KILLED, True),
    ],
)
def test_a_worker_with_an_unexpected_exit_is_detected(chain, fate, well):
    claimed(chain)
    chain.add({}, by="w")
    assert well is (faults(chain, fate=fate) == [])


def limited(chain):
    audit = LimitsAudit({"t": 2}, {"k": 1}, {"t": (3, 1.0)})
    for before, after in steps(chain.read()):
        audit.see(before, after)
    audit.end()
    return audit.faults


def test_limits_that_are_just_kept_give_no_faults(chain):
    chain.add({"a": held(0.0, concurrency_key="k"), "b": held(0.1), "c": queued(concurrency_key="k"), "d": queued()})
    chain.add({"b": held(0.1), "c": held(0.9, concurrency_key="k"), "d": queued()})
    chain.add({"c": held(0.9, concurrency_key="k"), "d": held(1.0)}, entrypoints={"u": {"paused": True}})
    assert [] == limited(chain)


@pytest.mark.parametrize(
    ("jobs", "header", "found"),
    [
        ({"a": held(), "b": held(), "c": held()}, {}, "3 jobs of t at once, limit 2"),
        ({"a": held(concurrency_key="k"), "b": held(concurrency_key="k")}, {}, "2 jobs of k at once, limit 1"),
        ({"a": held()}, {"entrypoints": {"t": {"paused": True}}}, "a was claimed, and t is paused"),
    ],
)
def test_an_exceeded_limit_is_detected(chain, jobs, header, found):
    chain.add(jobs, **header)
    [fault] = limited(chain)
    assert found in fault


def test_claims_faster_than_the_rate_are_detected_in_any_window(chain):
    for number, at in enumerate((0.5, 0.9, 1.2, 1.499)):
        chain.add({f"{number}": held(at)})
    [fault] = limited(chain)
    assert "4 claims within 0.999000 s" in fault


def fired(chain, until=4):
    audit = CronAudit({"tick": 1})
    for before, after in steps(chain.read()):
        audit.see(before, after)
    audit.end(START + until)
    return audit.faults


def occurrence(seconds):
    moment = when(seconds).replace(".000000", "")
    return {f"cron:tick:{moment}": held(seconds, entrypoint="tick", headers={"jqueue-scheduled-for": moment})}


def due(seconds):
    return {"schedules": {"tick": {"next_at": when(seconds)}}}


def test_occurrences_that_fire_once_each_give_no_faults(chain):
    chain.add({}, at=0.5, **due(1))
    for second in (1, 2, 3):
        chain.add(occurrence(second), at=second + 0.1, **due(second + 1))
        chain.add({}, at=second + 0.2, **due(second + 1))
    assert [] == fired(chain)


def test_an_occurrence_missed_while_jobs_are_claimed_is_detected(chain):
    chain.add({}, at=0.5, **due(1))
    chain.add({"x": held(1.5)}, at=1.5, **due(1))
    chain.add({**occurrence(2)}, at=2.1, **due(3))
    [fault] = fired(chain, until=3)
    assert "version 2 claims jobs, and tick did not fire for" in fault


@pytest.mark.parametrize(
    ("second", "at", "next_at", "found"),
    [
        (1, 1.1, 1, "is due again at"),
        (2, 1.9, 3, "was not due"),
        (0, 1.1, 2, "was not due"),
        (1.5, 1.6, 2, "was not due"),
    ],
)
def test_an_incorrect_occurrence_of_a_cron_entry_is_detected(chain, second, at, next_at, found):
    chain.add({}, at=0.5, **due(1))
    chain.add(occurrence(second), at=at, **due(next_at))
    assert any(found in fault for fault in fired(chain, until=1))


@pytest.mark.wide
def test_a_cron_entry_that_fires_twice_is_detected(chain):
    chain.add({}, at=0.5, **due(1))
    for at in (1.1, 1.3):
        chain.add(occurrence(1), at=at, **due(2))
        chain.add({}, at=at + 0.1, **due(2))
    assert any("after it fired for" in fault for fault in fired(chain, until=2))
