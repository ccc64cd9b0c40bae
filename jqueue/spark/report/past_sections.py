"""The sections of the page on the past: one question each, with its plots over time and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from jqueue.domain.printable import counted
from jqueue.spark.report import past_plots
from jqueue.spark.report.formatting import duration, mean, number
from jqueue.spark.report.past_columns import Past, PastFigures
from jqueue.spark.report.past_figures import TIMES
from jqueue.spark.report.past_plots import MOST_CLASSES, Slots
from jqueue.spark.report.plots import MOST_BARS, Bar, Piece, is_uneven, scale_of
from jqueue.spark.report.sections import MOST_ROWS, Plot, Section, Table

MOST_SPARKS = 8
"""Largest number of entrypoints with a small plot."""

OTHERS = "all others"

NAMES_OF_TIMES = {
    "wait": "Wait: ready until claimed",
    "run": "Run: claimed until its end",
    "total": "Total: enqueued until done",
}


def past_sections(past: Past) -> list[Section]:
    """Return the sections that have something to tell."""
    builder = _PastBuilder(past, Slots(past))
    sections = (builder.throughput(), builder.times(), builder.failed(), builder.holders())
    return [section for section in sections if section.tables[-1].rows]


@dataclass(frozen=True)
class _PastBuilder:
    """The sections of a report on the past, a method for each."""

    past: Past
    slots: Slots

    def throughput(self) -> Section:
        rows = self.slots.aligned(self.past.windows)
        heights = [((each.done, "completed"), (each.failed, "dead")) if each else () for each in rows]
        enqueued = [each.enqueued if each else 0 for each in rows]
        words = [
            f"{number(each.enqueued)} enqueued, {number(each.done)} done, {number(each.failed)} failed" if each else ""
            for each in rows
        ]
        names = [str(each.entrypoint) for each in self.past.entrypoints[:MOST_SPARKS]]
        small = past_plots.sparks(self.slots, self.past, names)
        plots = [
            Plot(
                "time",
                f"Jobs, {per(self.past.window)}",
                past_plots.stack(self.slots, heights, ("enqueued", enqueued), words),
                _describe("Columns over time", self.past.windows, lambda each: f"{number(each.done)} done"),
                (("completed", "done"), ("dead", "failed attempts"), ("enqueued", "enqueued (line)")),
                self._note(),
            )
        ]
        if len(small) > 1:
            said = "; ".join(f"{each.name}: {each.words}" for each in small)
            plots.append(Plot("sparks", "Jobs done by entrypoint, each to its own scale", small, f"{said}."))
        tables = (
            self._table("Entrypoints", ("entrypoint",), self.past.entrypoints, lambda each: str(each.entrypoint)),
            self._table(
                "Windows",
                ("begins (UTC)",),
                list(reversed(self.past.windows)),
                lambda each: past_plots.window_words(each.start or self.past.since, self.past.window),
            ),
        )
        about = (
            "A job is done when it is acked. A failed attempt is a nack that counts, or a claim that went stale. "
            "Dead are jobs that were given up then."
        )
        return Section("What was done", about, tuple(plots), tables)

    def times(self) -> Section:
        plots = []
        for name in TIMES:
            made = self._lines(name)
            if made is not None:
                plots.append(made)
        columns = tuple(f"{name} {share}" for name in TIMES for share in ("median", "p95", "p99"))

        def cells(each: PastFigures) -> tuple[str, ...]:
            return tuple(
                duration(getattr(each, f"{share}_{name}")) for name in TIMES for share in ("median", "p95", "p99")
            )

        rows = [(str(each.entrypoint), *cells(each)) for each in self.past.entrypoints[:MOST_ROWS]]
        total = ("all", *cells(self.past.total)) if len(rows) > 1 else ()
        more = len(self.past.entrypoints) - len(rows)
        return Section(
            "How long jobs took",
            "Half of the jobs took longer than the median, one in twenty longer than p95, one in a hundred longer than "
            "p99. The total is known for jobs that left the queue when they were done. Jobs of a range count with "
            "their average.",
            tuple(plots),
            (Table("Times by entrypoint", ("entrypoint",), columns, rows, total, more),),
        )

    def _lines(self, name: str) -> Plot | None:
        rows = self.slots.aligned(self.past.windows)
        values = {
            share: [getattr(each, f"{share}_{name}") if each else None for each in rows]
            for share in ("p99", "p95", "median")
        }
        made = past_plots.lines(
            self.slots, values, lambda at: past_plots.times_words(rows[at] or self.past.total, name)
        )
        if made is None:
            return None
        said = _describe("Lines over time", self.past.windows, lambda each: past_plots.times_words(each, name))
        legend = (("median", "median"), ("p95", "p95"), ("p99", "p99"))
        return Plot("time", NAMES_OF_TIMES[name], made, said, legend)

    def failed(self) -> Section:
        classes = Counter[str]()
        dead = Counter[tuple[str, str]]()
        pairs = Counter[tuple[str, str]]()
        windows: dict[datetime, Counter[str]] = {}
        for each in self.past.failures:
            classes[each.error] += each.failed
            pairs[each.error, each.entrypoint] += each.failed
            dead[each.error, each.entrypoint] += each.dead
            windows.setdefault(each.start, Counter())[each.error] += each.failed
        ranked = sorted(classes, key=lambda error: (-classes[error], error))
        kinds = {error: f"class{place}" for place, error in enumerate(ranked[:MOST_CLASSES])}
        heights, words = [], []
        for start in self.slots.starts:
            found = windows.get(start, Counter())
            rest = sum(count for error, count in found.items() if error not in kinds)
            heights.append([*((found[error], kind) for error, kind in kinds.items()), (rest, "expired")])
            words.append(", ".join(f"{number(count)} {error}" for error, count in found.most_common(MOST_CLASSES)))
        legend = tuple((kind, error) for error, kind in kinds.items())
        legend += (("expired", OTHERS),) if len(ranked) > len(kinds) else ()
        said = "; ".join(f"{error}: {number(classes[error])}" for error in ranked[:MOST_BARS])
        plot = Plot(
            "time",
            f"Failed attempts by the class of the error, {per(self.past.window)}",
            past_plots.stack(self.slots, heights, None, words),
            f"Columns over time, with these sums. {said}.",
            legend,
        )
        rows: list[tuple[str, ...]] = [
            (*pair, number(count), number(dead[pair]))
            for pair, count in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
        ]
        table = Table(
            "Errors", ("error", "entrypoint"), ("failed", "dead"), rows[:MOST_ROWS], more=max(0, len(rows) - MOST_ROWS)
        )
        about = (
            "The class of the error of each failed attempt; the rest of its text is not in this report. Errors without "
            "a class count as other. A stale claim is a worker that sent no more heartbeats."
        )
        return Section("What failed", about, (plot,), (table,))

    def holders(self) -> Section:
        rows = self.past.holders
        place = scale_of(each.done + each.failed for each in rows[:MOST_BARS])
        bars = tuple(_holder_bar(each, place) for each in rows[:MOST_BARS])
        uneven = is_uneven([each.done + each.failed for each in rows[:MOST_BARS]])
        more = len(rows) - MOST_BARS
        notes = ["The lengths of the bars are logarithmic."] if uneven else []
        notes += [f"{counted(more, 'holder')} with fewer jobs: in the table only."] if more > 0 else []
        said = "; ".join(f"{bar.name}: {bar.value}" for bar in bars)
        plot = Plot(
            "bars",
            "Jobs by holder",
            bars,
            f"Bar chart of jobs by the holder of their claims. {said}.",
            (("completed", "done"), ("dead", "failed attempts")),
            " ".join(notes),
        )
        table = self._table("Holders", ("holder",), rows, lambda each: str(each.holder))
        about = "A holder is the name that a worker gives its claims: by default, that of the process and its machine."
        return Section("Who did it", about, (plot,), (table,))

    def _table(
        self, title: str, names: tuple[str, ...], rows: Sequence[PastFigures], name: Callable[[PastFigures], str]
    ) -> Table:
        columns = (
            *("enqueued", "done", "failed", "dead", "attempts", "most"),
            *("wait p95", "run median", "run p95", "total p95"),
        )

        def cells(each: PastFigures) -> tuple[str, ...]:
            counts = (each.enqueued, each.done, each.failed, each.dead)
            attempts = (mean(each.mean_attempts), "" if each.most_attempts is None else number(each.most_attempts))
            times = map(duration, (each.p95_wait, each.median_run, each.p95_run, each.p95_total))
            return (*map(number, counts), *attempts, *times)

        made = [(name(each), *cells(each)) for each in rows[:MOST_ROWS]]
        total = ("all", *cells(self.past.total)) if len(made) > 1 else ()
        return Table(title, names, columns, made, total, max(0, len(rows) - MOST_ROWS))

    def _note(self) -> str:
        left = len(self.past.windows) - len(self.slots.starts)
        return f"{counted(left, 'earlier window')}: in the table only." if left > 0 else ""


def per(window: float) -> str:
    """Return the length of a window in words: "per hour", "in 15 minutes each"."""
    for words, length in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0)):
        if window == length:
            return f"per {words}"
        if window > length and window % length == 0:
            return f"in {window / length:.0f} {words}s each"
    return f"in {duration(window)} each"


def _holder_bar(each: PastFigures, place: Callable[[int], float]) -> Bar:
    whole = each.done + each.failed
    length = place(whole)
    done = round(length * each.done / whole, 3) if whole else 0.0
    pieces = (Piece(0.0, done, "completed"), Piece(done, round(length - done, 3), "dead"))
    return Bar(str(each.holder), tuple(piece for piece in pieces if piece.length), number(each.done))


def _describe(what: str, rows: Sequence[PastFigures], words: Callable[[PastFigures], str]) -> str:
    """Return a plot over time in words: its first, its last, and its busiest window."""
    if not rows:
        return f"{what}."
    busiest = max(rows, key=lambda each: each.done + each.failed)
    told = dict.fromkeys((rows[0], busiest, rows[-1]))
    return f"{what}. " + "; ".join(f"{each.start:%Y-%m-%d %H:%M}: {words(each)}" for each in told) + "."
