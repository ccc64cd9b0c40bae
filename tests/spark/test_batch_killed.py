"""Batches that are killed between any two of their steps, in processes of their own: see `batch_kills`."""

import os

import pytest

from tests.spark.batch_kills import MODES, kills

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no child processes without fork")]

STORY = [("all", 60), ("task", 20)]


@pytest.mark.wide
@pytest.mark.parametrize(("mode", "every"), STORY)
def test_a_batch_killed_at_some_of_its_steps_does_each_job_and_acks_it_once(tmp_path, mode, every):
    check(mode, kills(mode, tmp_path, every=every, first=every // 2))


@pytest.mark.full
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_killed_at_any_of_its_steps_does_each_job_and_acks_it_once(tmp_path, mode):
    check(mode, kills(mode, tmp_path, every=1))


def check(mode, tally):
    assert tally["kills"] > 0
    assert (mode in ("all", "driver")) == (tally["claimed"] > 0)
    assert mode != "task" or tally["kills"] == tally["acked"]
