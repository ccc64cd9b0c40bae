"""The commit table: it tells a writer whether a write without a clean answer has landed.

Each write carries (writer id, sequence, version) in the blob. If a later version has this sequence, the write landed.
A missing sequence proves the opposite only while no record that young has been evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from itertools import islice

import msgspec

from jqueue.domain.counters import with_moves
from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.events import batches_of
from jqueue.domain.fields import LARGEST
from jqueue.domain.header import ClientRecord, CommitRecord, Header, TransactionRecord, WorkerRecord, with_workers
from jqueue.domain.history import HistoryHeader, Moved, started, stopped, surplus_of, trimmed, with_batches
from jqueue.domain.limits import CLIENTS_KEPT, FINISHED_KEPT, TRANSACTIONS_KEPT, VERSIONS_KEPT, WRITER_AGE, WRITERS_KEPT
from jqueue.domain.rules import Usage, is_long_over
from jqueue.domain.segments import RETENTION, Retention, retired_after

FINISHED_SLACK = FINISHED_KEPT // 4
"""Number of finished ids kept beyond `FINISHED_KEPT` before the oldest are dropped together."""


NO_WORKERS: Mapping[str, WorkerRecord | None] = {}


class Verdict(Enum):
    """The fate of a write."""

    LANDED = "landed"
    NOT_DONE = "not done"
    UNKNOWABLE = "unknowable"


class CommitId(msgspec.Struct, frozen=True):
    """The id of a write, by which it is recognised later.

    Attributes:
        writer: the writer's id. A writer has at most one commit outstanding.
        sequence: the number of the write, counted by the writer.
        base_version: the version that the write replaces.
    """

    writer: str
    sequence: int
    base_version: int


def next_header(
    draft: Draft,
    commit: CommitId,
    queue: str,
    now: datetime,
    cycle: float,
    versions_kept: int = VERSIONS_KEPT,
    workers: Mapping[str, WorkerRecord | None] = NO_WORKERS,
    moved: Moved | None = None,
    new_series: Callable[[], str] = lambda: "first",
    retention: Retention = RETENTION,
    drops_events: bool = False,
) -> Header:
    """Return the header of the version that a commit makes: with its record, and without entries that are too old.

    Args:
        draft: the draft to be committed; it is not changed.
        commit: the id that the write will carry.
        queue: the queue's id.
        now: the time of the commit.
        cycle: seconds that the writer takes to read and write the blob once.
        versions_kept: number of latest versions whose writers are not forgotten for their age.
        workers: records of the workers that the writer commits for; None for a worker that has ended.
        moved: events of the history that are in an object, and can be dropped from the header.
        new_series: makes the id of a series of objects for the history.
        retention: the times for which segments are kept.
        drops_events: True if the writer cannot move the history, and drops the oldest events of a long outbox.

    Raises:
        InvalidBlobError: the version can no longer grow.
    """
    if commit.base_version >= LARGEST:
        raise InvalidBlobError(
            f"the queue's object has version {commit.base_version}, the largest there is: stop every program that uses "
            "the queue, and write a smaller version into the header of the object"
        )
    at, header = now.timestamp(), draft.header
    commits, evicted_through = _commits(header, commit, at, versions_kept)
    commits[commit.writer] = CommitRecord(commit.sequence, commit.base_version + 1, round(at, 3), round(cycle, 4))
    clients, clients_evicted = _clients(header, commit, at, versions_kept)
    segments = draft.jobs.rows.manifest()
    finished, attempt_floor = header.finished, header.attempt_floor
    if len(finished) > FINISHED_KEPT + FINISHED_SLACK:
        surplus = len(finished) - FINISHED_KEPT
        attempt_floor = max(attempt_floor, *islice(finished.values(), surplus))
        finished = dict(islice(finished.items(), surplus, None))
    return msgspec.structs.replace(
        header,
        version=commit.base_version + 1,
        queue=queue,
        commits=commits,
        evicted_through=evicted_through,
        clients=clients,
        clients_evicted=clients_evicted,
        finished=finished,
        holds={key: hold for key, hold in header.holds.items() if hold.until > at} if header.holds else header.holds,
        attempt_floor=attempt_floor,
        last_sequence=draft.jobs.last_sequence,
        recent=_recent(header, at) if header.recent else header.recent,
        transactions=_transactions(header, at) if header.transactions else header.transactions,
        counters=with_moves(header.counters, draft.moves, now, draft.bulk_moves),
        workers=with_workers(header.workers, workers, at, commit.writer)
        if header.workers or workers
        else header.workers,
        history=_history(draft, now, moved, new_series, drops_events),
        segments=segments,
        retired=retired_after(draft.jobs.rows.committed, segments, header.retired, at, retention),
    )


def _commits(header: Header, commit: CommitId, at: float, versions_kept: int) -> tuple[dict[str, CommitRecord], int]:
    """Return the commit table without the writer's own record and without old records, and `evicted_through`."""
    commits = dict(header.commits)
    commits.pop(commit.writer, None)
    gone = _old(commits, at, commit.base_version - versions_kept, WRITERS_KEPT - 1)
    if not gone:
        return commits, header.evicted_through
    return commits, max([header.evicted_through, *(commits.pop(writer).version for writer in gone)])


