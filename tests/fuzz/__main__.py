"""Coverage-guided fuzzing of what strangers' bytes reach: `python -m tests.fuzz --seconds 60`.

`python -m tests.fuzz --replay FILE --target decode` shows again what was found, and needs no fuzzer.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".fuzz"
NAMES = ("decode", "hand-edit", "operations")
LARGEST_INPUT = {"decode": 16_384, "hand-edit": 1024, "operations": 1024}
"""Bytes. The choices of the others are used up long before."""

SECONDS_PER_INPUT = 5
MEGABYTES = 1024
FOUND, UNUSABLE = 1, 2
NO_FUZZER = (
    "atheris is not installed: pip install -e '.[fuzz]'. It exists for Linux and for macOS on Intel processors, Python"
    " 3.11 to 3.13; elsewhere, the tests in tests/fuzz run without it."
)


@dataclass
class Outcome:
    """What a run of one target came to."""

    target: str
    seed: int
    executions: int = 0
    per_second: int = 0
    edges: int = 0
    corpus: int = 0
    megabytes: int = 0
    findings: dict[str, str] = field(default_factory=dict)
    """File -> what was found."""


def main() -> int:
    """Run, or replay; returns the exit code."""
    arguments = _arguments()
    console = Console(highlight=False)
    if arguments.replay is not None:
        return _replay(arguments.target or "decode", arguments.replay, console)
    if importlib.util.find_spec("atheris") is None:
        console.print(NO_FUZZER, markup=False, soft_wrap=True)
        return UNUSABLE
    names = [arguments.target] if arguments.target else list(NAMES)
    seed = arguments.seed if arguments.seed is not None else random.randrange(1, 2**31)
    seconds = max(1, arguments.seconds // len(names))
    console.print(f"seed {seed}; {seconds} s for each of: {', '.join(names)}")
    outcomes = [_fuzz(name, seconds, seed, arguments.jobs) for name in names]
    _show(outcomes, console)
    return FOUND if any(outcome.findings for outcome in outcomes) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long, all targets together (default: %(default)s)")
    parser.add_argument("--target", choices=NAMES, help="only this one")
    parser.add_argument("--seed", type=int, help="where chance begins; drawn if not given")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes for a target (default: %(default)s)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input once, and show what it does")
    return parser.parse_args()


def _fuzz(name: str, seconds: int, seed: int, jobs: int) -> Outcome:
    """Run the fuzzer on one target until its time is over, in as many processes as asked for."""
    corpus, findings = WORK / "corpus" / name, WORK / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    _plant(name, corpus)
    logs = [WORK / f"{name}-{job}.log" for job in range(max(1, jobs))]
    processes = []
    for job, path in enumerate(logs):
        command = _command(name, seconds, seed + job, corpus, findings)
        with path.open("wb") as log:
            processes.append(subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=log, stderr=log))
    outcome = Outcome(name, seed)
    for process, path in zip(processes, logs, strict=True):
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the fuzzer was interrupted too, and still says what it has done
            code = process.wait()
        _read_output(path.read_text("utf-8", "replace"), code, outcome)
    outcome.corpus = sum(1 for _ in corpus.iterdir())
    return outcome


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def _command(name: str, seconds: int, seed: int, corpus: Path, findings: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.fuzz.campaign",
        name,
        str(findings),
        f"-max_total_time={seconds}",
        f"-seed={seed % 2**31 or 1}",
        f"-max_len={LARGEST_INPUT[name]}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MEGABYTES}",
        f"-artifact_prefix={findings}/{name}-",
        "-print_final_stats=1",
        "-reload=0",
        str(corpus),
    ]


def _plant(name: str, corpus: Path) -> None:
    """Put the seeds where the fuzzer begins."""
    from tests.fuzz.seeds import seeds

    for seed in seeds(name):
        (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)


def _read_output(output: str, code: int, outcome: Outcome) -> None:
    """Add what one process of the fuzzer said."""
    outcome.executions += _figure(r"stat::number_of_executed_units:\s*(\d+)", output)
    outcome.per_second += _figure(r"stat::average_exec_per_sec:\s*(\d+)", output)
    outcome.megabytes = max(outcome.megabytes, _figure(r"stat::peak_rss_mb:\s*(\d+)", output))
    outcome.edges = max(outcome.edges, *map(int, re.findall(r"\bcov: (\d+)", output)), 0)
    for line in re.findall(r'^\{"file": .*\}$', output, re.MULTILINE):
        found = json.loads(line)
        outcome.findings[found["file"]] = found["kind"]
    for path in re.findall(r"Test unit written to (\S+)", output):
        why = re.search(r"ERROR: libFuzzer: (.*)", output)
        outcome.findings[Path(path).name] = why.group(1) if why else "the process ended"
    if code != 0 and not outcome.findings:
        outcome.findings["(none)"] = f"the fuzzer ended with code {code}: {output[-500:]}"


def _figure(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def _show(outcomes: list[Outcome], console: Console) -> None:
    table = Table("target", "seed", "executions", "per second", "edges", "corpus", "peak MB", "findings")
    for one in outcomes:
        figures = (one.seed, one.executions, one.per_second, one.edges, one.corpus, one.megabytes, len(one.findings))
        table.add_row(one.target, *map(str, figures))
    console.print(table)
    for one in outcomes:
        for name, what in one.findings.items():
            console.print(f"{one.target}: {what}", markup=False, soft_wrap=True)
            file = (WORK / "findings" / name).relative_to(ROOT)
            console.print(f"  python -m tests.fuzz --replay {file} --target {one.target}", markup=False, soft_wrap=True)


def _replay(name: str, path: Path, console: Console) -> int:
    """Run one input once, and say what it stands for and what it does."""
    from tests.fuzz.known import explained
    from tests.fuzz.targets import TARGETS

    target, data = TARGETS[name], path.read_bytes()
    for number, content in enumerate(target.contents(data), 1):
        console.print(f"blob {number}: {content!a}", markup=False, soft_wrap=True)
    for words in target.words(data):
        console.print(words, markup=False, soft_wrap=True)
    try:
        target.run(data)
    except Exception as error:
        console.print(ascii("".join(traceback.format_exception(error))).replace("\\n", "\n"), markup=False)
        why = explained(error, *target.contents(data))
        console.print(f"known: {why}" if why else "a finding", markup=False)
        return 0 if why else FOUND
    console.print("nothing is found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
