"""Many processes on one store under every kind of fault: no rule is broken.

A failure shows the seed, the shortest schedule found, and the versions around it; `make simulate SEEDS=1 FIRST=<seed>`
replays it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jqueue import InMemoryStorage, LocalFileSystemStorage
from tests.simulation import __main__ as command
from tests.simulation.__main__ import main
from tests.simulation.links import LinkFault
from tests.simulation.many import run_seeds
from tests.simulation.network import FaultKind
from tests.simulation.runner import Report, Settings, run_seed

SEEDS, LOT = 1000, 25


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.full) for first in range(LOT, SEEDS, LOT))]
)
def test_no_seed_breaks_a_rule(first):
    run_seeds(range(first, first + LOT))


def test_a_seed_replays_to_the_last_request():
    for seed in range(2):
        assert run_seed(seed, Settings(rate=0.2)) == run_seed(seed, Settings(rate=0.2))


def test_a_seed_replays_in_another_program():
    """In these seeds the order of a set of texts, which each program draws anew, decided the order of segments."""
    script = "from tests.simulation.runner import run_seed\nprint([run_seed(seed).work for seed in (36, 48)])"
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": drawn, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for drawn in "01"
    )
    assert first == second


@pytest.mark.wide
def test_every_fault_and_every_event_occurs():
    report = Report()
    for seed in range(SEEDS, SEEDS + 60):
        report.add(run_seed(seed))
    assert {kind.name for kind in FaultKind} <= set(report.faults)
    events = {"crash", "pause", "clock jump", "edit by hand", "began with jqueue 1.0.0"}
    assert events <= set(report.events)
    assert {"cron entry fired", "result kept", "result dropped", "result gone"} <= set(report.events)
    staged = {"transaction landed", "transaction repeated", "claimed with a holder", "claim gone on with"}
    assert staged <= set(report.events)
    assert {"job changed by an order", "cron entry run by an order", "worker told to stop"} <= set(report.events)
    assert {"job dead with its holder", "step recorded", "job with steps claimed"} <= set(report.events)
    segments = {"segment named", "segments merged", "row admitted", "segment left the manifest", "segment removed"}
    assert segments <= set(report.events)
    assert report.work["commits recognised"] > 30
    errors = {
        "ok",
        "ChangedMeanwhileError",
        "ClaimLostError",
        "DeadlineExceededError",
        "UnknownOutcomeError",
        "InvalidJobError",
    }
    assert errors <= set(report.outcomes)
    assert {"JobCancelledError", "JobFailedError", "ResultNotKeptError", "ResultTimeoutError"} <= set(report.outcomes)


@pytest.mark.wide
def test_every_fault_of_a_link_occurs():
    report = Report()
    for seed in range(12):
        report.add(run_seed(seed, Settings(rate=0.2, processes=6, shared=1.0)))
    assert {kind.name for kind in LinkFault} <= set(report.faults)
    assert {"seat taken", "seat left", "message to an old broker"} <= set(report.faults)
    assert report.events["batch of a client landed"] > 30
    assert {"batch of a client recognised or idle", "claim of a lost answer handed back"} <= set(report.events)
    assert {"claim of a dead process revoked", "job that may kill lost again"} <= set(report.events)


def test_many_callers_of_one_queue_object_claim_together():
    report = Report()
    for seed in range(4):
        report.add(run_seed(seed, Settings(crowds=1.0, segments=seed % 2)))
    assert report.events["jobs claimed together"] > 20
    assert report.events["rows claimed together"] > 5


@pytest.mark.wide
def test_every_call_is_done_without_faults():
    calm = Settings(rate=0.0, disturbances=False, old_format=0.0, short_table=0.0)
    report = run_seeds(range(20), calm)
    assert 0 == report.outcomes["UnknownOutcomeError"] + report.outcomes["DeadlineExceededError"]
    assert 0 == report.work["commits recognised"]


@pytest.mark.parametrize("seed", [1002, 1064, 1100, 1110, 1160, 1168, 1218])
def test_a_writer_five_times_slower_makes_progress_beside_a_fast_one(seed):
    """In these seeds the slow writer starved while gaps were as long as the fast writer's own cycle."""
    assert 1 == run_seed(seed, Settings(contention=1.0)).events["contention"]


def new_file():
    return LocalFileSystemStorage(Path(tempfile.mkdtemp()) / "queue.json")


@pytest.mark.parametrize("make_storage", [InMemoryStorage, new_file])
def test_the_simulation_runs_on_real_adapters(make_storage):
    report = run_seeds(range(3), Settings(make_storage=make_storage, old_format=0.0))
    assert report.work["commits"] > 20


@pytest.mark.wide
def test_the_command_line_counts_what_happened(capsys, monkeypatch):
    monkeypatch.setattr(command, "SEEDS_PER_LINE", 20)
    assert 0 == main(["--seeds", "20", "--processes", "1", "--faults", "0.2"])
    output = capsys.readouterr().out
    assert "20 of 20 seeds: " in output  # as there is no terminal for a bar
    assert "No rule was broken in 20 seeds" in output
    for word in ("operations", "commits recognised", "lost answer", "overtaken", "crash"):
        assert word in output


def test_the_command_line_names_the_form_of_a_storage(capsys):
    with pytest.raises(SystemExit):
        main(["--storage", "nonsense"])
    assert "package.module:function" in capsys.readouterr().err
