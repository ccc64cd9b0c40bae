"""Other queues, and the programs that run the workload of the rows `file` and `worker` on each of them.

The workload of `file`: `jobs` jobs of 64 bytes are enqueued one by one, with one call for each, and when all are in,
all are claimed and acked one by one. An asynchronous peer has `in_flight` tasks; another has one caller or several
threads, whichever was faster (`"threads": 4` tries something else). Each program checks that it saw every job exactly
once and left the queue empty, and fails if not. Only pailq may see a job again, which happens in nearly every run: it
tells how often.

The workload of `worker` is for peers with a worker to compare with ours: the jobs are enqueued in the same way,
and then run by the worker of the peer, up to `in_flight` at a time, with a handler that does nothing but note which job
it saw. Three programs run their worker in both rows, as it is their only way to claim; SAQ has a program for it.

A program takes one JSON object: `jobs`, `payload_bytes`, `in_flight`, `folder` (empty, on a disk), and what it `needs`:

- redis, postgres: `url`;
- s3: `url` (of the endpoint), `access_key`, `secret_key`, `region`. It makes a bucket of its own, and removes it.

A program of a worker also takes `warm_jobs`, the number of unmeasured jobs that go through a separate queue first.

It prints `enqueue_per_second`, `work_per_second` and `jobs_per_second` (over both phases); pailq also `twice`.

Programs share no code and import nothing of ours, because each runs where only its peer is installed. They are named
for the peer and its store: the folder of a program comes first on its path, where a file with a package's name would
hide the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_PROGRAMS = Path(__file__).parent
_REQUIREMENTS = _PROGRAMS.parent / "requirements"

Server = Literal["redis", "postgres", "s3"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another queue.

    Attributes:
        name: name of the peer and of its environment.
        program: the file that runs it.
        requirements: the pinned requirements of its environment.
        needs: the server that it runs on, if any.
        jobs: number of jobs that is enough for a figure.
        note: a remark that readers need beside its figures.
    """

    name: str
    program: Path
    requirements: Path
    needs: Server | None
    jobs: int
    note: str


def _peer(name: str, program: str, note: str, needs: Server | None = None, jobs: int = 2000) -> Peer:
    return Peer(name, _PROGRAMS / program, _REQUIREMENTS / f"{name}.txt", needs, jobs, note)


@dataclass(frozen=True, slots=True)
class PeerWorker:
    """The worker of another queue.

    Attributes:
        program: the file that enqueues the jobs and then runs the worker.
        note: a remark that readers need beside its figures.
        settings: arguments of its program besides the workload: the fastest that we found.
    """

    program: Path
    note: str
    settings: Mapping[str, Any] = field(default_factory=dict)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        _peer("dirq", "dirq_simple.py", "a folder of files; no fsync"),
        _peer("litequeue", "litequeue_sqlite.py", "SQLite; no fsync for a commit (synchronous=NORMAL)"),
        _peer("persist-queue", "persist_queue_sqlite.py", "SQLite; fsync for each commit"),
        _peer("huey", "huey_sqlite.py", "SQLite; fsync for each commit; no ack: a job is gone once taken"),
        _peer(
            "vsqs",
            "vsqs_files.py",
            "a folder of files; fsync of each file; 300 jobs: it gets slower with more",
            jobs=300,
        ),
        _peer("saq", "saq_redis.py", "Redis without persistence: no fsync, nothing outlives the server", "redis"),
        _peer("arq", "arq_redis.py", "Redis without persistence: no fsync, nothing outlives the server", "redis"),
        _peer("taskiq", "taskiq_streams.py", "Redis without persistence: no fsync; fetches 100 at a time", "redis"),
        _peer(
            "pgqueuer", "pgqueuer_postgres.py", "Postgres with fsync; its worker claims and acks in batches", "postgres"
        ),
        _peer(
            "pailq",
            "pailq_s3.py",
            "S3; 16 threads enqueue, 8 work (2 are faster); 200 jobs; some are claimed twice",
            "s3",
            jobs=200,
        ),
    )
}

WORKERS: dict[str, PeerWorker] = {
    "saq": PeerWorker(_PROGRAMS / "saq_worker.py", "Redis without persistence; no results"),
    "arq": PeerWorker(PEERS["arq"].program, "Redis without persistence; no results; polls every 0.05 s"),
    "taskiq": PeerWorker(
        PEERS["taskiq"].program, "Redis without persistence; no results; fetches 1,000 at a time", {"fetch": 1000}
    ),
    "pgqueuer": PeerWorker(
        PEERS["pgqueuer"].program, "Postgres with fsync; claims and acks in batches of 50", {"poll_seconds": 0.001}
    ),
}
"""Workers of peers, by the name of the peer."""
