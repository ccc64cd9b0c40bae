"""Checks segments from the chain of versions and the store: the manifest is true, and no row is lost or doubled.

The jobs in segments are a part of each version, so all other rules hold for them too. A spill, an admission and a merge
show as a change of places only: a job that vanished, appeared or changed by one of them breaks the rule that it would
break in the blob.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from zlib import crc32

from jqueue.testing.virtual_time import EPOCH
from tests.simulation.chain import NOTHING, QUEUED, Fields, Version, object_of, status_of
from tests.simulation.history import Evidence, Violation
from tests.simulation.network import HonestStore, Landing
from tests.simulation.stored_segments import FOLDER, NAMED, StoredRow, StoredSegment
from tests.simulation.workload import KEPT_FOR, READ_FOR, STAGED_KEPT

SEGMENT = 19
"""Number of the rule: a job is in one place, and the manifest is true."""

OBJECTS = 17
"""Number of the rule: what a commit names is there."""

LEASE = frozenset({"claims", "failures", "heartbeat_at", "claim_timeout", "claimed_at", "holder"})
"""Facts of a manifest's entry that change with its lease."""

CHANGING = frozenset({"taken", "head", "oldest", *LEASE})
"""Facts of a manifest's entry that change: while its rows are taken, and with its lease."""


STAGED = re.compile(r"\.segments/staged-(?P<app>[0-9a-f]{32})-(?P<version>\d+)-.*")
"""The suffix of a segment that is staged for a transaction."""


