"""Batches that are killed between any two of their steps, in processes of their own: see `batch_kills`."""

import os

import pytest

from tests.spark.batch_kills import MODES, kills

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no child processes without fork")]

STORY = [("all", 40, False), ("task", 12, False), ("all", 40, True), ("last-task", 12, True)]


@pytest.mark.wide
@pytest.mark.parametrize(("mode", "every", "with_results"), STORY)
def test_a_batch_killed_at_some_of_its_steps_does_each_job_and_acks_it_once(tmp_path, mode, every, with_results):
    check(mode, with_results, kills(mode, tmp_path, every=every, first=every // 2, with_results=with_results))


@pytest.mark.full
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("with_results", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_killed_at_any_of_its_steps_does_each_job_and_acks_it_once(tmp_path, mode, with_results):
    check(mode, with_results, kills(mode, tmp_path, every=1, with_results=with_results))


def check(mode, with_results, tally):
    assert tally["kills"] > 0
    assert (mode in ("all", "driver")) == (tally["claimed"] > 0)
    assert mode != "task" or tally["kills"] == tally["acked"]
    assert not (mode == "last-task" and with_results) or tally["kills"] == tally["failed"]
