"""What a row of the benchmarks is made of: contestants, and what of them is compared with what."""

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
"""How long a program may take, if its row says nothing else."""

Need = Literal["s3", "far s3", "redis", "postgres"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program, where it runs, and what it is told.

    Attributes:
        name: as the table shows it; unique within its row.
        environment: the name of its environment.
        program: the file.
        arguments: what it is told, besides the folder and the server.
        needs: the server that it needs.
        note: what has to be known to understand its figures.
        is_peer: whether it is another project.
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
        what: what is compared.
        ours: our figure.
        theirs: what it is compared with; None if it stands for itself.
        target: what the ratio is to be, or our figure if it stands for itself.
        is_control: theirs is shown beside ours, and the target is for ours and not for the ratio.
    """

    what: str
    ours: Measure
    theirs: Measure | None = None
    target: Target | None = None
    is_control: bool = False

    @property
    def is_ratio(self) -> bool:
        """Whether the target is for the ratio."""
        return self.theirs is not None and not self.is_control


@dataclass(frozen=True, slots=True)
class Row:
    """Contestants that run one after the other, again and again, and the lines that come out of it.

    Attributes:
        name: what picks it, with others of the same name.
        title: what it is; unique.
        contestants: who takes part.
        lines: what is compared.
        most_runs: runs at the most, where one takes long or says enough.
    """

    name: str
    title: str
    contestants: tuple[Contestant, ...]
    lines: tuple[Line, ...]
    most_runs: int | None = None


def ours(program: str, arguments: Mapping[str, Any], *, name: str = OURS, **more: Any) -> Contestant:
    """This project, as one of our programs runs it."""
    return Contestant(name, "jqueue", PROGRAMS / f"{program}.py", arguments, **more)


def first_release(program: str, arguments: Mapping[str, Any], **more: Any) -> Contestant:
    """The first release, in the same program."""
    return Contestant(FIRST_RELEASE, "jqueue-1.0.0", PROGRAMS / f"{program}.py", arguments, **more)


def against(figure: str, other: str, target: Target | None, what: str) -> Line:
    """One figure of ours against the same figure of another."""
    return Line(what, Measure(OURS, figure), Measure(other, figure), target)


def alone(figure: str, target: Target | None, what: str, contestant: str = OURS) -> Line:
    """One figure of ours, for itself."""
    return Line(what, Measure(contestant, figure), None, target)