class SegmentsAudit:
    """Checks the segments of every version.

    Args:
        store: the store at the end.
        evidence: of the seed.

    Attributes:
        seen: number of times that something happened, by name.
    """

    def __init__(self, store: HonestStore, evidence: Evidence) -> None:
        self.seen: Counter[str] = Counter()
        self._store = store
        self._seed = evidence
        self._dropped: dict[str, Version] = {}

    def check(self) -> None:
        """Check the chain, and the removal of objects.

        Raises:
            Violation: the rule is broken.
        """
        before, versions = NOTHING, self._seed.versions
        for after, following in zip(versions, [*versions[1:], None][: len(versions)], strict=True):
            if after.segments or before.segments:
                self._check_step(before, after)
                self._check_presence(after, float("inf") if following is None else following.at)
            before = after
        self._check_removals()
        self._check_waits(versions)

    def _check_step(self, before: Version, after: Version) -> None:
        if after.doubles:
            raise Violation(SEGMENT, f"{min(after.doubles)} is in two places", version=after)
        for name, entry in after.segments.items():
            old = before.segments.get(name)
            if old == entry:
                continue
            if old is None and object_of(name) in map(object_of, before.segments):
                self._check_split(name, entry, before, after)
            elif old is None:
                self._check_naming(name, entry, after)
            else:
                self._check_same(name, old, entry, before, after)
            self._check_rows(name, entry, after.stored[object_of(name)], after)
        for name in set(map(object_of, before.segments)) - set(map(object_of, after.segments)):
            self._dropped[name] = after
            self.seen["segment left the manifest"] += 1
        kept = (
            job_id for job_id in before.rows.keys() & after.rows.keys() if before.rows[job_id] != after.rows[job_id]
        )
        merged = ((object_of(before.rows[job_id][0]), object_of(after.rows[job_id][0])) for job_id in kept)
        self.seen["segments merged"] += len({old for old, new in merged if old != new})
        self.seen["lease claimed"] += len(after.leases.keys() - before.leases.keys())
        self.seen["row admitted"] += len(before.rows.keys() - after.rows.keys())

    def _check_naming(self, name: str, entry: Fields, after: Version) -> None:
        """Check a segment that is named for the first time, and the facts about it that never change."""
        self.seen["segment named"] += 1
        segment, created = after.stored.get(object_of(name)), self._store.created.get(FOLDER + object_of(name))
        if object_of(name) in self._dropped:
            raise Violation(SEGMENT, f"the segment {name} was named a second time", version=after)
        if created is None or created[0] > after.at or segment is None:
            raise Violation(SEGMENT, f"the segment {name} was named, and is not there", version=after)
        keys = [row.key(entry.get("offset", 0)) for row in segment.rows]
        wrong = segment.fault(entry.get("chunk_rows", 256))
        if wrong is None and keys != sorted(keys, key=lambda key: _order(key, entry)):
            wrong = "the order of its rows"
        if wrong is None and any(_is_foreign(row, entry) for row in segment.rows):
            wrong = "one of its jobs"
        if wrong is None and len({row.job_id for row in segment.rows}) < len(segment.rows):
            wrong = "an id that it has twice"
        if wrong is None:
            wrong = _wrong_fact(segment, entry)
        if wrong is not None:
            raise Violation(SEGMENT, f"the segment {name} was named, and {wrong} is wrong", version=after)

    def _check_split(self, name: str, new: Fields, before: Version, after: Version) -> None:
        """Check a new entry for a segment that had entries: its rows and its facts are those of one of them."""
        segment, there = after.stored[object_of(name)], []
        for old_name, old in before.segments.items():
            changed = {fact for fact in {*old, *new} if old.get(fact) != new.get(fact)}
            if object_of(old_name) == object_of(name) and not changed - CHANGING:
                there.append(segment.waiting(old).keys() >= segment.waiting(new).keys())
        if not any(there):
            raise Violation(SEGMENT, f"the entry {name} has rows or facts that no entry had", version=after)

    def _check_same(self, name: str, old: Fields, new: Fields, before: Version, after: Version) -> None:
        """Check an entry that was there before: its facts stay, and a row that was taken stays taken."""
        changed = {fact for fact in {*old, *new} if old.get(fact) != new.get(fact)}
        if changed - CHANGING:
            raise Violation(SEGMENT, f"the {min(changed - CHANGING)} of the segment {name} changed", version=after)
        if new.get("claims", 0) > old.get("claims", 0):
            raise Violation(SEGMENT, f"the entry {name} was leased under its old name", version=after)
        segment = after.stored[object_of(name)]
        again = segment.waiting(new).keys() - segment.waiting(old).keys()
        if again:
            raise Violation(
                SEGMENT, f"row {min(again)} of the segment {name} was taken, and waits again", version=after
            )

    def _check_rows(self, name: str, entry: Fields, segment: StoredSegment, after: Version) -> None:
        """Check the facts about the rows that wait."""
        edge = -1
        for first, last in entry.get("taken", ()):
            if not edge < first < last <= len(segment.rows):
                raise Violation(SEGMENT, f"the spans of the segment {name} are not in order", version=after)
            edge = last
        waiting = segment.waiting(entry)
        if not waiting and "claimed_at" in entry:
            return
        if not waiting:
            raise Violation(SEGMENT, f"the segment {name} has no row that waits", version=after)
        offset = entry.get("offset", 0)
        if _order(entry["head"], entry) > min(_order(row.key(offset), entry) for row in waiting.values()):
            raise Violation(SEGMENT, f"a row of the segment {name} comes before its head", version=after)
        if entry.get("oldest", 0.0) > min(row.since for row in waiting.values()):
            raise Violation(SEGMENT, f"a row of the segment {name} is older than its oldest", version=after)

    # Objects

    def _check_presence(self, version: Version, replaced: float) -> None:
        """Check that each segment, and each object that its rows name, exists while this version is the present one."""
        for name in version.segments:
            if self._store.removed.get(FOLDER + object_of(name), replaced) < replaced:
                raise Violation(SEGMENT, f"the segment {name} was removed while it was named", version=version)

    def _check_removals(self) -> None:
        """Check that no object was removed for its age before its time, or while a reader might need it."""
        for suffix, removed in self._store.removed.items():
            if suffix.startswith((FOLDER, ".payloads/", ".results/")):
                self.seen["object removed"] += 1
                early = removed - self._store.created[suffix][0] < KEPT_FOR.total_seconds()
                if early and not STAGED.fullmatch(suffix):  # `_check_waits` looks at these
                    raise Violation(SEGMENT, f"the object {suffix} was removed before its time")
            version = self._dropped.get(suffix.removeprefix(FOLDER)) if suffix.startswith(FOLDER) else None
            if version is not None:
                self.seen["segment removed"] += 1
                if self._seed.tells_time and EPOCH.timestamp() + removed < version.clock + READ_FOR:
                    what = f"the segment {suffix} was removed {READ_FOR:.0f} s or less after it was named last"
                    raise Violation(SEGMENT, what, version=version)

    def _check_waits(self, versions: Sequence[Version]) -> None:
        """Check that staged segments were kept until their transactions were done, or for long enough."""
        for suffix, removed in self._store.removed.items():
            staged = STAGED.fullmatch(suffix)
            if staged is None or removed - self._store.created[suffix][0] >= STAGED_KEPT.total_seconds():
                continue
            last = max((version for version in versions if version.at <= removed), key=lambda each: each.number)
            if not any(
                sha256(app.encode()).hexdigest().startswith(staged["app"]) and record[0] >= int(staged["version"])
                for app, record in last.transactions.items()
            ):
                raise Violation(SEGMENT, f"the segment {suffix} was removed, and its commit may still come")
            self.seen["staged segment removed"] += 1


