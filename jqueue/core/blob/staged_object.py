"""Staged jobs: a task of a bulk enqueue writes them into an object of its own, and a commit adds them to the queue.

The first line of the object is JSON with a checksum of everything after it. The second line is JSON that describes the
rest. Then come the lines of the jobs as they will be in the blob, but without their places, which only the commit
knows. So a commit adds a hundred thousand jobs without parsing one of them. Jobs with a unique key are kept in the
second line, as arguments of an `Enqueue`, because their key may be taken. So are jobs with a concurrency key: the blob
must then say that it has limits.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from pydantic_core import from_json

from jqueue.core.blob.lines import dump_ascii, encode_places, encode_unplaced, encode_unplaced_plain
from jqueue.core.blob.pages import SEPARATOR
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import InvalidBlobError, InvalidJobError
from jqueue.domain.job_options import IN_BULK, check_names, options_of_plain, plain_options
from jqueue.domain.limits import Limits, check_name, check_payloads
from jqueue.domain.operations import Preparation, StagedJobs, new_job

FORMAT = 2

MARK = b"\x00"
"""Marks where the place of a job will be. It cannot occur in a line, as JSON escapes it in every text."""

PLACE_BYTES = len(', "sequence": 1234567, "created_at": "2026-01-01T00:00:00.000000+00:00"') + len(SEPARATOR)
"""Approximate number of bytes that the place of a job adds to its line."""

RUN_AT_BYTES = len(', "run_at": "2026-01-01T00:00:00.000000+00:00"')
"""Number of bytes that a delay adds to the line of a job."""


@dataclass(frozen=True, slots=True)
class StagedLines:
    """The lines of staged jobs, without their places.

    Attributes:
        jobs: number of jobs.
        size: approximate number of bytes that they will take in the blob.
        unplaced: the lines, joined.
        delays: for each run of jobs with the same delay, in order, their number and the delay in seconds or None.
        entrypoints: number of jobs of each entrypoint.
    """

    jobs: int
    size: int
    unplaced: bytes = field(repr=False)
    delays: Sequence[tuple[int, float | None]]
    entrypoints: Mapping[str, int]

    def text(self, first: int, now: datetime) -> bytes:
        """Return the lines with sequence numbers from `first` on, created at `now`, joined as in the blob."""
        places: list[bytes] = []
        for jobs, delay in self.delays:
            run_at = None if delay is None else now + timedelta(seconds=delay)
            places += encode_places(first + len(places), jobs, now, run_at)
        parts = self.unplaced.split(MARK)
        return b"".join(chain.from_iterable(zip(parts, [*places, b""], strict=True)))


class StagedWriter:
    """Encodes jobs, one by one or many at a time, into the content of one staged object.

    Args:
        limits: largest sizes that the queue accepts.

    Attributes:
        jobs: number of jobs so far.
        bytes: approximate number of bytes that they will take in the blob.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = Limits() if limits is None else limits
        self.jobs = 0
        self.bytes = 0
        self._lines: list[bytes] = []
        self._line_bytes = 0
        self._delays: list[tuple[int, float | None]] = []
        self._keyed: list[dict[str, Any]] = []
        self._entrypoints: Counter[str] = Counter()

    def add(
        self,
        job_id: str,
        entrypoint: str,
        payload: bytes = b"",
        priority: int = 0,
        **options: Any,
    ) -> None:
        """Add a job. A delay counts from the commit. A job with a unique key or a concurrency key gets another id.

        Args:
            job_id: of the job.
            entrypoint: the name of the handler.
            payload: bytes-like.
            priority: lower is served first.
            options: options of `Enqueue` that are allowed in a bulk enqueue.

        Raises:
            InvalidJobError: an argument is wrong.
            TypeError: there is no such option here.
        """
        check_names("StagedWriter.add", options, IN_BULK)
        preparation = Preparation(self.limits, 1.0, lambda: job_id, _no_claims)
        new = new_job(preparation, entrypoint, payload, priority, job_id=job_id, **options)
        self.jobs += 1
        if new.values["unique_key"] is None and new.values["concurrency_key"] is None:
            self._add_lines([encode_unplaced(new.values, MARK)], entrypoint, new.delay)
            return
        self.bytes += new.stored_bytes()
        row = {"entrypoint": entrypoint, "payload": b64encode(new.values["payload"]).decode(), "priority": priority}
        self._keyed.append({**row, **plain_options(options)})

    def add_plain(
        self, job_ids: Sequence[str], entrypoint: str, payloads: Sequence[bytes], keep_result: float | None = None
    ) -> None:
        """Add many jobs of one entrypoint without other options. The ids must come from an `Entropy`.

        Raises:
            InvalidJobError: the entrypoint or a payload is wrong.
        """
        check_name("entrypoint", entrypoint, self.limits)
        check_payloads(payloads, self.limits)
        kept = None if keep_result is None else to_seconds("keep_result", keep_result)
        lines = encode_unplaced_plain(job_ids, entrypoint, payloads, MARK, kept)
        if lines:
            self.jobs += len(lines)
            self._add_lines(lines, entrypoint, None)

    def finish(self) -> bytes:
        """Return the content of the staged object."""
        said = {
            "lines": len(self._lines),
            "bytes": self._line_bytes,
            "delays": self._delays,
            "keyed": self._keyed,
            "entrypoints": self._entrypoints,
        }
        rest = dump_ascii(said).encode() + b"\n" + SEPARATOR.join(self._lines)
        return b"%b\n%b" % (dump_ascii({"staged": FORMAT, "crc": zlib.crc32(rest)}).encode(), rest)

    def _add_lines(self, lines: list[bytes], entrypoint: str, delay: float | None) -> None:
        jobs = len(lines)
        self._entrypoints[entrypoint] += jobs
        self._lines += lines
        size = sum(map(len, lines)) + jobs * (PLACE_BYTES + (0 if delay is None else RUN_AT_BYTES))
        self._line_bytes += size
        self.bytes += size
        if self._delays and self._delays[-1][1] == delay:
            jobs += self._delays.pop()[0]
        self._delays.append((jobs, delay))


def read_staged(content: bytes) -> StagedJobs:
    """Read the jobs of a staged object.

    Raises:
        InvalidBlobError: it is damaged, or not a staged object.
    """
    damaged = f"staged jobs ({len(content)} bytes) are damaged or cut off: write them again"
    head, _, rest = content.partition(b"\n")
    try:
        told = from_json(head)
        if told["staged"] != FORMAT:
            raise InvalidBlobError(
                "the staged jobs were written by another version of jqueue: use one version everywhere and write them "
                "again"
            )
        if told["crc"] != zlib.crc32(rest):
            raise InvalidBlobError(damaged)
        said, _, body = rest.partition(b"\n")
        found = from_json(said)
        delays = [(jobs, delay) for jobs, delay in found["delays"]]
        lines = StagedLines(found["lines"], found["bytes"], body, delays, found["entrypoints"])
        keyed = [_arguments(row) for row in found["keyed"]]
    except (ValueError, TypeError, LookupError):
        raise InvalidBlobError(damaged) from None
    return StagedJobs(lines, keyed)


def _arguments(row: dict[str, Any]) -> dict[str, Any]:
    row["payload"] = b64decode(row["payload"], validate=True)
    return options_of_plain(row)


def _no_claims(job: object) -> Any:
    raise InvalidJobError("staged jobs have no claims")
