"""Every planted bug is found within its stated number of seeds, and the report is readable.

If these tests take long, the product's timing has moved the seeds: `python -m tests.simulation.first_seeds`.
"""

import functools
import re

import pytest

from tests.simulation.first_seeds import first_seeds
from tests.simulation.history import Violation
from tests.simulation.many import run_seeds
from tests.simulation.planted_bugs import NOT_RECOGNISED, PLANTED, built_in
from tests.simulation.runner import run_seed

FAST = frozenset(
    {
        "Only the last two writers' commits can be recognised",
        "A job id that is used again starts with attempt 0",
        "A claim gets the timeout of the queue that watches it, and not its own",
        "An empty dequeue is answered from the cached state",
        "A write without an etag overwrites an existing object",
        "A deadline that passes while a write is under way is reported as not done",
        "A pause is ignored",
        "The first event of a commit has the number of the last event before it",
        "The commit does not wait until the object of its payload is there",
        "A commit whose answer was lost is not recognised",
        "Stale claims are revoked before the heartbeats of the same commit are applied",
        "A refused operation does not undo the earlier operations of its `apply`",
        "The newest job is served first",
        "A call does not end at its deadline",
        "An undo does not restore the indexes of a job",
        "One job more than the limit of its concurrency key is claimed",
        "An ack finishes its job without keeping the result",
        "A collection removes old segments without a look at the manifest",
        "A lookup of a job by its id does not look into segments",
        "A writer keeps loaded rows that another writer has taken meanwhile",
    }
)
"""One to three bugs for each rule that an audit checks. `make test` looks for these, and `make test-wide` for all."""


def first_violation(seeds, settings=None):
    """Return the first of some seeds that breaks a rule, and the rule."""
    for seed in seeds:
        try:
            run_seed(seed, settings)
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return seed, violation.rule
    return pytest.fail(f"{seeds} passed")


def searches():
    """Return each planted bug with the seed to begin at: a seed that found the bug before. The full set begins at 0."""
    assert {name for bugs in PLANTED.values() for name in bugs} >= FAST
    for settings, bugs in PLANTED.items():
        for name, bug in bugs.items():
            first = first_seeds().get(name, 0)
            marks = [pytest.mark.xdist_group(f"seed {first}"), *[pytest.mark.wide] * (name not in FAST)]
            yield pytest.param(settings, name, bug, first, id=name, marks=marks)
            if first:
                yield pytest.param(settings, name, bug, 0, id=f"{name}, from seed 0", marks=pytest.mark.full)


@pytest.mark.parametrize(("settings", "name", "bug", "first"), list(searches()))
def test_the_simulation_finds_each_planted_bug(settings, name, bug, first):
    with built_in(name, bug):
        seed, _ = first_violation(range(first, first + bug.seeds), settings)
    run_without_bugs(seed, settings)


@functools.cache
def run_without_bugs(seed, settings):
    """Check once that a seed breaks no rule by itself. Bugs that one seed finds are searched for in one process."""
    run_seed(seed, settings)


@pytest.mark.wide
def test_a_violation_shows_the_seed_a_short_schedule_and_the_versions():
    with built_in("not recognised", NOT_RECOGNISED), pytest.raises(Violation) as violation:
        run_seeds(range(100))
    text = str(violation.value)
    assert re.search(r"seed \d+: rule 2: ", text)
    [(events, others)] = re.findall(r"^What happened \((\d+) events\):$.*^(\d+) other events", text, re.M | re.S)
    assert int(events) < int(others)
    assert "The versions around it:" in text
    assert "payload" not in text
