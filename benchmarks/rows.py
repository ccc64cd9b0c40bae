"""Every row of the benchmarks: its measurement, its contestants and its targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.contest import (
    FIRST_RELEASE,
    OURS,
    PROGRAMS,
    Contestant,
    Line,
    Measure,
    Need,
    Row,
    against,
    alone,
    first_release,
    ours,
)
from benchmarks.figures import Target
from benchmarks.format_rows import format_rows
from benchmarks.peers import PEERS, WORKERS, Peer
from benchmarks.spark_rows import pipeline_rows

PAYLOAD = 64
NO_FLUSH = "no fsync"
DEPTHS = {0: 5, 1_000: 12, 10_000: 50}
"""Numbers of standing jobs, each with the target speed of ours as a multiple of the first release's."""

GROWTH = {64: 100_000, 1_024: 10_000, 16_384: 1_000}
"""Sizes of payloads, and the depth up to which their queue fits the limit of 64 MiB."""

DEPTHS_OF_GROWTH = (0, 10, 100, 1_000, 10_000, 100_000)
SECONDS_WITH_GAPS = 36.0
"""Seconds for a lone broker 50 ms away, with some 450 commits. It leaves a gap for new writers after each 128. In 10 s,
chance decides if there is one at all, and a gap delays 1 call in 40: enough to decide the 99th percentile."""

POLL = 0.25
LONG = 600
"""Seconds that the first release may take where it is known to be slow."""


def all_rows(peers: Sequence[str] | None = None) -> list[Row]:
    """Every row, in the order of the table.

    Args:
        peers: the names of the peers that take part; None for all.
    """
    chosen = [peer for name, peer in PEERS.items() if peers is None or name in peers]
    return [
        *depth_rows(),
        *deep_rows(),
        file_row([peer for peer in chosen if peer.needs != "s3"]),
        *commits_rows(),
        seaweedfs_row([peer for peer in chosen if peer.needs == "s3"]),
        worker_row([peer for peer in chosen if peer.name in WORKERS]),
        chord_row(with_celery=peers is None or CELERY in peers),
        *latency_rows(),
        *idle_rows(),
        *fair_rows(),
        *shared_rows(peers),
        pacing_row(),
        stalls_row(),
        direct_row(),
        memory_row(),
        *growth_rows(),
        *pipeline_rows(),
        *(format_rows() if peers is None else ()),
    ]


def depth_rows() -> list[Row]:
    """A broker under load, over standing jobs."""
    rows = []
    for storage in ("memory", "file"):
        rows += [
            depth_row(storage, f"depth {depth:,}", depth_arguments(storage, depth), target)
            for depth, target in DEPTHS.items()
        ]
    given = {**depth_arguments("memory", 1000), "standing": "report"}
    standing = depth_row("memory", "1,000 standing jobs of another entrypoint", given, DEPTHS[1000])
    return [*rows, standing, *(short_row(storage) for storage in ("memory", "file"))]


def depth_row(storage: str, over: str, given: dict[str, Any], target: float) -> Row:
    """A broker under load, against the first release."""
    note = NO_FLUSH if storage == "file" else ""
    return Row(
        "depth",
        f"broker, {storage}, 200 in flight, {over}",
        (ours("depth", given), first_release("depth", given, note=note)),
        (against("operations_per_second", FIRST_RELEASE, Target(">=", target), "operations/s"),),
    )


def short_row(storage: str) -> Row:
    """A short queue under load, against one with `hot_bytes=None`, in turns in one process."""
    given = {**depth_arguments(storage, 100, seconds=0.4), "turns": 30}
    rates = Measure(OURS, "operations_per_second"), Measure(OURS, "operations_per_second_without_segments")
    return Row(
        "short",
        f"brokers, {storage}, 200 in flight, depth 100, in turns",
        (ours("short", given),),
        (Line("operations/s, against hot_bytes=None", *rates, Target(">=", 0.95)),),
    )


