"""The command line: `python -m benchmarks` runs the rows, `plot` draws the figures of [growth], `page` fills a page."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine, report
from benchmarks.contest import Row
from benchmarks.peers import PEERS
from benchmarks.rows import all_rows
from benchmarks.runner import RowResult, Tell, run_row, runs_of

RESULTS = Path(__file__).parent / "results.json"
NARROWEST = 150
"""Minimum width of the table in characters, where there is no terminal."""

HELP = "Run the benchmarks, and write their figures into a JSON file and a table."

application = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=HELP)


@application.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    rows: Annotated[str, typer.Option(help="Names of the rows to run, comma separated; all by default.")] = "",
    peers: Annotated[str, typer.Option(help="Names of the peers that take part, or `none`; all by default.")] = "",
    runs: Annotated[int, typer.Option(min=1, help="Number of runs of each contestant.")] = 5,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = RESULTS,
) -> None:
    """Run the benchmarks."""
    if context.invoked_subcommand is not None:
        return
    signal.signal(signal.SIGTERM, _leave)
    chosen = _rows(_names(rows), None if not peers else _names(peers))
    console = Console() if sys.stdout.isatty() else Console(width=NARROWEST)
    results: list[RowResult] = []
    try:
        with _progress(console, sum(len(row.contestants) * runs_of(row, runs) for row in chosen)) as (tell, advance):
            for row in chosen:
                results.append(run_row(row, runs, tell, advance))
    except KeyboardInterrupt:
        console.print("Interrupted: the finished rows follow, and no file is written.")
        console.print(report.table_of(results))
        raise typer.Exit(130) from None
    report.write(out, report.document(results, machine.describe(), machine.commit(), runs))
    console.print(report.table_of(results))
    console.print(f"All figures are in {out}.", soft_wrap=True)


@application.command()
def plot(
    results: Annotated[Path, typer.Argument(help="JSON file of a run.")],
    picture: Annotated[Path, typer.Argument(help="SVG file to write.")],
) -> None:
    """Draw operations per second over the depth of the queue, from the row `growth` of a run."""
    from benchmarks.plot import draw

    draw(results, picture)


@application.command()
def page(
    results: Annotated[Path, typer.Argument(help="JSON file of a run.")],
    text: Annotated[Path, typer.Argument(help="Markdown page with a place for the table.")],
) -> None:
    """Put the table of a run into a Markdown page."""
    from benchmarks.page import put

    put(results, text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _rows(names: Sequence[str], peers: Sequence[str] | None) -> list[Row]:
    """Return the rows of these names, or all rows if no name is given."""
    if peers == ["none"]:
        peers = []
    if unknown := sorted(set(peers or []) - set(PEERS)):
        raise typer.BadParameter(f"no peer is called {', '.join(unknown)}; there are: {', '.join(PEERS)}")
    found = all_rows(peers)
    known = list(dict.fromkeys(row.name for row in found))
    if unknown := sorted(set(names) - set(known)):
        raise typer.BadParameter(f"no row is called {', '.join(unknown)}; there are: {', '.join(known)}")
    return [row for row in found if not names or row.name in names]


@contextmanager
def _progress(console: Console, total: int) -> Iterator[tuple[Tell, Callable[[], None]]]:
    """Show a progress bar in a terminal, and one line for each run elsewhere."""
    if not console.is_terminal:
        yield lambda text: print(text, flush=True), lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("running", total=total)
        yield lambda text: bar.console.print(text, markup=False, highlight=False), lambda: bar.advance(task)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    application(prog_name="python -m benchmarks")
