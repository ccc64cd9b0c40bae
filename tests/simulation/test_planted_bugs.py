"""Every planted bug is found within its stated number of seeds, and the report is readable."""

import pytest

from tests.simulation.failure import shorten
from tests.simulation.history import Violation
from tests.simulation.many import run_seeds
from tests.simulation.planted_bugs import NOT_RECOGNISED, PLANTED, built_in
from tests.simulation.runner import Settings, Simulation, run_seed


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
    """Return each planted bug with the seed to begin at: one that found it once, and 0 in the full set."""
    for settings, bugs in PLANTED.items():
        for name, bug in bugs.items():
            yield pytest.param(settings, name, bug, bug.first, id=name, marks=[pytest.mark.wide] * bug.is_slow)
            if bug.first:
                yield pytest.param(settings, name, bug, 0, id=f"{name}, from seed 0", marks=pytest.mark.full)


@pytest.mark.parametrize(("settings", "name", "bug", "first"), list(searches()))
def test_the_simulation_finds_each_planted_bug(settings, name, bug, first):
    with built_in(name, bug):
        seed, _ = first_violation(range(first, first + bug.seeds), settings)
    run_seed(seed, settings)  # no rule is broken without the bug


@pytest.mark.wide
def test_a_violation_shows_the_seed_a_short_schedule_and_the_versions():
    with built_in("not recognised", NOT_RECOGNISED), pytest.raises(Violation) as found:
        run_seeds(range(100))
    text = str(found.value)
    assert "seed " in text
    assert "What happened (" in text
    assert "The versions around it:" in text
    assert "payload" not in text


@pytest.mark.wide
def test_shrinking_a_schedule_keeps_the_broken_rule():
    with built_in("not recognised", NOT_RECOGNISED):
        seed, rule = first_violation(range(100))
        shortest = shorten(seed, Settings(), rule, tries=80)
        whole, short = Simulation(seed, Settings()), Simulation(seed, shortest)
        for simulation in (whole, short):
            with pytest.raises(Violation) as found:
                simulation.run()
            assert rule == found.value.rule
    assert len(short.schedule.taken) < len(whole.schedule.taken) / 2
