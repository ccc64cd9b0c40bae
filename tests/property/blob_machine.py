"""A state machine of one blob that we read again and again, while other writers and we write it: a stress of the pages.

After each read, the blob's copy must equal that of a reader that never saw the blob before. Pages and slices are
small, so that a few jobs fill many.
"""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from jqueue.core.blob import codec, pages
from jqueue.core.blob import content as blob_module
from jqueue.core.blob.content import Blob
from jqueue.core.blob.lines import read_line
from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain import job_table
from jqueue.domain.commits import CommitId, next_header
from jqueue.domain.errors import InvalidBlobError, JQueueError
from jqueue.domain.limits import Limits
from jqueue.domain.models import JobStatus, QueueState
from jqueue.domain.operations import (
    Ack,
    Cancel,
    Configure,
    Dequeue,
    Enqueue,
    HandBack,
    Pause,
    Preparation,
    Purge,
    Resume,
    SetLimits,
    SetSchedule,
    Unschedule,
    perform,
)
from jqueue.domain.slices import exhaust
from tests.property.blob_edits import EDITS, new_line

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PREPARATION = Preparation(Limits(), 300.0, lambda: "unused", ClaimRegistry().find)
SMALL = {
    (pages, "LINES_IN_PAGE"): 3,
    (pages, "OPEN_PAGES"): 2,
    (pages, "WINDOW"): 40,
    (blob_module, "LINES_PER_SLICE"): 2,
    (blob_module, "JOBS_PER_SLICE"): 2,
    (codec, "LINES_PER_SLICE"): 2,
    (job_table, "KEPT_WHOLE"): 2,
}

HELD_TWICE = "one is held twice, which only a person can do"

edits = st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 200)), min_size=1, max_size=3)
numbers = st.integers(0, 200)


def ranked(jobs):
    """Return the jobs by id, each with its rank, because the numbers of places mean nothing."""
    places = sorted({job.sequence for job in jobs})
    return {job.id: (places.index(job.sequence), job.evolve(sequence=0)) for job in jobs}


def header_of(state):
    return state.model_copy(update={"jobs": (), "set_aside": ()})


def served(draft):
    """Return the order in which three consumers are served."""
    orders = []
    for sought in (None, ("x",), ("yx", "x", "")):
        operation = Dequeue(sought, batch_size=200).prepared(PREPARATION)
        orders.append([job.id for job in perform(operation, draft, NOW)])
        draft.rollback()
    return orders


def keys_of(state):
    """Return the unique keys that are held, each as often as it is held."""
    live = [job for job in state.jobs if job.status in (JobStatus.QUEUED, JobStatus.IN_PROGRESS)]
    return [job.unique_key for job in live if job.unique_key is not None]


def due_of(draft):
    """Return the next due time of a consumer that has not looked for jobs yet."""
    looked = draft.jobs.order._now
    draft.jobs.order._now = datetime.min.replace(tzinfo=UTC)
    try:
        return draft.next_due()
    finally:
        draft.jobs.order._now = looked


def held(blob):
    """Return all visible contents of a blob."""
    draft = blob.draft
    state = draft.freeze()
    keys = keys_of(state)
    return {
        "jobs": ranked(state.jobs),
        "set aside": draft.set_aside,
        "their keys": draft.aside_keys,
        "header": header_of(state),
        "bytes": (draft.base_bytes, draft.added_bytes),
        "claimed": set(draft.jobs.claimed),
        "queued": dict(draft.jobs.order._queued),
        "running": (dict(draft.jobs.order.running), dict(draft.jobs.order.running_keys)),
        "keys": dict(draft.jobs.keys_held) if len(keys) == len(set(keys)) else HELD_TWICE,
        "due": due_of(draft),
    }


class Refused:
    """Answer of a blob that is not a queue."""

    def __init__(self, error):
        self.said = str(error)

    def __eq__(self, other):
        return isinstance(other, Refused) and self.said == other.said

    def __repr__(self):
        return f"Refused({self.said})"


