"""The size limit of the blob: enqueue leaves a tenth of it free, and results and errors use that tenth.

The limit is in the queue's settings; if it is not, each writer uses its own. Claims, acks and nacks are never refused
for size: their results and errors are shortened or dropped instead.
"""

from __future__ import annotations

from jqueue.domain.draft import Draft
from jqueue.domain.errors import QueueFullError
from jqueue.domain.limits import ENTRYPOINTS_KEPT, enqueue_share

FILLED = 0.99
"""Share of the size limit that results and errors fill: the bytes of a commit are known only roughly before it."""


def enqueue_limit(draft: Draft, own: int) -> int:
    """Return the number of bytes up to which enqueue fills the blob.

    Args:
        draft: the queue; its own limit holds if it has one.
        own: the number by the writer's own limit.
    """
    most = draft.header.settings.blob_bytes
    return own if most is None else enqueue_share(most)


def take_space(draft: Draft, size: int, enqueue_bytes: int, what: str) -> None:
    """Count the bytes of a job or cron entry that is about to be added, if there is room for it.

    Args:
        draft: the draft that it is added to.
        size: about how many bytes it takes in the blob.
        enqueue_bytes: number of bytes up to which its writer fills a blob that has no limit of its own.
        what: its description, for the error.

    Raises:
        QueueFullError: there is no room for it.
    """
    most = enqueue_limit(draft, enqueue_bytes)
    if draft.taken_bytes + size > most:
        raise QueueFullError(
            f"no room for {what}: the jobs in the queue take {draft.taken_bytes} of the {most} bytes that enqueue may "
            "use. Let workers catch up, purge dead jobs, enqueue fewer, or raise the queue's limit with "
            "configure(blob_bytes=...)"
        )
    if size:  # counting is a change, and a change of 0 bytes must cause no write
        draft.note_added(size)


def check_rules_fit(draft: Draft, entrypoint: str) -> None:
    """Check that one more entrypoint may have limits or a pause.

    Raises:
        QueueFullError: too many entrypoints have them.
    """
    if entrypoint not in draft.header.entrypoints and len(draft.header.entrypoints) >= ENTRYPOINTS_KEPT:
        raise QueueFullError(
            f"{len(draft.header.entrypoints)} entrypoints have limits or pauses, the most that a queue can keep: "
            "remove some with limit or resume"
        )


def take_reserve(draft: Draft, size: int, blob_bytes: int) -> bool:
    """Count the bytes that a result or an error adds, if the blob stays within its size limit with them.

    A blob that is nearly filled by what does not count takes them up to the limit of enqueue.

    Args:
        draft: the draft that it is added to.
        size: about how many bytes it adds to the blob; below 0 if it replaces something larger.
        blob_bytes: the size limit of its writer, for a blob that has none of its own.

    Returns:
        True if there is room, which is always the case if `size` is not above 0.
    """
    most = draft.header.settings.blob_bytes or blob_bytes
    if size > 0 and draft.taken_bytes + size > max(enqueue_share(most), int(most * FILLED) - draft.uncounted_bytes):
        return False
    draft.note_added(size)
    return True
