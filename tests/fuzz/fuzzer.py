"""Run the fuzzer: give it a target and seeds, wait for its processes, and read their output."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.seeds import seeds

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".fuzz"
FINDINGS = WORK / "findings"
LARGEST_INPUT = {"decode": 16_384, "hand-edit": 1024, "operations": 1024, "segments": 1024}
"""Bytes of the largest input. The targets that read choices use fewer."""

SECONDS_PER_INPUT = 5
MEGABYTES = 1024
SAID_LAST = 500
"""Number of characters of output that explain the end of a fuzzer."""


@dataclass
class Outcome:
    """Result of fuzzing one target, all processes together."""

    target: str
    runs: int = 0
    per_second: int = 0
    edges: int = 0
    corpus: int = 0
    megabytes: int = 0
    findings: dict[str, str] = field(default_factory=dict)
    """File in `FINDINGS` -> what was found."""

    failures: list[str] = field(default_factory=list)
    """Output of processes that ended for another reason than an input."""


def fuzz(target: str, seconds: int, seed: int, jobs: int) -> Outcome:
    """Run the fuzzer on one target for `seconds`, in `jobs` processes."""
    corpus = WORK / "corpus" / target
    for folder in (corpus, FINDINGS):
        folder.mkdir(parents=True, exist_ok=True)
    for content in seeds(target):
        (corpus / hashlib.sha1(content).hexdigest()).write_bytes(content)
    logs = [WORK / f"{target}-{job}.log" for job in range(jobs)]
    processes = []
    for job, path in enumerate(logs):
        command = _command(target, seconds, seed + job, corpus)
        with path.open("wb") as log:
            processes.append(subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=log, stderr=log))
    outcome = Outcome(target)
    for process, path in zip(processes, logs, strict=True):
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the fuzzer was interrupted too, and still reports its work
            code = process.wait()
        read_output(path.read_text("utf-8", "replace"), code, outcome)
    outcome.corpus = sum(1 for _ in corpus.iterdir())
    return outcome


def read_output(output: str, code: int, outcome: Outcome) -> None:
    """Add the output and the exit code of one fuzzer process to the outcome."""
    outcome.runs += _figure(r"stat::number_of_executed_units:\s*(\d+)", output)
    outcome.per_second += _figure(r"stat::average_exec_per_sec:\s*(\d+)", output)
    outcome.megabytes = max(outcome.megabytes, _figure(r"stat::peak_rss_mb:\s*(\d+)", output))
    outcome.edges = max(outcome.edges, *map(int, re.findall(r"\bcov: (\d+)", output)), 0)
    for line in re.findall(r'^\{"file": .*\}$', output, re.MULTILINE):
        found = json.loads(line)
        outcome.findings[found["file"]] = found["kind"]
    ended_on = re.findall(r"Test unit written to (\S+)", output)
    for path in ended_on:
        why = re.search(r"ERROR: libFuzzer: (.*)", output)
        outcome.findings[Path(path).name] = why.group(1) if why else "the process ended"
    if code != 0 and not ended_on:
        outcome.failures.append(f"the fuzzer ended with code {code}: {output[-SAID_LAST:]}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def _command(target: str, seconds: int, seed: int, corpus: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.fuzz.campaign",
        target,
        str(FINDINGS),
        f"-max_total_time={seconds}",
        f"-seed={seed % 2**31 or 1}",
        f"-max_len={LARGEST_INPUT[target]}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MEGABYTES}",
        f"-artifact_prefix={FINDINGS}/{target}-",
        "-print_final_stats=1",
        "-reload=0",
        str(corpus),
    ]


def _figure(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0
