"""Any state is read back as it was written, in any layout of its JSON; `tests/fuzz` reads any other bytes."""

import json

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jqueue.core.blob import codec
from jqueue.domain.counters import Counters
from jqueue.domain.header import BrokerSeat, CommitRecord, KeyHold, TransactionRecord, WorkerRecord
from jqueue.domain.history import HistoryHeader
from jqueue.domain.models import Job, QueueState
from jqueue.domain.rules import QueueSettings, Usage
from tests.fuzz.oracles import check_same
from tests.property.drawing import RECORDS, any_jobs, counts, names, rules, schedules, seconds, values

CHECKS = [HealthCheck.too_slow]
PATIENT = settings(deadline=None, max_examples=12, derandomize=True, suppress_health_check=CHECKS)
"""A machine with other things to do needs seconds to draw some states."""

decisions = st.fixed_dictionaries(
    {
        "settings": RECORDS.of(QueueSettings),
        "history": st.none() | RECORDS.of(HistoryHeader),
        "entrypoints": st.dictionaries(names, rules, max_size=2),
        "recent": st.dictionaries(names, st.lists(RECORDS.of(Usage), min_size=1, max_size=3).map(tuple), max_size=2),
        "transactions": st.dictionaries(names, RECORDS.of(TransactionRecord), max_size=2),
        "counters": st.dictionaries(names, RECORDS.of(Counters), max_size=2),
        "workers": st.dictionaries(names, RECORDS.of(WorkerRecord), max_size=2),
        "schedules": st.lists(schedules, max_size=2).map(lambda many: {each.name: each for each in many}),
    }
)
"""Fields of a state besides its jobs: settings of the whole queue."""

unknown = st.dictionaries(names.map("from the future: {}".format), values, max_size=3)
writers = st.builds(CommitRecord, counts, counts, seconds, seconds, extra=st.none() | unknown.filter(bool))
headers = st.fixed_dictionaries(
    {
        "version": counts,
        "queue": names,
        "finished": st.dictionaries(names, counts, max_size=3),
        "evicted_through": counts,
        "attempt_floor": counts,
        "last_sequence": counts,
        "broker": st.none()
        | st.builds(BrokerSeat, writer=names, url=names, term=st.integers(0, 2**53), doubted_at=seconds),
        "commits": st.dictionaries(names, writers, max_size=3),
        "holds": st.dictionaries(names, st.builds(KeyHold, names, seconds), max_size=3),
        "extra": unknown,
    }
)
states = st.builds(
    lambda jobs, header, decided: QueueState(jobs=tuple(jobs), **header, **decided),
    st.lists(any_jobs, max_size=6, unique_by=lambda job: job.id),
    headers,
    decisions,
)
layouts = st.fixed_dictionaries(
    {
        "indent": st.none() | st.integers(0, 3) | st.just("\t"),
        "sort_keys": st.booleans(),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([None, (",", ":"), (" , ", " : ")]),
    }
)


@pytest.mark.wide
def test_the_strategies_draw_every_field_of_a_job():
    """Without this, the tests below would show nothing for a new field."""
    plain = Job(id="0", entrypoint="", payload=b"")
    drawn: set[str] = set()

    @settings(PATIENT, max_examples=150, database=None, phases=[Phase.generate])
    @given(any_jobs)
    def draw(job):
        drawn.update(name for name in Job.model_fields if getattr(job, name) != getattr(plain, name))

    draw()
    assert set(Job.model_fields) == drawn


@PATIENT
@given(states, layouts, st.sampled_from([b"", b"\n", b" \r\n"]))
def test_every_state_is_read_back_as_it_was_in_any_layout_of_the_json(state, layout, end):
    data = codec.encode(state)
    assert state == codec.decode(data)
    assert data == codec.encode(codec.decode(data))
    found = codec.decode(json.dumps(json.loads(data), **layout).encode() + end)
    if layout["sort_keys"]:  # only the order of the tables is another
        assert {job.id: job for job in state.jobs} == {job.id: job for job in found.jobs}
    else:
        check_same(state, found, "in another layout", placed=False)
    assert found == codec.decode(codec.encode(found))
