"""Planted bugs in the history of a queue."""

from typing import cast

from jqueue.core.blob import engine
from jqueue.core.blob.content import Blob
from jqueue.core.blob.history_mover import HistoryMover
from jqueue.domain import commits
from jqueue.domain.commits import next_header
from jqueue.domain.errors import CASConflictError
from jqueue.domain.events import batches_of
from jqueue.domain.history import Moved, span_of
from jqueue.domain.operations import ranges
from jqueue.domain.operations.returned_ranges import bulk_move
from jqueue.ports.storage import SupportsObjects


def outbox_dropped_before_its_object_landed(patch):
    """Events are dropped from the blob when their object is sent, before the store answers"""
    move = HistoryMover._move

    async def hasty(self, objects, history, queue):
        self.moved = Moved(history.series, history.batches)
        return await move(self, objects, history, queue)

    patch.setattr(HistoryMover, "_move", hasty)


def loser_drops_its_own_range(patch):
    """The loser of two movers drops its own range of events instead of the winner's"""
    move = HistoryMover._move

    async def careless(self, objects, history, queue):
        class Unread:
            async def create_object(self, suffix, content):
                try:
                    await objects.create_object(suffix, content)
                except CASConflictError:
                    return

        return await move(self, cast("SupportsObjects", Unread()), history, queue)

    patch.setattr(HistoryMover, "_move", careless)


def numbers_used_again_after_a_lost_answer(patch):
    """A commit after a lost answer uses the numbers of the commit that landed unnoticed"""
    pending: dict[str, int] = {}
    settle = Blob.settle

    def reusing(draft, commit, *rest):
        header, known = next_header(draft, commit, *rest), draft.header.history
        if known is None or header.history is None:
            return header
        surplus = known.last - pending.setdefault(commit.writer, known.last)
        if not surplus:
            return header
        kept = [batch for batch in header.history.batches if span_of(batch).first <= known.last]
        new = [
            f"[{span_of(batch).first - surplus},{batch.partition(',')[2]}"
            for batch in header.history.batches[len(kept) :]
        ]
        changes = {"batches": (*kept, *new), "last": header.history.last - surplus}
        return header.model_copy(update={"history": header.history.model_copy(update=changes)})

    def clean(self, header, size):
        for writer, record in header.commits.items():
            if record.version == header.version:
                pending.pop(writer, None)
        return settle(self, header, size)

    patch.setattr(engine, "next_header", reusing)
    patch.setattr(Blob, "settle", clean)


def lines_without_an_event(patch):
    """Jobs that were added as lines make no event"""
    patch.setattr(
        commits,
        "batches_of",
        lambda moves, placed, number, now, **options: batches_of(moves, (), number, now, **options),
    )


def rows_given_back_counted_as_done(patch):
    """The event of the end of a range names the rows that were given back, too"""

    def careless(verb, held, after, spans, now):
        return bulk_move(verb, held, after, spans, now)._replace(rows=((held.segment, held.spans),))

    patch.setattr(ranges, "bulk_move", careless)