def depth_arguments(storage: str, depth: int, in_flight: int = 200, seconds: float = 2.0) -> dict[str, Any]:
    """Return the arguments of the program of [depth]."""
    return {
        "storage": storage,
        "depth": depth,
        "in_flight": in_flight,
        "seconds": seconds,
        "warm_seconds": 0.3,
        "payload_bytes": PAYLOAD,
    }


def deep_rows() -> list[Row]:
    """A broker over a million jobs that wait, against the same over a thousand."""
    needs: dict[str, Need | None] = {"file": None, "s3": "far s3"}
    places = {"file": "a file", "s3": "SeaweedFS 50 ms away"}
    return [deep_row(storage, need, places[storage]) for storage, need in needs.items()]


def deep_row(storage: str, need: Need | None, place: str) -> Row:
    """A million waiting jobs on one storage."""
    short = "depth 1,000"
    in_flight, seconds = (100, 5.0) if storage == "file" else (500, SECONDS_WITH_GAPS)
    given = {"storage": storage, "in_flight": in_flight, "seconds": seconds, "payload_bytes": PAYLOAD}
    on_a_file = (
        alone("filled_per_second", Target(">=", 100_000), "jobs/s of one bulk enqueue, flushed"),
        alone("in_leases_per_second", Target(">=", 100_000), "jobs/s claimed and ended in leases"),
    )
    return Row(
        "deep",
        f"broker, {place}, {in_flight} in flight, each claim one of 1,000,000 waiting jobs",
        (
            ours("deep", {**given, "depth": 1_000_000, "leases": storage == "file"}, needs=need, timeout=LONG),
            ours("deep", {**given, "depth": 1_000}, name=short, needs=need),
        ),
        (
            against("operations_per_second", short, Target(">=", 0.8), "operations/s"),
            against("claim_ms", short, Target("<=", 1.5), "ms to claim and ack, 99th percentile"),
            against("enqueue_ms", short, Target("<=", 1.5), "ms to enqueue, 99th percentile"),
            against("open_seconds", short, Target("<=", 2), "seconds to open and claim a first job"),
            alone("resident_mebibytes", Target("<=", 150), "MiB resident"),
            *(on_a_file if storage == "file" else ()),
        ),
        most_runs=3,
    )


def file_row(peers: Sequence[Peer]) -> Row:
    """Two thousand jobs on a file, against every peer."""
    given = {"storage": "file", "jobs": 2_000, "in_flight": 100, "payload_bytes": PAYLOAD}
    return Row(
        "file",
        "2,000 jobs on a file, one by one, 100 in flight",
        (ours("phases", given), first_release("phases", given, note=NO_FLUSH), *map(peer_contestant, peers)),
        (
            against("enqueue_per_second", FIRST_RELEASE, None, "enqueue/s"),
            against("work_per_second", FIRST_RELEASE, Target(">=", 40), "claim + ack/s"),
            against("jobs_per_second", FIRST_RELEASE, None, "jobs/s"),
            *(against("jobs_per_second", peer.name, Target(">", 1), "jobs/s") for peer in peers),
        ),
    )


def commits_rows() -> list[Row]:
    """Commits per second of the queue, as a share of bare writes to the disk."""
    lines = (
        Line(
            "commits/s, against bare writes, fsyncs and renames of the same bytes",
            Measure(OURS, "commits_per_second"),
            Measure(OURS, "bare_commits_per_second"),
            Target(">=", 0.7),
        ),
        alone("bytes_per_commit", None, "bytes in a commit"),
    )
    return [
        Row(
            "commits",
            f"commits on a file, depth {depth:,}",
            (ours("commits", {"depth": depth, "in_flight": 4, "seconds": 2.0, "payload_bytes": PAYLOAD}),),
            lines,
        )
        for depth in (0, 300, 10_000)
    ]