class BlobMachine(RuleBasedStateMachine):
    """One used blob, its store, and other writers."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for (module, name), value in SMALL.items():
            self.patch.setattr(module, name, value)
        lines = [new_line(f"job {number}", sequence=number + 1) for number in range(12)]
        self.store = codec.join_blob(codec.encode_header(QueueState(queue="q")), lines)
        self.blob = Blob()
        self.current = self.held_twice = False
        self.read()

    def teardown(self):
        self.patch.undo()

    # Other writers

    @rule(chosen=edits)
    def others_write(self, chosen):
        for edit, number in chosen:
            self.store = edit(self.store, number)
        self.current = False

    @rule(chosen=edits)
    def others_write_and_we_read(self, chosen):
        self.others_write(chosen)
        self.read()

    # Reading

    @rule()
    def read(self):
        self.blob.draft.rollback()
        try:
            self.blob.adopt(codec.parse_blob(self.store), len(self.store))
            found = held(self.blob)
        except InvalidBlobError as error:
            found = Refused(error)
        fresh = Blob()
        try:
            fresh.adopt(codec.parse_blob(self.store), len(self.store))
            anew = held(fresh)
        except InvalidBlobError as error:
            anew = Refused(error)
        if not isinstance(found, Refused) and not isinstance(anew, Refused):
            self.held_twice |= HELD_TWICE == anew["keys"]
            if self.held_twice:  # a reader of both holds may forget one with the other
                anew["keys"] = found["keys"]
        assert anew == found
        self.current = not isinstance(found, Refused)
        if not self.current:
            self.blob, self.held_twice = Blob(), False  # as the engine does
            return
        self.check_lines()
        state = codec.decode(self.store)
        assert ranked(state.jobs) == found["jobs"]
        assert state.set_aside == found["set aside"]
        if len(state.jobs) < 60:
            assert served(fresh.draft) == served(self.blob.draft)

    @rule()
    def look(self):
        try:
            anew = codec.decode(self.store)
            looked = self.blob.look(codec.parse_blob(self.store))
        except InvalidBlobError:
            with pytest.raises(InvalidBlobError):
                self.blob.look(codec.parse_blob(self.store))
            return
        assert anew.set_aside == looked.set_aside
        assert header_of(anew) == header_of(looked)
        assert list(anew.jobs) == list(looked.jobs)

    @rule(slices=st.integers(0, 12))
    def look_while_we_commit(self, slices):
        """Keep using the draft between the slices of a read."""
        try:
            parsed = codec.parse_blob(self.store)
            anew = codec.decode(self.store)
        except InvalidBlobError:
            return
        looking = self.blob.looking(parsed)
        for _ in range(slices):
            try:
                next(looking)
            except StopIteration as end:
                looked = end.value
                break
        else:
            if self.current:
                self.change(7)
                self.commit(0)
            try:
                looked = exhaust(looking)
            except InvalidBlobError:
                return
        assert anew == exhaust(looked.to_state())

    # Our own commits

    @rule(number=numbers)
    def decide(self, number):
        """Change settings for many jobs."""
        chosen = (
            SetLimits("x", running=1 + number % 3),
            SetLimits("x", rate=1 + number % 3, per=60),
            SetLimits("x"),
            Pause("x"),
            Resume("x"),
            Configure(aging=1 + number % 2),
            Configure(aging=None, dead_retention=number),
            SetSchedule("m", "*/10 * * * * *", "x", concurrency_key="c"),
            Unschedule("m"),
        )[number % 9]
        perform(chosen.prepared(PREPARATION), self.blob.draft, NOW)

    @rule(number=numbers)
    def change(self, number):
        draft = self.blob.draft
        ids = list(draft.jobs)
        job_id = ids[number % len(ids)] if ids else "job 1"
        job = draft.jobs.get(job_id)
        verb = number % 7
        if verb == 0 or job is None:
            name = f"job {number % 40}"
            if name not in draft.jobs and name not in draft.aside_keys:
                self.enqueue(name, number)
        elif verb == 1:
            perform(Dequeue(None, batch_size=1 + number % 3).prepared(PREPARATION), draft, NOW)
        elif verb == 2:
            claimed = [draft.jobs[name].claim for name in draft.jobs.claimed]
            perform(HandBack(tuple(claimed[:2])).prepared(PREPARATION), draft, NOW)
        elif verb == 3:
            self.perform_on(job)
        elif verb == 4 and number % 5 == 0:
            perform(Purge(JobStatus.QUEUED, "x").prepared(PREPARATION), draft, NOW)
        else:
            perform(Dequeue((job.entrypoint,)).prepared(PREPARATION), draft, NOW + timedelta(seconds=number))

    def enqueue(self, name, number):
        perform(Enqueue("x", b"", number % 3, job_id=name).prepared(PREPARATION), self.blob.draft, NOW)

    def perform_on(self, job):
        operation = Ack(job.claim) if job.id in self.blob.draft.jobs.claimed else Cancel(job.id)
        result = perform(operation.prepared(PREPARATION), self.blob.draft, NOW)
        assert not isinstance(result, JQueueError) or job.status not in ("queued", "in_progress")

    @rule()
    def take_all_back(self):
        self.blob.draft.rollback()

    @rule(outcome=st.integers(0, 3))
    def commit(self, outcome):
        """Commit, and let the write land, land with its answer lost, not land, or conflict."""
        if not self.current:
            self.read()
        if not self.current:
            return
        draft = self.blob.draft
        draft.touch()
        header = next_header(draft, CommitId("w", 1, draft.header.version), "q", NOW, 0.1)
        content = self.blob.encode(header)
        read = codec.decode(content)
        assert ranked(read.jobs) == ranked(draft.freeze().jobs)
        assert header_of(read) == header_of(header)
        assert list(read.finished.items()) == list(header.finished.items())
        if outcome < 2:
            self.store = content
        if outcome == 0:
            self.blob.settle(header, len(content))
            self.check_lines()
        else:
            draft.rollback()
            self.current = outcome == 2  # the store kept the old blob, so the engine need not read it again

    @rule(slices=st.integers(0, 6))
    def be_cut_short_while_we_encode(self, slices):
        draft = self.blob.draft
        encoding = self.blob.encoding(next_header(draft, CommitId("w", 1, draft.header.version), "q", NOW, 0.1))
        for _ in range(slices):
            if next(encoding, self) is self:
                break
        encoding.close()
        draft.rollback()

    def check_lines(self):
        """Check that every job has its line, or is marked to be encoded."""
        blob = self.blob
        lines = {job_id: line for page in blob.pages for job_id, line in page.lines.items()}
        assert set(lines) == set(blob.pages._of)
        for job_id, line in lines.items():
            if job_id not in blob.draft.jobs.dirty:
                assert read_line(line) == blob.draft.jobs[job_id]
        assert set(blob.draft.jobs) - set(lines) <= set(blob.draft.jobs.dirty)
