"""Cron entries and clocks that disagree: no clock stops an entry or fires an occurrence twice."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue.core.blob.codec import decode, encode
from jqueue.domain import cron, occurrences
from jqueue.domain.draft import Draft
from jqueue.domain.operations import Dequeue, Peek, SetSchedule, Unschedule

THREE = datetime(2026, 1, 1, 3, tzinfo=UTC)
MINUTE, HOUR, YEAR = timedelta(minutes=1), timedelta(hours=1), timedelta(days=365)
HOURLY, MINUTELY = "0 * * * *", "* * * * *"
LOOK = Dequeue(("nothing",), batch_size=1, claim_timeout=30.0)


def a_draft(expression, now):
    draft = Draft()
    SetSchedule("n", expression, "x").change(draft, now)
    draft.settle()
    return draft


def fire(draft, now):
    """Return the occurrences that a dequeue at this time fires."""
    before = set(draft.jobs)
    LOOK.change(draft, now)
    draft.settle()
    return [datetime.fromisoformat(job_id.split(":", 2)[2]) for job_id in draft.jobs if job_id not in before]


@pytest.mark.parametrize("ahead", [HOUR, YEAR])
def test_an_entry_fired_by_a_clock_that_is_ahead_fires_for_the_others_at_its_next_time(ahead):
    draft = a_draft(MINUTELY, THREE)
    assert [THREE + ahead] == fire(draft, THREE + ahead)
    assert [] == fire(draft, THREE + MINUTE / 2)
    assert [THREE + MINUTE] == fire(draft, THREE + MINUTE)
    assert [THREE + 2 * MINUTE] == fire(draft, THREE + 2.5 * MINUTE)


def test_an_occurrence_that_a_clock_ahead_has_fired_is_not_fired_again_when_its_time_comes():
    draft = a_draft(MINUTELY, THREE)
    assert [THREE + 5 * MINUTE] == fire(draft, THREE + 5 * MINUTE)
    fired = [occurrence for minute in range(1, 9) for occurrence in fire(draft, THREE + minute * MINUTE)]
    assert [THREE + minute * MINUTE for minute in (1, 2, 3, 4, 6, 7, 8)] == fired


def test_two_clocks_an_hour_apart_fire_each_occurrence_once():
    draft = a_draft(MINUTELY, THREE)
    fired = []
    for minute in range(1, 100):
        fired += fire(draft, THREE + minute * MINUTE + HOUR)
        fired += fire(draft, THREE + minute * MINUTE)
    assert [THREE + minute * MINUTE for minute in range(1, 160)] == sorted(fired)
    assert 1 == len(draft.header.schedules["n"].fired)


@pytest.mark.parametrize("ahead", [HOUR, YEAR])
def test_an_entry_set_by_a_clock_that_is_ahead_fires_at_its_next_time_and_not_for_a_past_one(ahead):
    draft = a_draft(HOURLY, THREE + 10 * MINUTE + ahead)
    assert [] == fire(draft, THREE + 10 * MINUTE), "it was set after three"
    assert [] == fire(draft, THREE + 59 * MINUTE)
    assert [THREE + HOUR] == fire(draft, THREE + HOUR)
    assert [THREE + 2 * HOUR] == fire(draft, THREE + 2 * HOUR)


def test_setting_the_same_entry_again_changes_nothing_on_any_clock():
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + HOUR)
    for now in (THREE, THREE + HOUR, THREE + YEAR):
        SetSchedule("n", MINUTELY, "x").change(draft, now)
        assert not draft.changed
    assert [THREE + MINUTE] == fire(draft, THREE + MINUTE)


def test_an_entry_changed_by_a_clock_that_is_ahead_fires_at_its_next_time():
    """The entry gets another entrypoint and keeps its record of fired occurrences."""
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + MINUTE)
    SetSchedule("n", MINUTELY, "y").change(draft, THREE + HOUR)
    assert [] == fire(draft, THREE + MINUTE)
    assert [THREE + 2 * MINUTE] == fire(draft, THREE + 2 * MINUTE)


def test_one_job_makes_up_for_all_occurrences_missed_in_a_gap():
    draft = a_draft(MINUTELY, THREE)
    assert [THREE + HOUR] == fire(draft, THREE + HOUR + MINUTE / 2)
    assert [] == fire(draft, THREE + HOUR + MINUTE / 2)
    assert [THREE + HOUR + MINUTE] == fire(draft, THREE + HOUR + MINUTE)


def test_empty_looks_of_a_clock_that_is_behind_write_only_once():
    draft = a_draft(MINUTELY, THREE)
    LOOK.change(draft, THREE - HOUR)
    assert draft.changed, "the first clock time that it met must be stored"
    draft.settle()
    for now in (THREE - HOUR, THREE + MINUTE / 2, THREE - HOUR + MINUTE / 2, THREE):
        LOOK.change(draft, now)
        assert not draft.changed
    assert [THREE - HOUR + MINUTE] == fire(draft, THREE - HOUR + MINUTE)


def test_an_empty_look_computes_no_cron_times(monkeypatch):
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + HOUR)
    fire(draft, THREE + MINUTE)
    asked = []

    def counted(*given):
        asked.append(given)
        return iter(())

    monkeypatch.setattr(cron, "_times_after", counted)
    cron.next_after(MINUTELY, "UTC", THREE + MINUTE)  # known since the last one was fired
    for second in range(59):
        for clock in (timedelta(), HOUR):
            LOOK.change(draft, THREE + clock + MINUTE + timedelta(seconds=second) - clock * (MINUTE / HOUR))
            assert draft.next_due() is not None
    assert [] == asked
    assert not draft.changed


def test_a_dequeue_that_waits_wakes_at_the_next_time_of_its_own_clock():
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + HOUR)
    for now, due in ((THREE, THREE + MINUTE), (THREE + HOUR, THREE + HOUR + MINUTE)):
        LOOK.change(draft, now)
        assert due == draft.next_due()


def test_callers_get_the_next_time_by_their_own_clock():
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + YEAR)
    assert THREE + MINUTE == SetSchedule("n", MINUTELY, "x").change(draft, THREE).next_at


def test_an_entry_keeps_few_spans_of_fired_times_and_merges_the_earliest():
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + YEAR)
    for hour in range(1, 30):
        assert [THREE + hour * HOUR] == fire(draft, THREE + hour * HOUR)
    assert occurrences.SPANS_KEPT == len(draft.header.schedules["n"].fired)
    assert [] == fire(draft, THREE + 5 * HOUR), "the gap between the earliest spans is merged"
    assert [THREE + 28 * HOUR + MINUTE] == fire(draft, THREE + 28 * HOUR + MINUTE)
    assert [THREE + 29 * HOUR + MINUTE] == fire(draft, THREE + 29 * HOUR + MINUTE)


def test_an_entry_of_an_older_version_counts_as_fired_up_to_its_next_time():
    draft = a_draft(MINUTELY, THREE)
    draft.header.schedules["n"] = draft.header.schedules["n"].model_copy(update={"fired": (), "next_at": THREE + HOUR})
    assert [] == fire(draft, THREE + 59 * MINUTE)
    assert [THREE + HOUR] == fire(draft, THREE + HOUR)
    assert [] == fire(draft, THREE + 59 * MINUTE)
    assert [THREE + HOUR + MINUTE] == fire(draft, THREE + HOUR + MINUTE)


def test_occurrences_fired_by_an_older_version_are_not_fired_again():
    """An older version moves `next_at` and does not know the spans of fired occurrences."""
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + MINUTE)
    draft.header.schedules["n"] = draft.header.schedules["n"].model_copy(update={"next_at": THREE + 10 * MINUTE})
    assert [] == fire(draft, THREE + 9 * MINUTE)
    assert [THREE + 12 * MINUTE] == fire(draft, THREE + 12 * MINUTE)
    assert [] == fire(draft, THREE + 9 * MINUTE)
    assert [THREE + 11 * MINUTE] == fire(draft, THREE + 11 * MINUTE), "no clock has fired it"


def test_an_entry_removed_and_set_again_begins_anew():
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + HOUR)
    Unschedule("n").change(draft, THREE)
    SetSchedule("n", MINUTELY, "x").change(draft, THREE)
    assert 1 == len(draft.header.schedules["n"].fired)
    assert [THREE + MINUTE] == fire(draft, THREE + MINUTE)


def test_fired_occurrences_are_stored_in_the_blob():
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + HOUR)
    state = draft.freeze()
    assert state == decode(encode(state))
    assert b'"fired": [["2026-01-01T03:00:00Z", "2026-01-01T03:00:00Z"], ["2026-01-01T04:00:00Z"' in encode(state)


def test_a_peek_fires_cron_entries_as_a_dequeue_does():
    draft = a_draft(MINUTELY, THREE)
    fire(draft, THREE + HOUR)
    [job] = Peek(Dequeue(("x",), batch_size=9, claim_timeout=30.0)).change(draft, THREE + MINUTE)[:1]
    assert 2 == len(draft.jobs)
    assert "x" == job.entrypoint
