"""The commit table: it tells a writer whether a write without a clean answer has landed.

Each write carries (writer id, token, version) in the blob. If a later version has this token, the write landed. A
missing token proves the opposite only while no record that young has been evicted, and while no other process has
committed as the same writer. A copy of a process does: a snapshot of a machine that runs twice.

The table has one record for each recent writer, as a writer has one write under way. A ring of the last commits would
lose that record to a busy neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from jqueue.domain.counters import with_moves
from jqueue.domain.draft import Draft, size_limit
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.events import batches_of
from jqueue.domain.fields import LARGEST
from jqueue.domain.header import (
    CommitRecord,
    Header,
    KeyHold,
    Table,
    TransactionRecord,
    WorkerRecord,
    large,
    with_workers,
)
from jqueue.domain.history import HistoryHeader, Moved, started, stopped, surplus_of, trimmed, with_batches
from jqueue.domain.limits import (
    CLIENTS_KEPT,
    FINISHED_KEPT,
    FINISHED_MINUTES,
    TRANSACTIONS_KEPT,
    WRITER_AGE,
    WRITERS_KEPT,
    finished_limit,
)
from jqueue.domain.rules import KEY_AHEAD, Usage, is_long_over, keys_over
from jqueue.domain.segments import Retention, retired_after
from jqueue.domain.turns import running

MANY_HOLDS = 1000
"""Number of kept keys above which a search for those whose time is over takes too long for every commit."""


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
        token: random, drawn for this write alone, so that two copies of the process never share one.
        base_version: the version that the write replaces.
    """

    writer: str
    sequence: int
    token: str
    base_version: int


class Commit(NamedTuple):
    """A commit that is about to be written.

    Attributes:
        id: the id that the write will carry.
        queue: the queue's id.
        now: the time of the commit.
        cycle: seconds that the writer takes to read and write the blob once.
        workers: records of the workers that the writer commits for; None for a worker that has ended.
        moved: events of the history that are in an object, and can be dropped from the header.
        drops_events: True if the writer cannot move the history, and drops the oldest events of a long outbox.
        versions_kept: number of latest versions whose writers are not forgotten for their age.
        retention: the times for which segments are kept.
    """

    id: CommitId
    queue: str
    now: datetime
    cycle: float
    workers: Mapping[str, WorkerRecord | None]
    moved: Moved | None
    drops_events: bool
    versions_kept: int
    retention: Retention


def next_header(draft: Draft, commit: Commit) -> Header:
    """Return the header of the version that a commit makes: with its record, and without entries that are too old.

    Raises:
        InvalidBlobError: the version can no longer grow.
    """
    header, write, at = draft.header, commit.id, commit.now.timestamp()
    if write.base_version >= LARGEST:
        raise InvalidBlobError(
            f"the queue's object has version {write.base_version}, the largest there is: stop every program that uses "
            "the queue, and write a smaller version into the header of the object"
        )
    version = write.base_version + 1
    commits = dict(header.commits)
    commits.pop(write.writer, None)
    evicted_through = max(header.evicted_through, _evict(commits, commit, WRITERS_KEPT - 1))
    commits[write.writer] = CommitRecord(write.sequence, version, round(at, 3), round(commit.cycle, 4), write.token)
    return msgspec.structs.replace(
        header,
        version=version,
        queue=commit.queue,
        commits=commits,
        evicted_through=evicted_through,
        last_sequence=draft.jobs.last_sequence,
        counters=with_moves(header.counters, draft.moves, commit.now, draft.bulk_moves),
        **_changed_tables(draft, commit, at),
    )


def _changed_tables(draft: Draft, commit: Commit, at: float) -> dict[str, Any]:
    """Return the fields of the header that time or the commit changes, as far as this queue uses them.

    Args:
        draft: the queue.
        commit: the commit.
        at: its time, in seconds since 1970.
    """
    header, manifest, changed = draft.header, draft.jobs.rows.manifest, dict[str, Any]()
    if header.finished or header.finished_minutes:
        changed |= _finished(header, at, size_limit(draft))
    if header.clients:
        changed["clients"] = clients = dict(header.clients)
        changed["clients_evicted"] = max(header.clients_evicted, _evict(clients, commit, CLIENTS_KEPT))
    if header.holds:
        changed["holds"] = _holds(header, at)
    if header.recent:
        changed["recent"] = _recent(header, at)
    if header.recent_keys:
        changed["recent_keys"] = _recent_keys(header, at)
    if header.turns or header.fair:
        changed["turns"], changed["fair"] = running(header, draft.jobs.order.waiting())
    if header.transactions:
        changed["transactions"] = _transactions(header, at)
    if header.workers or commit.workers:
        changed["workers"] = with_workers(header.workers, commit.workers, at)
    if header.history is not None or header.settings.history is not None:
        changed["history"] = _history(draft, commit)
    if manifest.committed or manifest.segments or header.retired:
        changed["segments"] = segments = manifest.after()
        changed["retired"] = retired_after(manifest.committed, segments, header.retired, at, commit.retention)
    return changed