def seaweedfs_row(peers: Sequence[Peer]) -> Row:
    """Two thousand jobs on an object store without any distance."""
    given = {"storage": "s3", "jobs": 2_000, "in_flight": 100, "payload_bytes": PAYLOAD}
    return Row(
        "seaweedfs",
        "2,000 jobs on SeaweedFS, one by one, 100 in flight",
        (
            ours("phases", given, needs="s3"),
            first_release("phases", given, needs="s3"),
            *map(peer_contestant, peers),
        ),
        (
            against("enqueue_per_second", FIRST_RELEASE, None, "enqueue/s"),
            against("work_per_second", FIRST_RELEASE, Target(">=", 30), "claim + ack/s"),
            against("jobs_per_second", FIRST_RELEASE, None, "jobs/s"),
            *(against("jobs_per_second", peer.name, Target(">", 1), "jobs/s") for peer in peers),
        ),
    )


def worker_row(peers: Sequence[Peer]) -> Row:
    """Jobs that do nothing, from the first enqueue to the last ack, run by our worker and the workers of peers."""
    given = {"jobs": 5_000, "warm_jobs": 500, "in_flight": 100, "payload_bytes": PAYLOAD}
    on_s3 = f"{OURS} on SeaweedFS"
    phases = {
        "jobs_per_second": ("jobs/s, enqueued and run", Target(">", 1)),
        "enqueue_per_second": ("enqueued/s, one by one", None),
        "work_per_second": ("run/s, by the worker", None),
    }
    return Row(
        "worker",
        "5,000 jobs that do nothing, run by a worker, 100 at a time, ours on a file",
        (
            ours("worker", {**given, "storage": "file"}),
            ours("worker", {**given, "storage": "s3"}, name=on_s3, needs="s3"),
            *(worker_contestant(peer, given) for peer in peers),
        ),
        (
            *(against(figure, peer.name, target, what) for figure, (what, target) in phases.items() for peer in peers),
            *(alone(figure, None, f"{what}, on SeaweedFS", on_s3) for figure, (what, _) in phases.items()),
        ),
    )


CELERY = "celery"


def chord_row(*, with_celery: bool) -> Row:
    """One job, then 10,000 in a group, then one more, against a chord of Celery."""
    given = {"jobs": 10_000, "warm_jobs": 100, "workers": 4}
    program, note = PROGRAMS.parent / "peers" / "celery_chord.py", "no snapshots, no log"
    celery = Contestant(CELERY, CELERY, program, given, needs="redis", note=note, is_peer=True, timeout=LONG)
    line = against("jobs_per_second", CELERY, Target(">", 1), "jobs/s, from the first job to the result of the last")
    return Row(
        "chord",
        "1 job, then 10,000 that do nothing, then 1, run by 4 processes, ours on a file",
        (ours("chord", {**given, "storage": "file", "in_flight": 100}), *([celery] if with_celery else [])),
        (line if with_celery else alone("jobs_per_second", None, line.what),),
        most_runs=1,
    )


def latency_rows() -> list[Row]:
    """A broker under load on a store that is 50 ms away."""
    rows = []
    for depth, target in {0: 2.5, 10_000: 25}.items():
        given = {**depth_arguments("s3", depth, in_flight=500, seconds=3.0), "warm_seconds": 0}
        rows.append(
            Row(
                "latency",
                f"broker, SeaweedFS 50 ms away, 500 in flight, depth {depth:,}",
                (
                    ours("depth", {**given, "round_trip": True}, needs="far s3"),
                    first_release("depth", given, needs="far s3", timeout=LONG),
                ),
                (
                    against("operations_per_second", FIRST_RELEASE, Target(">=", target), "operations/s"),
                    Line(
                        "commits/s, against bare conditional puts of the same bytes",
                        Measure(OURS, "commits_per_second"),
                        Measure(OURS, "bare_puts_per_second"),
                        Target(">=", 0.9),
                    ),
                ),
            )
        )
    return rows


