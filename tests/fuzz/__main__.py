"""Coverage-guided fuzzing of the code that foreign bytes reach: `python -m tests.fuzz --seconds 60`.

`python -m tests.fuzz --replay FILE --target decode` shows again what was found, and needs no fuzzer.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tests.fuzz.fuzzer import FINDINGS, ROOT, Outcome, fuzz
from tests.fuzz.targets import TARGETS

FOUND, UNUSABLE = 1, 2
NO_FUZZER = (
    "atheris is not installed: pip install -e '.[fuzz]'. It exists for Linux and for macOS on Intel processors, Python"
    " 3.11 to 3.13; elsewhere, the tests in tests/fuzz run without it."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or replay. Returns 0; 1 if something was found; 2 if the fuzzer is not installed."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    if options.replay is not None:
        return _replay(options.target or "decode", options.replay, console)
    if importlib.util.find_spec("atheris") is None:
        console.print(NO_FUZZER, markup=False)
        return UNUSABLE
    names = [options.target] if options.target else list(TARGETS)
    seed = options.seed if options.seed is not None else random.randrange(1, 2**31)
    seconds = max(1, options.seconds // len(names))
    console.print(f"seed {seed}; {seconds} s for each of: {', '.join(names)}")
    return _report([fuzz(name, seconds, seed, options.jobs) for name in names], console)


def _count(text: str) -> int:
    """Return a whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=_count, default=60, help="how long, all targets together (default: 60)")
    parser.add_argument("--target", choices=TARGETS, help="only this one")
    parser.add_argument("--seed", type=int, help="where chance begins; drawn if not given")
    parser.add_argument("--jobs", type=_count, default=1, help="how many processes for a target (default: 1)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input once, and show what it does")
    return parser


def _report(outcomes: Sequence[Outcome], console: Console) -> int:
    """Print the figures, the findings and the verdict; returns the exit code."""
    table = Table("target", "runs", "runs/s", "edges", "corpus", "MB", "findings", box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in outcomes:
        figures = (one.runs, one.per_second, one.edges, one.corpus, one.megabytes, len(one.findings))
        table.add_row(one.target, *(f"{figure:,}" for figure in figures))
    console.print(table)
    for one in outcomes:
        for name, what in one.findings.items():
            console.print(f"{one.target}: {what}", markup=False)
            file = (FINDINGS / name).relative_to(ROOT)
            console.print(f"  python -m tests.fuzz --replay {file} --target {one.target}", markup=False)
        for failure in one.failures:
            console.print(f"{one.target}: {failure}", markup=False)
    console.print(_verdict(outcomes))
    return FOUND if any(one.findings or one.failures for one in outcomes) else 0


def _verdict(outcomes: Sequence[Outcome]) -> str:
    count = sum(len(one.findings) for one in outcomes)
    if count:
        where = ", ".join(f"{len(one.findings)} in {one.target}" for one in outcomes if one.findings)
        return f"{count} finding{'s' if count > 1 else ''}: {where}."
    failed = [one.target for one in outcomes if one.failures]
    if failed:
        return f"The fuzzer failed: {', '.join(failed)}."
    return f"Nothing was found in {sum(one.runs for one in outcomes):,} runs."


def _replay(name: str, path: Path, console: Console) -> int:
    """Run one input once, and show its meaning and its finding."""
    target, data = TARGETS[name], path.read_bytes()
    for number, content in enumerate(target.contents(data), 1):
        console.print(f"blob {number}: {content!a}", markup=False)
    for words in target.words(data):
        console.print(words, markup=False)
    try:
        target.run(data)
    except Exception as error:
        console.print(ascii("".join(traceback.format_exception(error))).replace("\\n", "\n"), markup=False)
        console.print("a finding")
        return FOUND
    console.print("nothing is found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