def _is_foreign(row: StoredRow, entry: Fields) -> bool:
    return status_of(row.job) != QUEUED or row.job["entrypoint"] != entry["entrypoint"]


def _wrong_fact(segment: StoredSegment, entry: Fields) -> str | None:
    """Return the first fact that an entry has wrong; None if there is none."""
    content, offset = segment.content, entry.get("offset", 0)
    facts = {
        "rows": len(segment.rows),
        "bytes": len(content),
        "index": segment.index,
        "crc": crc32(content[segment.index :]),
        "keys": sum(row.job.get("unique_key") is not None for row in segment.rows),
        "objects": len(segment.said.get("objects", ())),
    }
    wrong = [fact for fact, value in facts.items() if entry.get(fact, 0) != value]
    if entry.get("least", 0) > min(row.key(offset)[1] for row in segment.rows):
        wrong.append("least")
    return min(wrong, default=None)


def _order(key: Sequence[float], entry: Fields) -> tuple[float, ...]:
    """Return the order of a key among the rows of its segment."""
    priority, sequence, since = key
    if entry.get("scheduled"):
        return since, priority, sequence
    return priority, sequence


def check_objects(landings: Sequence[Landing], versions: Sequence[Version], store: HonestStore) -> int:
    """Check every version. Return the number of names that were checked.

    Raises:
        Violation: an object was not there, not whole, or removed too early.
    """
    named = 0
    following = [*landings[1:], None][: len(landings)]
    for landing, version, after in zip(landings, versions, following, strict=True):
        replaced = float("inf") if after is None else after.at
        for suffix, size, digest in (*NAMED.findall(landing.content), *_named_in(version)):
            named += 1
            name = suffix.decode()
            if name not in store.created or store.created[name][0] > landing.at:
                raise Violation(OBJECTS, f"the object {name} was named before it was there", version=version)
            content = store.created[name][1]
            if (len(content), sha256(content).hexdigest()) != (int(size), digest.decode()):
                raise Violation(OBJECTS, f"the object {name} is not whole", version=version)
            if store.removed.get(name, float("inf")) < replaced:
                raise Violation(OBJECTS, f"the object {name} was removed while a job named it", version=version)
    return named


def _named_in(version: Version) -> Iterable[tuple[bytes, bytes, bytes]]:
    """Yield the name, the size and the digest of each object that a waiting row of a version names."""
    for segment in version.stored.values():
        if segment.said.get("objects", ()):
            for row in segment.rows:
                if row.job_id in version.rows or row.job_id in version.leased:
                    yield from row.named
