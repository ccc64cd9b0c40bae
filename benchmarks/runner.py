"""Runs the rows: every contestant once, then every contestant again, so that noise affects all alike."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contest import Contestant, Line, Row
from benchmarks.environments import Environment, EnvironmentUnavailableError, clean_environment, environment
from benchmarks.figures import Ratio, medians, number, ratio_of
from benchmarks.machine import work_folder
from benchmarks.servers import Access, ServerMissingError, Servers

SAID = 2_000
"""Maximum number of characters of a failed program's output in an error."""


class ProgramFailedError(Exception):
    """Raised if a program failed; the message includes its output."""


@dataclass(slots=True)
class Record:
    """The runs of a contestant.

    Attributes:
        contestant: the contestant.
        runs: the figures of each run; None for a failed run.
        errors: what went wrong, one text for each failed run.
        absent: reason why it could not take part at all; empty if it could.
        versions: versions of the packages that it ran with.
    """

    contestant: Contestant
    runs: list[dict[str, float] | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    absent: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def medians(self) -> dict[str, float]:
        """The median of each figure."""
        return medians(run for run in self.runs if run is not None)

    def figures(self, name: str) -> list[float | None]:
        """One figure of every run."""
        return [None if run is None else run.get(name) for run in self.runs]

    @property
    def trouble(self) -> str:
        """The reason why there are no figures; empty if there are some."""
        if any(run is not None for run in self.runs):
            return ""
        return self.absent or (in_short(self.errors[-1]) if self.errors else "did not run")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a line of the table.

    Attributes:
        line: the comparison.
        ours: our median; None without one.
        theirs: the other median; None without one.
        ratio: the ratio of the two; None without both.
        met: True if the target is met; None if there is no target, or no value to compare with it.
        reason: reason why a figure is missing; empty if none is.
    """

    line: Line
    ours: float | None
    theirs: float | None
    ratio: Ratio | None
    met: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class RowResult:
    """Results of a row."""

    row: Row
    records: dict[str, Record]
    outcomes: list[Outcome]


Tell = Callable[[str], None]
Find = Callable[[str], Environment]


def run_row(
    row: Row, runs: int, tell: Tell, advance: Callable[[], None] = lambda: None, find: Find = environment
) -> RowResult:
    """Run every contestant of a row several times, in turn.

    Args:
        row: the contestants and comparisons.
        runs: number of runs of each contestant.
        tell: called with one line of text for each event.
        advance: called after each of `contestants * runs_of(row, runs)` runs.
        find: returns the environment of a name, or raises EnvironmentUnavailableError.
    """
    records = {contestant.name: Record(contestant) for contestant in row.contestants}
    places = {name: _prepared(record, find, tell) for name, record in records.items()}
    with Servers() as servers:
        for turn in range(runs_of(row, runs)):
            for name, record in records.items():
                place = places[name]
                if place is not None and not record.absent:
                    _run_once(record, place, servers)
                    tell(_told(row, record, turn))
                advance()
    return RowResult(row, records, [outcome_of(line, records) for line in row.lines])


def runs_of(row: Row, runs: int) -> int:
    """Return the number of runs of each contestant of a row."""
    return runs if row.most_runs is None else min(runs, row.most_runs)


def run_program(contestant: Contestant, python: os.PathLike[str] | str, access: Access) -> dict[str, float]:
    """Run a contestant once, in an empty folder on the project's disk.

    Raises:
        ProgramFailedError: it failed, took too long, or printed no result.
    """
    os.sync()  # flush the writes of earlier programs, so that they do not slow this one
    with work_folder() as folder:
        given = {**contestant.arguments, **access.arguments, "folder": str(folder)}
        process = subprocess.Popen(
            [python, str(contestant.program), json.dumps(given)],
            cwd=folder,
            env={**clean_environment(), **access.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=contestant.timeout)
        except subprocess.TimeoutExpired:
            raise ProgramFailedError(f"took longer than {contestant.timeout:g} s") from None
        finally:
            _end(process)
    if process.returncode != 0:
        raise ProgramFailedError(f"failed with status {process.returncode}: {errors.strip()[-SAID:]}")
    return parse_result(output)


def parse_result(output: str) -> dict[str, float]:
    """Return the figures in the last line that a program printed.

    Raises:
        ProgramFailedError: there are none.
    """
    lines = output.strip().splitlines()
    try:
        found: Any = json.loads(lines[-1] if lines else "")
    except ValueError:
        raise ProgramFailedError(f"printed no result: {output.strip()[-SAID:]}") from None
    if not isinstance(found, dict) or not found:
        raise ProgramFailedError(f"printed no figures by name: {lines[-1][:SAID]}")
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ProgramFailedError(f"printed no number for {name}: {value!r}")
    return found


def in_short(error: str) -> str:
    """Return the first words of an error and its last line, which names the cause."""
    first, _, rest = error.partition("\n")
    last = rest.strip().rpartition("\n")[2].strip()
    return f"{first.partition(': ')[0]}: {last}" if last else first


def outcome_of(line: Line, records: dict[str, Record]) -> Outcome:
    """Return the result of a line, from the runs of the contestants."""
    ours = _median(line.ours.contestant, line.ours.figure, records)
    reasons = [_missing(line.ours.contestant, line.ours.figure, records)]
    theirs, ratio = None, None
    if line.theirs is not None:
        theirs = _median(line.theirs.contestant, line.theirs.figure, records)
        reasons.append(_missing(line.theirs.contestant, line.theirs.figure, records))
        ratio = ratio_of(
            records[line.ours.contestant].figures(line.ours.figure),
            records[line.theirs.contestant].figures(line.theirs.figure),
        )
    compared = (ratio.value if ratio else None) if line.is_ratio else ours
    met = None if line.target is None or compared is None else line.target.is_met_by(compared)
    return Outcome(line, ours, theirs, ratio, met, "; ".join(reason for reason in reasons if reason))


def _prepared(record: Record, find: Find, tell: Tell) -> Environment | None:
    contestant = record.contestant
    try:
        found = find(contestant.environment)
    except EnvironmentUnavailableError as error:
        record.absent = str(error)
        tell(f"{contestant.name}: {error}")
        return None
    record.versions = found.versions
    return found


def _run_once(record: Record, place: Environment, servers: Servers) -> None:
    try:
        access = servers.access(record.contestant.needs)
    except ServerMissingError as error:
        record.absent = str(error)
        return
    try:
        record.runs.append(run_program(record.contestant, place.python, access))
    except ProgramFailedError as error:
        record.runs.append(None)
        record.errors.append(str(error))


def _end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a program and of its children, which share its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _told(row: Row, record: Record, turn: int) -> str:
    last = record.runs[-1] if record.runs else None
    wanted: Iterable[str] = dict.fromkeys(
        measure.figure
        for line in row.lines
        for measure in (line.ours, line.theirs)
        if measure is not None and measure.contestant == record.contestant.name
    )
    said = ", ".join(f"{name} {number(last[name])}" for name in wanted if name in last) if last else ""
    trouble = "" if last else record.absent or in_short(record.errors[-1])
    return f"[{row.name}] {row.title}: {record.contestant.name}, run {turn + 1}: {said or trouble}"


def _median(contestant: str, figure: str, records: dict[str, Record]) -> float | None:
    return records[contestant].medians.get(figure)


def _missing(contestant: str, figure: str, records: dict[str, Record]) -> str:
    record = records[contestant]
    if record.trouble:
        return f"{contestant}: {record.trouble}"
    if figure not in record.medians:
        return f"{contestant} reports no {figure}"
    failed = len(record.errors)
    return f"{contestant}: {failed} of {len(record.runs)} runs failed: {in_short(record.errors[-1])}" if failed else ""