def idle_rows() -> list[Row]:
    """Time to the start of a job in an idle queue, 50 ms away."""
    common = {"storage": "s3", "samples": 20}
    same = {**common, "other_process": False, "poll_interval": 1.0}
    other = {**common, "other_process": True, "poll_interval": POLL}
    start = Line(
        "ms to the start, against a bare conditional put",
        Measure(OURS, "start_milliseconds"),
        Measure(OURS, "round_trip_milliseconds"),
        Target("<=", 1.2),
    )
    return [
        Row("idle", "start of a job, consumer in the same broker", (ours("idle", same, needs="far s3"),), (start,)),
        Row(
            "idle",
            f"start of a job, consumer in another process that polls every {POLL:g} s",
            (ours("idle", other, needs="far s3"),),
            (
                replace(start, target=None),
                alone(
                    "round_trips_without_poll", Target("<=", 2.5), "round trips to the start, less the poll interval"
                ),
                alone("enqueue_milliseconds", None, "ms that the enqueue itself took"),
            ),
        ),
    ]


def fair_rows() -> list[Row]:
    """Eight brokers in eight processes, against one."""
    single = "one process"
    needs: dict[str, Need | None] = {"file": None, "s3": "far s3"}
    places = {"file": "a file", "s3": "SeaweedFS 50 ms away"}
    rows = []
    for storage, need in needs.items():
        given = {"storage": storage, "in_flight": 25, "seconds": 5.0, "payload_bytes": PAYLOAD}
        rows.append(
            Row(
                "fair",
                f"8 processes on {places[storage]}, 25 in flight each",
                (
                    ours("fair", {**given, "processes": 8}, needs=need),
                    ours("fair", {**given, "processes": 1}, name=single, needs=need),
                ),
                (
                    against("operations_per_second", single, Target(">=", 0.5), "operations/s of all"),
                    alone("most_over_least", Target("<=", 3), "operations of the busiest over those of the slowest"),
                    alone("errors", Target("<=", 0), "errors that reached a caller"),
                ),
            )
        )
    return rows


def shared_rows(peers: Sequence[str] | None) -> list[Row]:
    """Processes on one queue, of which one commits for the others."""
    single, apart = "one process", "8 processes, nobody serves"
    given = {"storage": "file", "in_flight": 25, "seconds": 5.0, "payload_bytes": PAYLOAD}
    idle = {"storage": "file", "other_process": True, "samples": 50, "poll_interval": 1.0}
    start = Line(
        "ms to the start, median, against a bare commit",
        Measure(OURS, "start_milliseconds"),
        Measure(OURS, "round_trip_milliseconds"),
        Target("<=", 1.3),
    )
    return [
        Row(
            "shared",
            "8 processes on a file, 25 in flight each, another serves",
            (
                ours("fair", {**given, "processes": 8, "served": True}),
                ours("fair", {**given, "processes": 1}, name=single),
                ours("fair", {**given, "processes": 8, "apart": True}, name=apart),
            ),
            (
                against("operations_per_second", single, Target(">=", 1.0), "operations/s of all"),
                against("operations_per_second", apart, None, "operations/s of all"),
                alone("most_over_least", Target("<=", 1.5), "operations of the busiest over those of the slowest"),
                alone("errors", Target("<=", 0), "errors that reached a caller"),
            ),
        ),
        Row(
            "shared",
            "one call each 100 ms beside 7 processes on a file, 25 in flight each; no worker, one of them serves",
            (
                ours("fair", {**given, "seconds": 15.0, "processes": 7, "lone": True}),
                ours("fair", {**given, "processes": 1}, name=single),
                ours("fair", {**given, "seconds": 15.0, "processes": 7, "lone": True, "apart": True}, name=apart),
            ),
            (
                alone("lone_slow_milliseconds", Target("<=", 150), "ms of the lone call, 99th percentile"),
                alone("lone_median_milliseconds", None, "ms of the lone call, median"),
                alone("slow_milliseconds", Target("<=", 150), "ms of a busy call, 99th percentile, slowest process"),
                against("operations_per_second", single, Target(">=", 0.75), "operations/s of all"),
                alone("lone_slow_milliseconds", None, "ms of the lone call, 99th percentile, nobody serves", apart),
            ),
        ),
        Row(
            "shared",
            "start of a job on a file, consumer in another process, which serves",
            (ours("idle", {**idle, "served": True}), ours("idle", idle, name=apart)),
            (
                start,
                alone("start_milliseconds", Target("<=", 10), "ms to the start, median"),
                alone("start_milliseconds", None, "ms to the start, nobody serves", apart),
            ),
        ),
        Row(
            "shared",
            "4 processes on a file, 25 in flight each; who serves is killed 5 times",
            (ours("fair", {**given, "processes": 4, "seconds": 30.0, "served": True, "kills": 5}),),
            (
                alone("longest_seconds", Target("<=", 2), "seconds of the longest call"),
                alone("errors", Target("<=", 0), "errors that reached a caller"),
            ),
        ),
        *crowd_rows(),
        *far_rows(start),
        web_row(peers),
    ]


