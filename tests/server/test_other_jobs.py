"""The page shows the jobs that are not in the queue's object among those that are."""

from datetime import UTC, datetime
from typing import Any

import pytest

from jqueue.core.engine.lazy_state import LazyState
from jqueue.core.engine.view import QueueView
from jqueue.domain.job_table import packed
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.server import jobs
from jqueue.server.jobs import job_page, search_of
from jqueue.server.view import View
from tests.other_jobs import Rows

pytestmark = pytest.mark.asyncio

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def job(number):
    name = "even" if number % 2 == 0 else "odd"
    return Job(id=f"{number:02}", entrypoint=name, payload=b"", created_at=NOW).evolve(sequence=number)


async def view_of(hot, others):
    entries = {f"{number:02}": packed(job(number), {}) for number in hot}
    rows: Any = Rows(*map(job, others))
    queue = QueueView(LazyState(QueueState(), (), entries, rows), Limits(), 0, 0)
    return View(1, NOW, queue, entries, await queue.stats(NOW)), rows


async def shown(view, start=0, order="served", **asked):
    page = await job_page(view, search_of(asked), order, start)
    return page["total"], [int(row["id"]) for row in page["jobs"]]


async def test_a_page_has_the_first_jobs_of_both_places(monkeypatch):
    monkeypatch.setattr(jobs, "PAGE", 4)
    view, rows = await view_of([1, 2, 6, 9], [3, 4, 5, 7, 8])
    assert (9, [1, 2, 3, 4]) == await shown(view)
    assert (9, [5, 6, 7, 8]) == await shown(view, start=4)
    assert (9, [9]) == await shown(view, start=8)
    assert (9, [9, 8, 7, 6]) == await shown(view, order="newest")
    assert (5, [1, 3, 5, 7]) == await shown(view, text="odd")
    asked = len(rows.asked)
    assert (9, [1, 2, 3, 4]) == await shown(view)
    assert asked == len(rows.asked), "a page that was found once is kept"
    await shown(view, state="ready", entrypoint="odd")
    assert (frozenset({JobStatus.QUEUED}), frozenset({"odd"}), "") == rows.asked[-1]


async def test_a_job_is_found_in_both_places():
    view, _ = await view_of([1], [2, 3])
    assert ["01", "03"] == [(await view.job(job_id)).id for job_id in ("01", "03")]
    assert await view.job("0") is None
    assert 3 == view.stats.depth
