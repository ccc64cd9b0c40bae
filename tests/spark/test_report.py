"""`report`: figures of queues and of a lake, in frames, in the terminal and on a page that is safe with any name."""

import asyncio
import io
import re
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from rich.cells import cell_len
from rich.console import Console

from jqueue import DirectQueue, connect
from jqueue.domain.errors import InvalidJobError, InvalidURLError, StorageError
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, JobStatus
from jqueue.domain.printable import printable
from jqueue.operations import Enqueue
from jqueue.spark.lake import archive
from jqueue.spark.report import PastReport, Report, report
from jqueue.spark.report.columns import EntrypointFigures, Failure, HistogramBucket, PastFailure, PastFigures
from jqueue.spark.report.figures import STATES
from jqueue.spark.report.sections import past_part, present_part
from tests.spark.spark_calls import call, enqueue

pytestmark = pytest.mark.wide

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><b>",
    '" onmouseover="alert(3)',
    "{{ 7 * 191 }}",
    "<!--",
    "]]>",
    "$a_b$ costs $x^2$",
    "fill: #0072b2",
    "日本語の名前",
)
NOW = datetime(2026, 11, 28, 8, tzinfo=UTC)
VOID = {"meta", "link", "br", "hr", "img", "input"}
REFERENCES = {"src", "href", "srcset", "action", "data", "poster", "xlink:href", "background", "formaction", "ping"}


class Page(HTMLParser):
    """A parsed page, which must be well formed."""

    def __init__(self, path):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = path.read_text(encoding="utf-8")
        self.words = ""
        self.feed(self.text)
        self.close()
        assert [] == self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag == self.open.pop()

    def handle_data(self, data):
        self.words += data

    def check(self):
        """Assert that it loads nothing, runs nothing, and describes each figure."""
        for tag, attributes in self.tags:
            assert tag not in ("script", "iframe", "object", "image", "foreignObject", "b")
            assert not [name for name in attributes if name.startswith("on")]
            links = [value for name, value in attributes.items() if name in REFERENCES]
            assert not [value for value in links if value and not value.startswith(("data:", "#"))]
        assert not re.search(r"@import|url\((?!['\"]?(data:|#))", self.text)
        count = Counter(tag for tag, _ in self.tags)
        images = [attributes["aria-label"] for _, attributes in self.tags if attributes.get("role") == "img"]
        assert count["text"] == len(re.findall(r"<text style=\"[^\"]*fill: var\(", self.text)), (
            "dark screens need light words"
        )
        assert count["figure"] == count["svg"] == len([each for each in images if each])


async def fill(queue):
    """Fill a queue with jobs in every state."""
    if (await queue.read_state()).history is None:
        await queue.configure(history=1e9)
    for number in range(3):
        await queue.enqueue("mail", b"secret payload", headers={"secret": "header"}, max_attempts=number + 1)
    for job in await queue.dequeue("mail", batch_size=3):
        await queue.nack(job, error=ValueError("secret text"))
    for name in HOSTILE:
        await queue.enqueue(name, b"", delay=3600)
    await queue.enqueue_many([Enqueue("add", b"", keep_result=3600)] * 2)
    [first, _] = await queue.dequeue("add", batch_size=2, claim_timeout=30)
    await queue.ack(first, result={"secret": "result"})


def printed(found):
    out = io.StringIO()
    found.print(Console(file=out, width=80, highlight=False))
    assert all(cell_len(line) <= 80 for line in out.getvalue().splitlines())
    return out.getvalue()


def made_up(names):
    """A report on the present and the past with a row for each name, made without Spark."""
    queues = ("s3://bucket/a.json", "s3://bucket/b.json")
    standings = tuple(
        EntrypointFigures(
            queue, name, 1110 + n, 1000 + n, 100, 10, 0, 0, 0, 7200.0 + n, 60.0, 120.0, NOW, 1, 20, 1.5, 3
        )
        for queue in queues
        for n, name in enumerate(names)
    )
    start = NOW - timedelta(hours=2)
    whole = PastFigures(None, None, None, 1200, 1100, 1000, 20, 1, 1.5, 3, *(0.1, 1.0, 90.0) * 3)
    past = PastReport(
        lake="lake\x1b[31m",
        since=start,
        until=NOW,
        window=3600.0,
        total=whole,
        windows=(whole._replace(start=start), whole._replace(start=NOW, median_total=None)),
        entrypoints=tuple(whole._replace(entrypoint=name) for name in names),
        parts=(),
        holders=tuple(whole._replace(holder=f"worker {name}") for name in names),
        failures=tuple(PastFailure(name, f"Error{n}", start, 700 + n, n) for n, name in enumerate(names)),
        spark=None,  # type: ignore[arg-type]
    )
    return Report(
        now=NOW,
        queues=queues,
        standings=standings,
        totals={name: EntrypointFigures(name, None, 9999, 9999) for name in (None, *queues)},
        failures=tuple(Failure(queues[0], name, f"Error{n}", 50, 40, 10, 0) for n, name in enumerate(names)),
        ages=(HistogramBucket(queues[0], names[0], 60.0, 600.0, 4321),),
        turnarounds=(),
        attempts=(HistogramBucket(queues[0], names[0], 5.0, 10.0, 1234),),
        spark=None,  # type: ignore[arg-type]
        past=past,
    )