def crowd_rows() -> list[Row]:
    """A thousand idle clients of one process."""
    return [
        Row(
            "shared",
            "1,000 idle clients of a process that serves a file",
            (ours("crowd", {"storage": "file", "clients": 1000, "processes": 4, "seconds": 10.0}),),
            (
                alone("mebibytes", Target("<=", 100), "MiB resident"),
                alone("processor_percent", Target("<=", 2), "% of a processor"),
            ),
        ),
        Row(
            "shared",
            "1,000 idle clients of `jqueue serve`, by HTTP",
            (serving("crowd", {"storage": "file", "http": True, "clients": 1000, "processes": 4, "seconds": 20.0}),),
            (
                alone("mebibytes", Target("<=", 100), "MiB resident"),
                alone("mebibytes_alone", None, "MiB resident, without clients"),
                alone("processor_percent", Target("<=", 2), "% of a processor"),
            ),
        ),
    ]


def serving(program: str, given: dict[str, Any], **more: Any) -> Contestant:
    """Ours, with the packages that `jqueue serve` needs."""
    return replace(ours(program, given, **more), environment="jqueue-serve")


def far_rows(start: Line) -> list[Row]:
    """Processes on one object of a store that is 50 ms away, of which one commits for the others."""
    single, apart, polls = "one process", "8 processes, nobody serves", "nobody serves"
    given = {"storage": "s3", "in_flight": 25, "seconds": 12.0, "payload_bytes": PAYLOAD}
    idle = {"storage": "s3", "other_process": True, "samples": 25, "poll_interval": 1.0}
    return [
        Row(
            "shared",
            "8 processes on SeaweedFS 50 ms away, 25 in flight each, `jqueue serve` beside them",
            (
                serving("fair", {**given, "processes": 8, "served": True}, needs="far s3"),
                ours("fair", {**given, "processes": 1}, name=single, needs="far s3"),
                ours("fair", {**given, "processes": 8}, name=apart, needs="far s3"),
            ),
            (
                against("operations_per_second", single, Target(">=", 3), "operations/s of all"),
                against("operations_per_second", apart, None, "operations/s of all"),
                alone("most_over_least", Target("<=", 1.5), "operations of the busiest over those of the slowest"),
                alone("errors", Target("<=", 0), "errors that reached a caller"),
            ),
        ),
        Row(
            "shared",
            "start of a job on SeaweedFS 50 ms away, consumer in another process, `jqueue serve` beside them",
            (
                serving("idle", {**idle, "served": True}, needs="far s3"),
                ours("idle", idle, name=polls, needs="far s3"),
            ),
            (start, alone("start_milliseconds", None, "ms to the start, nobody serves", polls)),
        ),
        Row(
            "shared",
            "start of a job on SeaweedFS 50 ms away by an idle worker, `jqueue serve` beside it",
            (serving("idle", {**idle, "served": True, "worker": True}, needs="far s3"),),
            (start,),
        ),
    ]


