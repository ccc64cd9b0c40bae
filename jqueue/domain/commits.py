"""The commit table: how a writer finds out whether a write that it got no clean answer to has landed.

Each write carries (writer id, sequence, version) in the blob. Whoever reads a later version and finds the sequence
there knows that the write landed. Its absence is certain only while no record that young has been evicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.header import Header
from jqueue.domain.limits import FINISHED_KEPT, TRANSACTIONS_KEPT, VERSIONS_KEPT, WRITER_AGE, WRITERS_KEPT
from jqueue.domain.models import LARGEST, CommitRecord, QueueState, TransactionRecord
from jqueue.domain.rates import is_long_over
from jqueue.domain.rules import Usage

FINISHED_SLACK = FINISHED_KEPT // 4
"""So many ids more are kept before the oldest are dropped together."""


class Verdict(Enum):
    """What became of a write."""

    LANDED = "landed"
    NOT_DONE = "not done"
    UNKNOWABLE = "unknowable"


@dataclass(frozen=True, slots=True)
class CommitId:
    """What a write carries to be recognised by.

    Attributes:
        writer: the writer's id; one writer has one commit outstanding.
        sequence: the number of this write among the writer's.
        base_version: the version that the write was to replace.
    """

    writer: str
    sequence: int
    base_version: int


def next_header(
    draft: Draft, commit: CommitId, queue: str, now: datetime, cycle: float, versions_kept: int = VERSIONS_KEPT
) -> QueueState:
    """The header of the version that a commit makes: its record in the table, and what is too old dropped.

    Args:
        draft: the draft to be committed; it is not changed.
        commit: the id that the write will carry.
        queue: the queue's id.
        now: the time of the commit.
        cycle: seconds that the writer takes to read and write the blob once.
        versions_kept: who is among so many versions is not forgotten for its age.

    Raises:
        InvalidBlobError: the version cannot grow any more.
    """
    if commit.base_version >= LARGEST:
        raise InvalidBlobError(
            f"the queue's object has version {commit.base_version}, and no version may be larger: stop every program "
            "that uses it, and write a smaller one into its header"
        )
    at, header = now.timestamp(), draft.header
    commits = dict(header.commits)
    commits.pop(commit.writer, None)
    old = commit.base_version - versions_kept
    evicted = [writer for writer, record in commits.items() if at - record.at > WRITER_AGE and record.version <= old]
    surplus = len(commits) - len(evicted) + 1 - WRITERS_KEPT
    if surplus > 0:
        gone = set(evicted)
        oldest = sorted((record.version, writer) for writer, record in commits.items() if writer not in gone)
        evicted += [writer for _, writer in oldest[:surplus]]
    evicted_through = max([header.evicted_through, *(commits.pop(writer).version for writer in evicted)])
    commits[commit.writer] = CommitRecord(commit.sequence, commit.base_version + 1, round(at, 3), round(cycle, 4))
    finished, attempt_floor = header.finished, header.attempt_floor
    if len(finished) > FINISHED_KEPT + FINISHED_SLACK:
        entries = list(finished.items())
        attempt_floor = max(attempt_floor, *(attempt for _, attempt in entries[:-FINISHED_KEPT]))
        finished = dict(entries[-FINISHED_KEPT:])
    return QueueState.model_construct(
        version=commit.base_version + 1,
        queue=queue,
        critical=header.critical,
        commits=commits,
        evicted_through=evicted_through,
        finished=finished,
        holds={key: hold for key, hold in header.holds.items() if hold.until > at},
        attempt_floor=attempt_floor,
        last_sequence=draft.jobs.last_sequence,
        settings=header.settings,
        entrypoints=header.entrypoints,
        recent=_recent(header, at),
        schedules=header.schedules,
        transactions=_transactions(header, at),
        extra=header.extra,
    )


def _recent(header: Header, now: float) -> Mapping[str, tuple[Usage, ...]]:
    """The claims that count against a rate, without those that count by nobody's clock any more."""
    if not header.recent:
        return header.recent
    recent = {}
    for entrypoint, usage in header.recent.items():
        rules = header.entrypoints.get(entrypoint)
        if rules is not None and rules.per is not None and not is_long_over(usage, now, rules.per):
            recent[entrypoint] = usage
    return recent


def _transactions(header: Header, now: float) -> Mapping[str, TransactionRecord]:
    """The transactions that may still be repeated. If they are too many, those that would go first go."""
    if not header.transactions:
        return header.transactions
    kept = {app_id: record for app_id, record in header.transactions.items() if record.until > now}
    surplus = len(kept) - TRANSACTIONS_KEPT
    for app_id in sorted(kept, key=lambda app_id: kept[app_id].until)[: max(0, surplus)]:
        del kept[app_id]
    return kept


def recognise(header: QueueState, commit: CommitId) -> Verdict:
    """What became of a write, by a version read after the object's etag had moved from the one that it named."""
    record = header.commits.get(commit.writer)
    if header.version < commit.base_version:
        return Verdict.UNKNOWABLE  # an older version was put back: the write may have landed before that
    if record is not None and record.sequence == commit.sequence:
        return Verdict.LANDED
    return Verdict.UNKNOWABLE if header.evicted_through > commit.base_version else Verdict.NOT_DONE