def test_each_table_is_in_the_terminal_and_on_the_page_which_is_safe_with_any_name(tmp_path):
    names = (*HOSTILE, "bell\x07\x1b[31m")
    found = made_up(names)
    terminal, page = printed(found), Page(found.to_html(tmp_path / "report.html"))
    page.check()
    parts = present_part(found), past_part(found.past)
    tables = [table for part in parts for tables, _ in part.sections.values() for table in tables if table.rows]
    assert len(tables) == page.text.count("<table>") == 10
    for table in tables:
        assert table.title in terminal
        assert f"<summary>{table.title}</summary>" in page.text
        for row in (*table.rows, *([table.total] if table.total else [])):
            assert all(column.of(row) in terminal for column in table.numbers)
            assert all(f">{column.of(row)}</td>" in page.text for column in (*table.numbers, *table.more))
    assert not {"\x07", "\x1b"} & {*page.text, *terminal}
    for name in map(printable, names):
        assert page.words.count(f"worker {name}") == 2, "the table and the plot have the name as it is"
    assert "lake\\x1b[31m" in page.words
    for words in ("4,321", "1,234", "Error0: 40 dead, 10 waiting"):
        assert words in page.text
    assert page.text == found.to_html(tmp_path / "again.html").read_text(encoding="utf-8")


def test_long_reports_show_the_largest_rows_and_count_the_others(tmp_path):
    found = made_up([f"name {n:04}" for n in range(1010)])
    terminal, page = printed(found), Page(found.to_html(tmp_path / "report.html"))
    assert "and 1,980 more" in terminal
    assert "name 1009" in terminal
    assert {"And 1,020 more.", "2,005 more in the table."} <= set(page.words.splitlines())


