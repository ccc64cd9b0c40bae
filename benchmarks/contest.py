"""The parts of a row of the benchmarks: its contestants, and the lines that compare their figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.figures import Target

PROGRAMS = Path(__file__).parent / "programs"
OURS = "jqueue"
FIRST_RELEASE = "jqueue 1.0.0"
SECONDS = 180
"""Default timeout of a program, in seconds."""

Need = Literal["s3", "far s3", "redis", "postgres"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program with its environment and arguments.

    Attributes:
        name: as the table shows it; unique within its row.
        environment: the name of its environment.
        program: the file.
        arguments: its arguments, besides the folder and the server.
        needs: the server that it needs.
        note: a remark that its figures cannot be understood without.
        is_peer: True if it is another project.
        timeout: seconds after which it has failed.
    """

    name: str
    environment: str
    program: Path
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needs: Need | None = None
    note: str = ""
    is_peer: bool = False
    timeout: float = SECONDS


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a contestant."""

    contestant: str
    figure: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Attributes:
        what: description of the comparison.
        ours: our figure.
        theirs: the figure to compare ours with; None if ours stands alone.
        target: the target for the ratio, or for our figure if it stands alone or `is_control` is set.
        is_control: True if theirs is only shown beside ours: the target is for our figure, not for the ratio.
    """

    what: str
    ours: Measure
    theirs: Measure | None = None
    target: Target | None = None
    is_control: bool = False

    @property
    def is_ratio(self) -> bool:
        """True if the target is for the ratio."""
        return self.theirs is not None and not self.is_control


@dataclass(frozen=True, slots=True)
class Row:
    """Contestants that run in turn, several times, and the lines that compare their figures.

    Attributes:
        name: selects the row on the command line; several rows may share it.
        title: description of the row; unique.
        contestants: the programs that take part.
        lines: the comparisons.
        most_runs: maximum number of runs, for a row whose run takes long or is enough on its own.
    """

    name: str
    title: str
    contestants: tuple[Contestant, ...]
    lines: tuple[Line, ...]
    most_runs: int | None = None


def ours(program: str, arguments: Mapping[str, Any], *, name: str = OURS, **more: Any) -> Contestant:
    """This project, run by one of our programs."""
    return Contestant(name, "jqueue", PROGRAMS / f"{program}.py", arguments, **more)


def first_release(program: str, arguments: Mapping[str, Any], **more: Any) -> Contestant:
    """The first release, in the same program."""
    return Contestant(FIRST_RELEASE, "jqueue-1.0.0", PROGRAMS / f"{program}.py", arguments, **more)


def against(figure: str, other: str, target: Target | None, what: str) -> Line:
    """Compare one of our figures with the same figure of another contestant."""
    return Line(what, Measure(OURS, figure), Measure(other, figure), target)


def alone(figure: str, target: Target | None, what: str, contestant: str = OURS) -> Line:
    """Show one of our figures without a comparison."""
    return Line(what, Measure(contestant, figure), None, target)
