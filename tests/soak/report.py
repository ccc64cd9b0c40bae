"""The output of the soak: a bar while it runs, then its counts as a table, and the verdict."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.soak.journal import Kind, Verb
from tests.soak.ledger import Ledger
from tests.soak.race import Finish
from tests.soak.run import Soak

VIOLATIONS_SHOWN = 10


def show(console: Console, soak: Soak, seconds: float) -> None:
    """Print the table and the violations of a soak."""
    ledger = soak.ledger
    table = _table(f"soaked: {soak.settings.store}", "")
    table.add_row("seconds", f"{seconds:,.0f}")
    _add(table, "calls", _count(ledger, Kind.INTENT))
    _add(table, "  acknowledged", sum(ledger.kinds[Kind.DONE, verb] for verb in Verb if verb is not Verb.LEAVE))
    for verb in Verb:
        _add(table, f"    {verb}", ledger.kinds[Kind.DONE, verb])
    _add(table, "  refused", _count(ledger, Kind.REFUSED))
    _add(table, "  of unknown outcome", _count(ledger, Kind.UNKNOWN))
    _add(table, "    it had landed", _count(ledger, Kind.LANDED))
    _add(table, "    it was not done", _count(ledger, Kind.NOT_DONE))
    _add(table, "    still unknown", _count(ledger, Kind.STILL_UNKNOWN))
    _add(table, "commits", ledger.version)
    _add(table, "  recognised", ledger.recognised)
    _add(table, "jobs seen finished", len(ledger.finished))
    _add(table, "requests", soak.requests)
    _add(table, "faults", soak.fired.total())
    for kind, count in sorted(soak.fired.items()):
        _add(table, f"  {kind}", count)
    _add(table, "kills", soak.kills)
    table.add_row("latest after its deadline", f"{ledger.latest:.2f} s")
    for error, count in sorted(ledger.errors.items()):
        _add(table, escape(error), count)
    _add(table, "violations", len(ledger.violations))
    console.print(table)
    for violation in ledger.violations[:VIOLATIONS_SHOWN]:
        console.print(f"VIOLATION: {violation.what}", markup=False, soft_wrap=True)
        for line in violation.lines:
            console.print(f"    {line}", markup=False, soft_wrap=True)
    if (more := len(ledger.violations) - VIOLATIONS_SHOWN) > 0:
        console.print(f"and {more:,} more")


def show_race(console: Console, finish: Finish) -> None:
    """Print the table of a race."""
    table = _table("race", "")
    _add(table, "writers", len(finish.seconds))
    _add(table, "commits", finish.version)
    table.add_row("first, s", f"{finish.seconds[0]:.2f}")
    table.add_row("last, s", f"{finish.seconds[-1]:.2f}")
    table.add_row("slowest commit, s", f"{finish.slowest_call:.2f}")
    _add(table, "lost", len(finish.lost))
    console.print(table)
    if not finish.is_fair:
        text = f"{finish.version} versions for {finish.commits} commits; lost: {finish.lost[:20]}"
        console.print(f"VIOLATION: {text}", markup=False, soft_wrap=True)


def _count(ledger: Ledger, kind: Kind) -> int:
    return sum(count for (found, _), count in ledger.kinds.items() if found is kind)


def _table(*titles: str) -> Table:
    table = Table(*titles, box=box.SIMPLE)
    table.columns[-1].justify = "right"
    return table


def _add(table: Table, title: str, count: int) -> None:
    table.add_row(title, f"{count:,}")