@pytest.mark.parametrize(("module", "show"), [("matplotlib", "to_html"), ("jinja2", "to_html"), ("rich", "print")])
def test_a_missing_extra_is_named_in_one_line(monkeypatch, tmp_path, module, show):
    monkeypatch.delitem(sys.modules, "jqueue.spark.report.terminal", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    found = made_up(["mail"])
    with pytest.raises(ImportError, match=r'^[^\n]*: pip install "jqueue\[report\]"$'):
        found.print() if show == "print" else found.to_html(tmp_path / "report.html")


def test_a_page_that_cannot_be_written_is_an_error_of_storage(tmp_path):
    with pytest.raises(StorageError, match="Could not write the page"):
        made_up(["mail"]).to_html(tmp_path / "nothing" / "report.html")


def plain_figures(url, jobs, now):
    """The figures of each entrypoint, by plain loops over the jobs."""

    def seconds(later, earlier):
        return max(0.0, (later - earlier).total_seconds())

    def state_of(job):
        if job.status is not JobStatus.QUEUED:
            return job.status.value
        if job.run_at is not None and job.run_at > now:
            return "scheduled"
        return "expired" if job.expires_at is not None and job.expires_at <= now else "ready"

    def percentile(values, share):
        place = share * (len(values) - 1)
        low, values = int(place), sorted(values)
        return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (place - low) if values else None

    found, lasts = [], DEFAULT_CLAIM_TIMEOUT.total_seconds()
    for entrypoint in sorted({job.entrypoint for job in jobs}):
        own = [(job, state_of(job)) for job in jobs if job.entrypoint == entrypoint]
        states = Counter(state for _, state in own)
        ages = [seconds(now, job.run_at or job.created_at) for job, state in own if state == "ready"]
        took = [seconds(job.finished_at, job.run_at or job.created_at) for job, state in own if state == "completed"]
        tries = [job.attempt - job.attempts_before for job, _ in own if job.attempt > job.attempts_before]
        found.append(EntrypointFigures(
            url, entrypoint, len(own), **{state: states[state] for state in STATES}, oldest_age=max(ages, default=None),
            median_age=percentile(ages, 0.5), p95_age=percentile(ages, 0.95),
            next_at=min((job.run_at for job, state in own if state == "scheduled"), default=None),
            stale=sum(state == "in_progress" and seconds(now, job.heartbeat_at) > (job.claim_timeout or lasts)
                      for job, state in own),
            tried=len(tries), mean_attempts=sum(tries) / len(tries) if tries else None,
            most_attempts=max(tries, default=None), failing=sum(job.error is not None for job, _ in own),
            median_turnaround=percentile(took, 0.5), p95_turnaround=percentile(took, 0.95),
            longest_turnaround=max(took, default=None),
        ))  # fmt: skip
    return found


def rounded(figures):
    return [round(value, 6) if isinstance(value, float) else value for value in figures]


def test_the_figures_are_those_of_plain_loops_over_the_jobs_and_have_no_content(spark, url, tmp_path):
    call(url, fill)
    jobs = call(url, DirectQueue.read_state).jobs
    now = jobs[0].created_at + timedelta(minutes=50)
    found = report(spark, url, now=now)
    for expected, figures in zip(plain_figures(url, jobs, now), found.standings, strict=True):
        assert rounded(expected) == rounded(figures)
    assert {len(jobs)} == {found.totals[name].jobs for name in (None, url)}
    assert ("ValueError", 3, 1, 2) == found.failures[0][2:6]
    assert len(found.standings) == found.frame.count()
    frames = str((found.frame.collect(), found.failures, found.ages, found.turnarounds, found.attempts))
    assert "secret" not in frames + printed(found) + found.to_html(tmp_path / "report.html").read_text("utf-8")


def test_ages_and_stale_claims_are_as_of_now_and_a_queue_without_jobs_is_listed(spark, tmp_path):
    one, none = f"{tmp_path}/one.json", f"{tmp_path}/none.json"
    call(one, lambda queue: queue.enqueue("mail", b""))
    [job] = call(one, DirectQueue.read_state).jobs
    call(one, lambda queue: queue.enqueue("add", b""))
    call(one, lambda queue: queue.dequeue("add", claim_timeout=30))
    [empty] = enqueue(none, [Enqueue("mail", b"")])
    call(none, lambda queue: queue.cancel(empty))
    found = report(spark, [f"{tmp_path}/o*.json", none], now=job.created_at + timedelta(hours=2))
    assert ([none, one], [0, 2]) == ([*found.queues], [found.totals[name].jobs for name in (none, one)])
    [add, mail] = found.standings
    assert (1, 0) == (add.stale, mail.stale)
    assert (7200.0, 7200.0) == (mail.oldest_age, mail.median_age)
    assert sum(each.jobs for each in found.ages) == 1
    for urls in (f"{tmp_path}/*.txt", "nowhere://queue", [""]):
        with pytest.raises(InvalidURLError) as caught:
            report(spark, urls)
        assert "\n" not in str(caught.value)


def test_the_past_has_exact_figures_of_a_lake_by_entrypoint_holder_and_window(spark, url, tmp_path):
    async def work():
        async with connect(url, DirectQueue) as queue:
            await fill(queue)
            return [event async for event in queue.history()]

    events = asyncio.run(work())
    lake = str(tmp_path / "lake")
    archive(spark, url, lake)
    both = report(spark, url, lake=lake)
    past = both.past
    assert past is not None
    count = {verb: sum(event.jobs for event in events if event.verb == verb) for verb in ("enqueue", "dequeue", "ack")}
    total = past.total
    assert (count["enqueue"], count["ack"], 3, 1) == (total.enqueued, total.done, total.failed, total.dead)
    waits = sorted(event.wait_seconds for event in events if event.verb == "dequeue" for _ in range(event.jobs))
    assert total.median_wait == pytest.approx((waits[(len(waits) - 1) // 2] + waits[len(waits) // 2]) / 2)
    assert {"mail", "add", *HOSTILE} == {each.entrypoint for each in past.entrypoints}
    assert total.done == sum(each.done for each in past.windows) == sum(each.done for each in past.holders)
    assert {"ValueError"} == {each.error for each in past.failures}
    assert total == report(spark, lake=lake, since=past.since, window=timedelta(hours=1)).total
    assert {"mail", "ValueError"} <= set(printed(both).split())
    Page(both.to_html(tmp_path / "both.html")).check()
    for wrong, words in (
        ({"since": past.since.replace(tzinfo=None)}, "since must have a time zone"),
        ({"until": past.since - timedelta(days=1)}, "the lake has no events in this time"),
        ({"lake": f"{tmp_path}/nothing"}, "there is no lake at "),
    ):
        with pytest.raises((InvalidJobError, InvalidURLError), match=words):
            report(spark, **{"lake": lake, **wrong})
    with pytest.raises(InvalidURLError, match="a report needs a queue or a lake"):
        report(spark)  # type: ignore[call-overload]
