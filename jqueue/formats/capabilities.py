"""What no format of an older queue has a place for."""

from jqueue.ports.queue import Capabilities

OF_ALL = Capabilities(
    priority=False,
    delay=False,
    expiry=False,
    job_ids=False,
    unique_keys=False,
    transactions=False,
    size_limit=False,
    cancel_running=False,
    reschedule=False,
    limits=False,
    retention=False,
    results=False,
    schedules=False,
    staged=False,
    holders=False,
)
"""What each of them can do at least; headers, dead letters, fencing and the like are kept beside."""
