"""`report`: figures of queues and of a lake, in frames, in the terminal and on a page that is safe with any name."""

import asyncio
import io
import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from rich.cells import cell_len
from rich.console import Console

from jqueue import DirectQueue, connect
from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.operations import Enqueue
from jqueue.spark.lake import archive
from jqueue.spark.report import report
from tests.spark.spark_calls import call, enqueue

pytestmark = pytest.mark.wide

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><b>",
    '" onmouseover="alert(3)',
    "{{ 7 * 191 }}",
    "<!--",
    "日本語の名前",
)
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

    def check_safe(self):
        """Assert that it loads nothing, and runs nothing."""
        for tag, attributes in self.tags:
            assert tag not in ("script", "iframe", "object", "b")
            assert not [name for name in attributes if name.startswith("on")]
            links = [value for name, value in attributes.items() if name in REFERENCES]
            assert not [value for value in links if value and not value.startswith(("data:", "#"))]
        assert not re.search(r"@import|url\((?!['\"]?(data:|#))", self.text)


async def fill(queue):
    """Fill a queue with jobs in every state, and return its stats."""
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
    return await queue.stats()


def counts(figures):
    return figures.ready, figures.scheduled, figures.in_progress, figures.dead, figures.completed


def of_stats(stats):
    return stats.depth, stats.scheduled, stats.in_progress, stats.dead, stats.completed


def printed(found):
    out = io.StringIO()
    found.print(Console(file=out, width=80, highlight=False))
    assert all(cell_len(line) <= 80 for line in out.getvalue().splitlines())
    return out.getvalue()


def test_a_report_agrees_with_the_stats_of_the_queue_and_has_no_content(spark, url, tmp_path):
    stats = call(url, fill)
    found = report(spark, url)
    assert (url,) == found.queues
    assert of_stats(stats) == counts(found.totals[None]) == counts(found.totals[url])
    assert {name: of_stats(each) for name, each in stats.entrypoints.items()} == {
        each.entrypoint: counts(each) for each in found.standings
    }
    [mail] = [each for each in found.standings if each.entrypoint == "mail"]
    assert (3, 1, 1.0) == (mail.failing, mail.most_attempts, mail.mean_attempts)
    assert ("ValueError", 3, 1, 2) == found.failures[0][2:6]
    assert len(found.standings) == found.frame.count()
    frames = str([frame.collect() for frame in (found.frame, found.failure_frame, found.histogram_frame)])
    terminal, page = printed(found), Page(found.to_html(tmp_path / "report.html"))
    for text in (frames, terminal, page.text):
        assert "secret" not in text
    assert {"ValueError", "mail"} <= set(terminal.split())
    page.check_safe()
    for name in (*HOSTILE, "mail", "ValueError"):
        assert name in page.words
    images = [each for _, each in page.tags if each.get("role") == "img" or each.get("alt")]
    assert images
    assert all(each.get("aria-label") or each.get("alt") for each in images)


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
    past = report(spark, lake=lake)
    count = {verb: sum(event.jobs for event in events if event.verb == verb) for verb in ("enqueue", "dequeue", "ack")}
    total = past.total
    assert (count["enqueue"], count["ack"], 3, 1) == (total.enqueued, total.done, total.failed, total.dead)
    waits = sorted(event.wait_seconds for event in events if event.verb == "dequeue" for _ in range(event.jobs))
    assert total.median_wait == pytest.approx((waits[(len(waits) - 1) // 2] + waits[len(waits) // 2]) / 2)
    assert {"mail", "add", *HOSTILE} == {each.entrypoint for each in past.entrypoints}
    assert total.done == sum(each.done for each in past.windows) == sum(each.done for each in past.holders)
    assert {"ValueError"} == {each.error for each in past.failures}
    assert total == report(spark, lake=lake, since=past.since, window=timedelta(hours=1)).total
    both = report(spark, url, lake=lake)
    assert both.past is not None
    assert total == both.past.total
    assert {"mail", "ValueError"} <= set(printed(both).split())
    page = Page(both.to_html(tmp_path / "both.html"))
    page.check_safe()
    for name in HOSTILE:
        assert name in page.words
    for wrong, words in (
        ({"since": past.since.replace(tzinfo=None)}, "since must be aware of its time zone"),
        ({"until": past.since - timedelta(days=1)}, "the lake has no events in this time"),
        ({"lake": f"{tmp_path}/nothing"}, "there is no lake at "),
    ):
        with pytest.raises((InvalidJobError, InvalidURLError), match=words):
            report(spark, **{"lake": lake, **wrong})  # type: ignore[call-overload]
    with pytest.raises(InvalidURLError, match="a report needs a queue or a lake"):
        report(spark)  # type: ignore[call-overload]