def web_row(peers: Sequence[str] | None) -> Row:
    """A web application that enqueues."""
    bare = "no queue"
    given = {"processes": 4, "connections": 32, "seconds": 8.0}
    needs: dict[str, Need] = {"saq": "redis", "pgqueuer": "postgres"}
    chosen = [name for name in needs if peers is None or name in peers]
    others = [
        Contestant(
            name,
            f"{name}-web",
            PROGRAMS / "web.py",
            {**given, "queue": name},
            needs=needs[name],
            note=WORKERS[name].note,
            is_peer=True,
        )
        for name in chosen
    ]
    mine = replace(ours("web", {**given, "queue": "jqueue"}), environment="jqueue-web")
    return Row(
        "shared",
        "FastAPI under uvicorn with 4 processes, one enqueue a request, 32 connections; a worker, which serves",
        (mine, replace(ours("web", {**given, "queue": "none"}, name=bare), environment="jqueue-web"), *others),
        (
            against("requests_per_second", bare, Target(">=", 0.7), "requests/s"),
            Line(
                "ms, 99th percentile, against a bare commit",
                Measure(OURS, "p99_ms"),
                Measure(OURS, "bare_commit_ms"),
                Target("<=", 3),
            ),
            against("p99_ms", bare, None, "ms, 99th percentile"),
            *(against("requests_per_second", name, Target(">", 1), "requests/s") for name in chosen),
        ),
    )


NEVER = 1e9
DEFENDED = {
    ("PATIENCE", 0.0): ("4 writers, 30 ms", "failed_per_commit"),
    ("RESTED", NEVER): ("8 writers, single commits, 30 ms", "commits_per_second"),
    ("ALONE_STEP", NEVER): ("1 writer of 30 ms, a newcomer of 150 ms", "newcomer_seconds"),
    ("KNOWN_STEP", NEVER): ("4 writers of 30 ms, 2 newcomers of 150 ms", "newcomer_seconds"),
    ("FIRST_GAP", NEVER): ("4 writers, 150 ms", "failed_per_commit"),
    ("FIRST_GAP_CYCLES", 1.0): ("2 writers of 20 ms, 2 of 100 ms", "worst_wait"),
    ("ALONE_GAP", 1.0): ("1 writer of 30 ms, a newcomer of 150 ms", "newcomer_seconds"),
    ("SLOWER", 1.25): ("4 writers, 1 write a second", "commits_per_second"),
    ("QUICKER", 0.0): ("1 writer, 10 writes a second", "commits_per_second"),
    ("HELD", 0): ("1 writer, 1 write a second", "failed_per_commit"),
    ("AFTER_ANOTHER", 0.0): ("8 writers, 1 write a second", "failed_per_commit"),
}
"""Constants of the pacing and their neutral values, each with the scenario and the figure that get worse without it."""


def pacing_row() -> Row:
    """The benefit of each constant of the pacing, in virtual time."""
    trials = [[constant, neutral, *told] for (constant, neutral), told in DEFENDED.items()]
    return Row(
        "pacing",
        "writers that contend, in virtual time: a figure without a constant of the pacing, over the figure with it",
        (ours("contention", {"seeds": 20, "trials": trials}),),
        tuple(
            alone(constant, Target(">=", 1.05), f"without {constant}, {scenario}: {figure.replace('_', ' ')}")
            for (constant, _), (scenario, figure) in DEFENDED.items()
        ),
        most_runs=1,  # chance comes from seeds
    )


def stalls_row() -> Row:
    """Delays of the event loop."""
    given = {"depth": 10_000, "in_flight": 200, "seconds": 5.0, "payload_bytes": PAYLOAD, "repeats": 10}
    phases = {
        "work": "200 in flight",
        "open": "the first opening",
        "reload": "a reload after another's commit",
        "read_state": "read_state()",
        "stats": "stats()",
    }
    return Row(
        "stalls",
        "delays of the event loop, 10,000 jobs in a file, against a thread that writes",
        (ours("stalls", given),),
        tuple(
            Line(
                f"ms, {what}, {words}",
                Measure(OURS, f"{phase}_{figure}"),
                Measure(OURS, f"control_{figure}"),
                Target("<=", target),
                is_control=True,
            )
            for phase, what in phases.items()
            for figure, words, target in (("p99", "99th percentile", 10), ("longest", "longest", 25))
        ),
    )


