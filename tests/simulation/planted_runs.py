"""Planted bugs of passes, which apply runs of like operations at once: see `tests.simulation.planted_bugs`."""

from dataclasses import replace

from jqueue.domain import tallies
from jqueue.domain.draft import Draft
from jqueue.domain.indexed_jobs import IndexedJobs
from jqueue.domain.models import fields_of
from jqueue.domain.operations import Dequeue
from jqueue.domain.transitions import MoveRun, Verb
from tests.simulation.runner import Settings

CROWDED = Settings(rate=0.2, processes=4, crowds=1.0, segments=0.0)
"""Some faults, and many callers of one queue object in every seed."""


IN_SEGMENTS = replace(CROWDED, segments=1.0)
"""The same with segments in every seed."""


def jobs_of_a_pass_given_to_two_callers(patch):
    """A pass gives the jobs of its first dequeue to the second, too"""
    change_run = Dequeue.change_run

    def careless(run, draft, now):
        results = change_run(run, draft, now)
        return [*results[:1], *results[:1], *results[2:]] if len(results) > 1 else results

    patch.setattr(Dequeue, "change_run", staticmethod(careless))


def jobs_finished_by_a_pass_forgotten(patch):
    """A pass of acks does not remember its jobs as finished"""

    def forgetful(self, jobs):
        self._note_run(MoveRun(Verb.ACK, jobs, None, fields_of(jobs)))
        self.jobs.finish_plain(fields_of(jobs))

    patch.setattr(Draft, "finish_plain", forgetful)


def pass_undone_in_part(patch):
    """An undo takes back the first transition of a pass alone"""
    restore = IndexedJobs.restore

    def partial(self, job_id, old):
        if isinstance(old, MoveRun):
            old = MoveRun(old.verb, old.before and old.before[:1], old.after and old.after[:1], old.fields[:1])
        restore(self, job_id, old)

    patch.setattr(IndexedJobs, "restore", partial)


def pass_not_counted(patch):
    """The counters overlook the transitions of a pass"""
    patch.setattr(tallies, "_count_run", lambda *_: None)


def rows_of_a_pass_not_taken(patch):
    """The rows of segments that a pass of dequeues claims are not marked as taken"""

    def careless(self, ready, claimed):
        self._note_run(MoveRun(Verb.CLAIM, ready, claimed, fields_of(claimed)))
        self.jobs.claim_plain(claimed, fields_of(claimed))

    patch.setattr(Draft, "claim_plain", careless)