def _clients(header: Header, commit: CommitId, at: float, versions_kept: int) -> tuple[dict[str, ClientRecord], int]:
    """Return the table of clients without old records, and the highest version of those that it has dropped."""
    if not header.clients:
        return header.clients, header.clients_evicted
    clients = dict(header.clients)
    gone = _old(clients, at, commit.base_version - versions_kept, CLIENTS_KEPT)
    return clients, max([header.clients_evicted, *(clients.pop(client).version for client in gone)])


def _old(
    records: Mapping[str, CommitRecord] | Mapping[str, ClientRecord], at: float, version: int, kept: int
) -> list[str]:
    """Return the keys of the records that are too old by their age and version, or too many."""
    evicted = [key for key, record in records.items() if at - record.at > WRITER_AGE and record.version <= version]
    surplus = len(records) - len(evicted) - kept
    if surplus > 0:
        gone = set(evicted)
        oldest = sorted((record.version, key) for key, record in records.items() if key not in gone)
        evicted += [key for _, key in oldest[:surplus]]
    return evicted


def _history(
    draft: Draft, now: datetime, moved: Moved | None, new_series: Callable[[], str], drops_events: bool
) -> HistoryHeader | None:
    """Return the history after the commit, without the events that are in an object. All events of the commit stay."""
    history, settings = draft.header.history, draft.header.settings
    if history is None and settings.history is None:
        return None
    if history is not None and moved is not None:
        history = trimmed(history, moved, new_series)
    if settings.history is None:
        return stopped(history)
    history, payloads = started(history, now, new_series), settings.history_payloads
    batches = batches_of(draft.moves, history.last + 1, now, payloads=payloads, bulk=draft.bulk_moves)
    return with_batches(history, batches, surplus_of(history, settings) if drops_events else 0)


def _recent(header: Header, now: float) -> Mapping[str, tuple[Usage, ...]]:
    """Return the claims counted for rate limits, without the entrypoints whose claims no longer count by any clock."""
    recent = {}
    for entrypoint, usage in header.recent.items():
        rules = header.entrypoints.get(entrypoint)
        if rules is not None and rules.per is not None and not is_long_over(usage, now, rules.per):
            recent[entrypoint] = usage
    return recent


def _transactions(header: Header, now: float) -> Mapping[str, TransactionRecord]:
    """Return the transactions that are still remembered. If they are too many, the first to expire are dropped."""
    kept = {app_id: record for app_id, record in header.transactions.items() if record.until > now}
    surplus = len(kept) - TRANSACTIONS_KEPT
    for app_id in sorted(kept, key=lambda app_id: kept[app_id].until)[: max(0, surplus)]:
        del kept[app_id]
    return kept


def recognise(header: Header, commit: CommitId) -> Verdict:
    """Return the fate of a write.

    Args:
        header: a version read after the object's etag had changed from the etag that the write named.
        commit: the id of the write.
    """
    record = header.commits.get(commit.writer)
    if header.version < commit.base_version:
        return Verdict.UNKNOWABLE  # an older version was restored: the write may have landed before that
    if record is not None and record.sequence == commit.sequence:
        return Verdict.LANDED
    return Verdict.UNKNOWABLE if header.evicted_through > commit.base_version else Verdict.NOT_DONE