def direct_row() -> Row:
    """A queue without a broker."""
    given = {"depth": 1_000, "seconds": 2.0, "warm_seconds": 0.3, "payload_bytes": PAYLOAD}
    return Row(
        "direct",
        "DirectQueue, memory, one call after the other, depth 1,000",
        (ours("direct", given), first_release("direct", given)),
        (against("operations_per_second", FIRST_RELEASE, Target(">=", 10), "operations/s"),),
    )


def memory_row() -> Row:
    """The memory of a hundred thousand jobs at rest."""
    given = {"jobs": 100_000, "payload_bytes": PAYLOAD}
    resident, traced = {**given, "traced": False}, {**given, "traced": True}
    counted = f"{OURS}, tracemalloc"
    kept = "keeps no copy but of its last batch"
    return Row(
        "memory",
        "broker on a file at rest, 100,000 jobs",
        (
            ours("memory", resident),
            ours("memory", traced, name=counted),
            first_release("memory", resident, note=kept, timeout=LONG),
        ),
        (
            Line(
                "bytes for a job, resident",
                Measure(OURS, "bytes_per_job"),
                Measure(FIRST_RELEASE, "bytes_per_job"),
                Target("<=", 1_024),
                is_control=True,
            ),
            alone("bytes_per_job", Target("<=", 1_024), "bytes for a job, by tracemalloc", counted),
        ),
        most_runs=2,
    )


def growth_rows() -> list[Row]:
    """Operations per second as the queue grows; `plot` draws them."""
    return [
        Row(
            "growth",
            f"broker, {storage}, 200 in flight, payloads of {payload:,} bytes",
            tuple(growth_contestant(storage, payload, depth) for depth in DEPTHS_OF_GROWTH if depth <= deepest),
            tuple(line for depth in DEPTHS_OF_GROWTH if depth <= deepest for line in growth_lines(storage, depth)),
            most_runs=3,
        )
        for storage in ("memory", "file")
        for payload, deepest in GROWTH.items()
    ]


def growth_contestant(storage: str, payload: int, depth: int) -> Contestant:
    """Ours, at one depth; on a file also the limit that the disk sets."""
    given = {**depth_arguments(storage, depth, seconds=1.0), "payload_bytes": payload, "limit": storage == "file"}
    return ours("depth", given, name=f"depth {depth:,}")


def growth_lines(storage: str, depth: int) -> tuple[Line, ...]:
    """Operations per second at one depth, beside the limit, and the bytes that they cost."""
    name = f"depth {depth:,}"
    limit = Measure(name, "limit_operations_per_second") if storage == "file" else None
    what = f"operations/s, {name}" + (", against bare writes of the same bytes for every 200" if limit else "")
    return (
        Line(what, Measure(name, "operations_per_second"), limit),
        alone("bytes_per_operation", None, f"bytes written for an operation, {name}", name),
    )


def peer_contestant(peer: Peer) -> Contestant:
    """A peer, as its program runs it."""
    given = {"jobs": peer.jobs, "payload_bytes": PAYLOAD, "in_flight": 100}
    return Contestant(peer.name, peer.requirements.stem, peer.program, given, peer.needs, peer.note, is_peer=True)


def worker_contestant(peer: Peer, given: dict[str, Any]) -> Contestant:
    """A peer, as the program that runs its worker does."""
    worker = WORKERS[peer.name]
    told = {**given, **worker.settings}
    return Contestant(peer.name, peer.requirements.stem, worker.program, told, peer.needs, worker.note, is_peer=True)
