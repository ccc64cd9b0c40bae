"""The journal of a queue in an older format: no line is lost, and none that was cut counts."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import cycle

import pytest

from jqueue.formats import journal
from jqueue.formats.journal import State
from jqueue.testing.virtual_time import EPOCH
from tests.unit.formats.places import JOURNALS, journal_of

JOURNAL = JOURNALS["vsqs"]
ONCE, TWICE = State(attempt=1), State(attempt=2)


@pytest.fixture(autouse=True)
def always_replaced(monkeypatch):
    """A journal is replaced whenever it has doubled."""
    monkeypatch.setattr(journal, "COMPACT_BYTES", 0)


def test_no_line_is_lost_while_several_writers_replace_the_journal(tmp_path):
    (tmp_path / "claimed").touch()

    def write(writer):
        mine = journal_of(tmp_path)
        for number in range(100):
            mine.write({f"{writer}-{number}": ONCE}, EPOCH)
            mine.write({f"{writer}": State(attempt=number)}, EPOCH, (tmp_path / "claimed").stat)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    states = journal_of(tmp_path).states
    assert 404 == len(states)
    assert [99] * 4 == [states[str(writer)].attempt for writer in range(4)]


def test_a_reader_of_an_old_journal_goes_on_with_the_new_one(tmp_path):
    reader, writer = journal_of(tmp_path), journal_of(tmp_path)
    for number in range(20):
        writer.write({"a": State(attempt=number), "b": ONCE}, EPOCH)
        assert (number, ONCE) == (reader.state("a").attempt, reader.state("b"))
    part = tmp_path / "another"
    content = (tmp_path / JOURNAL).read_bytes().replace(b"# ", b"# other ")
    part.write_bytes(content.partition(b"\n")[0] + b"\n" + b"#" * len(content) + b"\n")
    part.replace(tmp_path / JOURNAL)
    assert (State(), State()) == (reader.state("a"), reader.state("b"))


def test_states_of_a_journal_that_was_removed_are_written_again(tmp_path):
    ours = journal_of(tmp_path)
    ours.write({"a": ONCE}, EPOCH)
    (tmp_path / JOURNAL).unlink()
    ours.write({"b": TWICE}, EPOCH)
    assert {"a": ONCE, "b": TWICE} == journal_of(tmp_path).states


def test_a_job_that_another_program_has_renamed_keeps_its_state(tmp_path):
    ours = journal_of(tmp_path)
    ours.write({"job": ONCE}, EPOCH)
    with pytest.raises(FileNotFoundError):
        ours.write({"job": TWICE}, EPOCH, (tmp_path / "job").stat)
    assert {"job": ONCE} == journal_of(tmp_path).states


def test_only_old_states_of_jobs_that_no_listing_shows_and_all_but_the_last_acks_are_dropped(tmp_path):
    listings = cycle([{"here"}, {"here"}, {"here", "renamed"}])
    ours = journal_of(tmp_path, present=lambda: next(listings))
    for name in ("gone", "here", "renamed", "young"):
        ours.write({name: ONCE}, EPOCH + timedelta(minutes=59 if name == "young" else 0))
    ours.write({f"acked-{number}": State(attempt=1, finished=True) for number in range(1_001)}, EPOCH)
    for number in range(9):
        ours.write({"here": State(attempt=number)}, EPOCH + timedelta(minutes=61))
    left = journal_of(tmp_path).states.keys()
    assert {"here", "young", "renamed", "acked-1000", "acked-1"} <= left
    assert not left & {"gone", "acked-0"}


LINES = [
    b"",
    b"{",
    b"[]",
    b"[[" * 100_000,
    b'[1,{"a":{"attempt":"2"}}]',
    b'[1,{"a":{"due":-1}}]',
    b'{"a":{"attempt":2}}',
    b'[1,{"a":{"timeout":1e300}}]',
    b'[1,{"a":{"entrypoint":""}}]',
    b"\xff",
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_line_that_jqueue_has_not_written_is_ignored(line, tmp_path):
    ours = journal_of(tmp_path)
    ours.write({"a": ONCE}, EPOCH)
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(line + b"\n")
    assert {"a": ONCE} == journal_of(tmp_path).states
    ours.write({"b": TWICE}, EPOCH)
    assert {"a": ONCE, "b": TWICE} == journal_of(tmp_path).states


def test_a_line_that_was_cut_does_not_count_and_harms_no_other_one(tmp_path):
    ours = journal_of(tmp_path)
    ours.write({"a": ONCE}, EPOCH)
    begin = (tmp_path / JOURNAL).stat().st_size
    journal.COMPACT_BYTES = 10**6
    ours.write({"a": TWICE, "b": ONCE}, EPOCH)
    content = (tmp_path / JOURNAL).read_bytes()
    for length in range(begin, len(content)):
        (tmp_path / JOURNAL).write_bytes(content[:length])
        reader = journal_of(tmp_path)
        assert {"a": ONCE} == reader.states
        journal_of(tmp_path).write({"c": ONCE}, EPOCH)
        assert ONCE == reader.state("c")
        assert {"a": ONCE, "c": ONCE} == reader.states == journal_of(tmp_path).states


def test_a_journal_is_for_the_users_of_the_queue(tmp_path):
    folder = tmp_path / "queue"
    folder.mkdir()
    folder.chmod(0o770)
    journal_of(folder).write({"a": ONCE}, EPOCH)
    assert {0o660} == {os.stat(folder / name).st_mode & 0o777 for name in (JOURNAL, f"{JOURNAL}.lock")}
