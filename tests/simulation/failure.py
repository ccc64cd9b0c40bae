"""Report of a broken rule: the shortest schedule that breaks it, and the versions around it."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.chain import Fields, Version
from tests.simulation.history import NEVER, Violation
from tests.simulation.runner import Settings, Simulation

MOST_TRIES = 400
"""Number of runs to spend on making a failure short."""

SHOWN = (
    *("status", "attempt", "failures", "sequence", "heartbeat_at", "claim_timeout", "error", "concurrency_key"),
    *("concurrency_limit", "keep_result", "finished_at", "cancel_requested"),
)
VERSIONS_AROUND = 2


def fails(seed: int, settings: Settings) -> tuple[Simulation, Violation] | None:
    """Run a seed. Return the simulation and the rule that it broke, or None if it broke none."""
    simulation = Simulation(seed, settings)
    try:
        simulation.run()
    except Violation as violation:
        return simulation, violation
    return None


def shorten(seed: int, settings: Settings, rule: int) -> Settings:
    """Leave out as many events as possible while the same rule is still broken.

    Halves of the events are tried first, then quarters, and so on down to single ones (after Zeller's ddmin).
    """
    failure = fails(seed, settings)
    events = [event for _, event in failure[0].schedule.taken] if failure else []
    size, tries = len(events) // 2, MOST_TRIES
    while size and tries:
        place, shorter = 0, False
        while place < len(events) and tries:
            tries -= 1
            candidate = replace(settings, left_out=settings.left_out | set(events[place : place + size]))
            failure = fails(seed, candidate)
            if failure is not None and failure[1].rule == rule:
                settings, shorter = candidate, True
                events = [event for _, event in failure[0].schedule.taken]
            else:
                place += size
        size = size if shorter and size == 1 else size // 2
    return settings


def describe(seed: int, settings: Settings) -> str:
    """Describe a failing seed for people: the broken rule, the events in order, and the versions around it."""
    failure = fails(seed, settings)
    if failure is None:
        return f"seed {seed} breaks no rule"
    simulation, violation = failure
    lines = [f"seed {seed}: {violation}", "", f"What happened ({len(simulation.schedule.taken)} events):"]
    lines += [f"  {at:10.3f}  {what}" for at, what in sorted(_timeline(simulation))]
    index = violation.index
    if index is None:  # it shows in the answer to a call: take the last version by then
        told = NEVER if violation.call is None else violation.call.ended
        index = sum(version.at <= told for version in simulation.versions) - 1
    lines += ["", "The versions around it:"]
    for version in simulation.versions[max(0, index - VERSIONS_AROUND) : index + VERSIONS_AROUND]:
        before = simulation.versions[version.index - 1] if version.index else Version()
        lines.append(f"  version {version.number} at {version.at:.3f} by {version.by or 'a person'}")
        lines += [f"      {change}" for change in _changes(before, version)]
    return "\n".join(lines)


def _timeline(simulation: Simulation) -> list[tuple[float, str]]:
    """Return calls, faults, disturbances and versions, each with its time."""
    entries = [(at, event) for at, event in simulation.schedule.taken if not event.startswith("step ")]
    for call in simulation.world.history.calls:
        entries.append((call.started, f"{call.process} calls {call}"))
        if call.ended != NEVER:
            entries.append((call.ended, f"{call.process} is told {call.outcome} by {call}"))
    entries += [(version.at, f"version {version.number} lands, by {version.by}") for version in simulation.versions]
    return entries


def _changes(before: Version, after: Version) -> list[str]:
    """Return the changes of one version: limits, the times of cron entries, and each job. Payloads are not shown."""
    decided = [f"settings: {after.settings}"] if before.settings != after.settings else []
    for table in ("transactions", "entrypoints", "schedules", "segments"):
        old, new = getattr(before, table), getattr(after, table)
        for name in sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)):
            is_rows = table == "segments" and name in new
            decided.append(f"{table} {name}: {_brief_of(name, after) if is_rows else new.get(name, 'gone')}")
    changed = [job_id for job_id, job in after.jobs.items() if before.jobs.get(job_id) != job]
    gone = [f"{job_id}: gone" for job_id in before.jobs.keys() - after.jobs.keys()]
    return decided + [f"{job_id}: {_brief(after.jobs[job_id])}" for job_id in changed] + sorted(gone)


def _brief_of(name: str, version: Version) -> str:
    """Return the rows of a segment in short: how many are there, and their ids."""
    ids = [job_id for job_id, (segment, _) in version.rows.items() if segment == name]
    leased = [job_id for job_id, (segment, _) in version.leased.items() if segment == name]
    return f"{len(ids + leased)} of {version.segments[name]['rows']} rows: {', '.join(ids)}, leased {', '.join(leased)}"


def _brief(job: Fields) -> str:
    return ", ".join(f"{name} {job[name]}" for name in SHOWN if name in job)
