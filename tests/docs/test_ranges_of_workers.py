"""The pages for handlers and workers give the figures by which a worker claims ranges."""

from pathlib import Path

from jqueue.worker.heartbeats import BEATS_PER_TIMEOUT
from jqueue.worker.held_ranges import END_AFTER, KEEP_AFTER, LEAST
from jqueue.worker.outcome_sender import MAX_BATCH
from jqueue.worker.range_claims import MOST, SECONDS

DOCS = Path(__file__).parents[2] / "docs"


def part_of(page, heading):
    """Return the text under a heading, up to the next heading, in one line."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert f"\n{heading}\n" in text
    return " ".join(text.split(f"\n{heading}\n")[1].split("\n#")[0].split())


def test_the_reference_gives_the_sizes_and_times_of_ranges():
    ranges = part_of("reference/worker.md", "### Ranges")
    assert f"up to {MOST:,} jobs of each range" in ranges
    assert f"as the worker does in {SECONDS:g} seconds by its last batches, at most {MOST:,}" in ranges
    assert 3 == BEATS_PER_TIMEOUT
    assert f"timeout below {SECONDS * BEATS_PER_TIMEOUT:g} seconds, a third of the timeout" in ranges
    assert f"A range has at least {LEAST} jobs" in ranges
    assert f"{LEAST} or more jobs at a time, or fewer after {END_AFTER:g} second." in ranges
    assert f"for {KEEP_AFTER:g} seconds" in ranges


def test_the_reference_tells_batches_that_are_claimed_one_by_one_from_ranges():
    batches = part_of("reference/worker.md", "## Batches")
    assert "claimed by itself, and one for each range" in batches
    assert f"at most {MAX_BATCH:,} in one call if their jobs are claimed by themselves" in batches


def test_the_guide_says_how_many_jobs_a_crash_repeats():
    assert f"up to {MOST:,} jobs of a range may run again" in part_of("guide/handlers.md", "## Many jobs in one call")