def _finished(header: Header, at: float, blob_bytes: int) -> dict[str, Any]:
    """Return the fields about finished ids, without the oldest ids that are forgotten. They count by the minute."""
    finished, minutes, surplus = large(header.finished), list(header.finished_minutes), 0
    minute = int(round(at, 3) // 60)
    if fresh := len(finished) - sum(number for _, number in minutes):
        if fresh < 0:  # the table was edited by hand
            minutes, fresh = [], len(finished)
        last_minute = minutes.pop() if minutes and minutes[-1][0] >= minute else (minute, 0)
        minutes.append((last_minute[0], last_minute[1] + fresh))
    if minutes and minutes[0][0] < (since := minute - FINISHED_MINUTES):
        old = sum(number for began, number in minutes if began < since)
        surplus = max(0, min(old, len(finished) - FINISHED_KEPT))
        minutes = [(minutes[0][0], old), *(each for each in minutes if each[0] >= since)]
    if finished.size > finished_limit(blob_bytes):
        surplus = max(surplus, -(-len(finished) // 4))
    if not surplus:
        return {"finished_minutes": tuple(minutes)}
    floor = max(header.attempt_floor, *islice(finished.values(), surplus))
    newest_ids = Table(dict(islice(finished.items(), surplus, None)))
    left = surplus
    while left:
        began, number = minutes.pop(0)
        if number > left:
            minutes.insert(0, (began, number - left))
        left -= min(left, number)
    return {"finished": newest_ids, "finished_minutes": tuple(minutes), "attempt_floor": floor}


def _holds(header: Header, at: float) -> dict[str, KeyHold]:
    """Return the unique keys that are still kept. If they are many, only each 64th commit drops the others."""
    holds = header.holds
    if len(holds) > MANY_HOLDS and header.version % 64:
        return holds
    living = {key: hold for key, hold in holds.items() if hold.until > at}
    return holds if len(living) == len(holds) else Table(living)


def _evict(records: dict[str, Any], commit: Commit, limit: int) -> int:
    """Remove the records that are too old by their age and version, or too many. Return the highest version of them.

    Args:
        records: of commits or clients.
        commit: the commit that is made.
        limit: largest number of records that stay.
    """
    at, version = commit.now.timestamp(), commit.id.base_version - commit.versions_kept
    gone = [key for key, record in records.items() if at - record.at > WRITER_AGE and record.version <= version]
    if (surplus := len(records) - len(gone) - limit) > 0:
        gone += sorted(records.keys() - gone, key=lambda key: (records[key].version, key))[:surplus]
    return max([records.pop(key).version for key in gone]) if gone else 0


def _history(draft: Draft, commit: Commit) -> HistoryHeader | None:
    """Return the history after the commit, without the events that are in an object. All events of the commit stay."""
    history, settings, now = draft.header.history, draft.header.settings, commit.now
    if history is not None and commit.moved is not None:
        history = trimmed(history, commit.moved)
    if settings.history is None:
        return stopped(history)
    history, payloads = started(history, now), settings.history_payloads
    batches = batches_of(draft.moves, history.last + 1, now, payloads=payloads, bulk=draft.bulk_moves)
    return with_batches(history, batches, surplus_of(history, settings) if commit.drops_events else 0)


def _recent(header: Header, now: float) -> Mapping[str, tuple[Usage, ...]]:
    """Return the claims counted for rate limits, without the entrypoints whose claims no longer count by any clock."""
    recent = {}
    for entrypoint, usage in header.recent.items():
        rules = header.entrypoints.get(entrypoint)
        if rules is not None and rules.per is not None and not is_long_over(usage, now, rules.per):
            recent[entrypoint] = usage
    return recent


def _recent_keys(header: Header, now: float) -> Mapping[str, Mapping[str, tuple[Usage, ...]]]:
    """Return the claims counted for rates of keys, without the keys whose claims no longer count by any clock."""
    over = set(keys_over(header.recent_keys, header.entrypoints, now, KEY_AHEAD))
    if not over:
        return header.recent_keys
    recent_usage = {
        entrypoint: {key: usage for key, usage in usage_by_key.items() if (entrypoint, key) not in over}
        for entrypoint, usage_by_key in header.recent_keys.items()
    }
    return {entrypoint: usage_by_key for entrypoint, usage_by_key in recent_usage.items() if usage_by_key}


def _transactions(header: Header, now: float) -> Mapping[str, TransactionRecord]:
    """Return the transactions that are still remembered. If they are too many, the first to expire are dropped."""
    records = {app_id: record for app_id, record in header.transactions.items() if record.until > now}
    surplus = len(records) - TRANSACTIONS_KEPT
    for app_id in sorted(records, key=lambda app_id: records[app_id].until)[: max(0, surplus)]:
        del records[app_id]
    return records


def recognise(header: Header, commit: CommitId) -> Verdict:
    """Return the fate of a write.

    Args:
        header: a version read after the object's etag had changed from the etag that the write named.
        commit: the id of the write.
    """
    record = header.commits.get(commit.writer)
    if header.version < commit.base_version:
        return Verdict.UNKNOWABLE  # an older version was restored: the write may have landed before that
    if record is not None and record.token == commit.token:
        return Verdict.LANDED
    replaced = record.version - 1 if record is not None else 0  # a copy of this process may have replaced the record
    return Verdict.UNKNOWABLE if max(header.evicted_through, replaced) > commit.base_version else Verdict.NOT_DONE
