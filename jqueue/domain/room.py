"""How full the blob may become: enqueue leaves a tenth of it free, and results and errors use that tenth.

The limit is that of the queue, in its settings; a queue without one goes by that of each writer. Claims, acks and nacks
are never refused for size: what they bring along is shortened or dropped.
"""

from __future__ import annotations

from jqueue.domain.draft import Draft
from jqueue.domain.errors import QueueFullError
from jqueue.domain.limits import ENTRYPOINTS_KEPT, enqueue_share


def room_for_jobs(draft: Draft, own: int) -> int:
    """The size up to which enqueue fills the blob: as the queue says, or by a writer's own limit if it does not."""
    most = draft.header.settings.blob_bytes
    return own if most is None else enqueue_share(most)


def make_room(draft: Draft, size: int, enqueue_bytes: int, what: str) -> None:
    """Count what enqueue is about to add.

    Args:
        draft: where it is added.
        size: about how many bytes it takes in the blob.
        enqueue_bytes: the size up to which its writer fills a blob that has no limit of its own.
        what: what it is, as the error says it.

    Raises:
        QueueFullError: there is no room for it.
    """
    most = room_for_jobs(draft, enqueue_bytes)
    if draft.taken_bytes + size > most:
        raise QueueFullError(
            f"no room for {what}: the jobs in the queue take {draft.taken_bytes} of the {most} bytes that enqueue may "
            "use. Let workers catch up, purge dead jobs, enqueue fewer, or raise the queue's limit with "
            "configure(blob_bytes=...)"
        )
    if size:  # counting is a change, and what adds nothing is not written
        draft.note_added(size)


def check_rules_fit(draft: Draft, entrypoint: str) -> None:
    """Refuse limits or a pause of one more entrypoint, if too many have them.

    Raises:
        QueueFullError: they do.
    """
    if entrypoint not in draft.header.entrypoints and len(draft.header.entrypoints) >= ENTRYPOINTS_KEPT:
        raise QueueFullError(
            f"{len(draft.header.entrypoints)} entrypoints have limits or pauses, and a queue keeps no more: lift some, "
            "with resume and limit"
        )


def take_reserve(draft: Draft, size: int, blob_bytes: int) -> bool:
    """Count what a result or an error adds, if there is room for it beyond what enqueue may fill.

    Args:
        draft: where it is added.
        size: about how many bytes it adds to the blob; below 0 if it takes the place of more.
        blob_bytes: the size limit of its writer, for a blob that has none of its own.

    Returns:
        True if there is room. What adds nothing always has.
    """
    if size > 0 and draft.taken_bytes + size > (draft.header.settings.blob_bytes or blob_bytes):
        return False
    draft.note_added(size)
    return True
