"""Planted bugs in the counters of a queue."""

from typing import Any

from jqueue.core.blob import engine
from jqueue.core.engine.open_writes import OpenWrites
from jqueue.domain import commits
from jqueue.domain.commits import Verdict, next_header
from jqueue.domain.journal import Journal
from jqueue.domain.tallies import with_moves


def recognised_commit_counted_twice(patch):
    """A commit that is recognised after its answer was lost counts a second time"""
    sent = {}
    close = OpenWrites.close

    def remembering(draft, commit, queue, now, *rest):
        sent[commit] = draft, list(draft.moves), now
        return next_header(draft, commit, queue, now, *rest)

    def counting(self, verdicts, landed=None):
        for write, verdict in verdicts.items():
            if verdict is Verdict.LANDED and write.commit in sent:
                draft, moves, now = sent[write.commit]
                draft.header.counters = with_moves(draft.header.counters, moves, {}, now)
        return close(self, verdicts, landed=landed)

    patch.setattr(engine, "next_header", remembering)
    patch.setattr(OpenWrites, "close", counting)


def refused_transitions_counted(patch):
    """The transitions of a refused operation are undone, and still counted"""
    undo = Journal.undo
    patch.setattr(
        Journal, "undo", lambda self, mark, moves, bulk: undo(self, mark, len(self.moves) if mark else 0, bulk)
    )


def staged_jobs_not_counted(patch):
    """Jobs that were added as lines are not counted"""
    patch.setattr(commits, "_added", lambda draft: {})


def own_transitions_only(patch):
    """A writer counts from its own last commit, and forgets what others have counted since"""
    known: dict[str, Any] = {}

    def forgetful(draft, commit, *rest):
        header = next_header(draft, commit, *rest)
        own = known.get(commit.writer, draft.header.counters)
        counters = with_moves(own, draft.moves, {}, rest[1])
        known[commit.writer] = counters
        return header.model_copy(update={"counters": counters})

    patch.setattr(engine, "next_header", forgetful)
