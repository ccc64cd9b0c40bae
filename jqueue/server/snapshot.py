"""A snapshot of a queue: the page as one HTML file, with the figures and jobs of one moment and without a server."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode

from jqueue.domain.selection import Phase, Selection
from jqueue.ports.clock import Clock
from jqueue.ports.queue import JobQueue
from jqueue.runtime.system import SystemClock
from jqueue.server import page
from jqueue.server.access import Role, without_hidden
from jqueue.server.jobs import ORDERS, Query, dead_groups, first_jobs, job_details
from jqueue.server.past import timeline
from jqueue.server.view import Viewers, overview

JOBS_OF_EACH_STATE = 500
"""Maximum number of jobs of each state in the file, the next to be served first. All are counted."""

_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


async def snapshot(queue: JobQueue, clock: Clock | None = None) -> str:
    """Return a page that shows a queue as it is now. It has what a viewer may see: no payloads, headers and results.

    Args:
        queue: the queue, which is open.
        clock: the machine's clock by default.

    Raises:
        JQueueError: the queue cannot be read.
    """
    view = await Viewers(queue, clock or SystemClock()).look()
    totals, jobs = {}, []
    for phase in Phase:
        first, beyond, _ = await first_jobs(view, Query(Selection(frozenset({phase}))), "served", JOBS_OF_EACH_STATE)
        totals[phase] = first.number + beyond
        jobs += first.found()
    values = {
        "totals": totals,
        "jobs": [without_hidden(Role.VIEWER, job_details(job, view.now)) for job in sorted(jobs, key=ORDERS["served"])],
        "dead": await dead_groups(view),
        "timeline": await timeline(queue, view),
        # The figures come last: they name the segments that could not be read for the lists.
        "overview": {"role": Role.VIEWER, "actions": {}, "still": True, **overview(queue, view)},
    }
    return _page_of(json.dumps(values, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))


def _page_of(values: str) -> str:
    """Return the page with its style, its scripts and its values, which are JSON without the sign "<"."""
    script = "\n".join(_EXPORT.sub("", _IMPORT.sub("", page.read(name))) for name in page.ALONE)
    style = page.read(page.STYLE)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    found = page.read("index.html")
    head = (
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">'
    )
    data = f'<script type="application/json" id="snapshot">{values}</script>'
    for before, after in (
        ('<meta charset="utf-8">', head),
        ('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>"),
        ('<script type="module" src="source.js"></script>', f'{data}\n<script type="module">{script}</script>'),
    ):
        assert before in found
        found = found.replace(before, after)
    return found


def _digest(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
