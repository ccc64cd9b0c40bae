"""The jobs that an operator means, found in a view of the queue."""

import pytest

from jqueue.cli.chosen_jobs import one_job
from jqueue.core.engine.lazy_state import LazyState
from jqueue.core.engine.view import QueueView
from jqueue.domain.errors import InvalidJobError, JobNotFoundError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, QueueState

pytestmark = pytest.mark.asyncio

IDS = ("ab", "abc", "b\x1b[2J1", *(f"c{number}" for number in range(5)))
ENTRIES = {each: Job(id=each, entrypoint="t", payload=b"") for each in IDS}
VIEW = QueueView(LazyState(QueueState(), (), ENTRIES), Limits(), 0, 0)


@pytest.mark.parametrize(
    ("given", "found"), [("ab", "ab"), ("abc", "abc"), ("abc…", "abc"), ("b", "b\x1b[2J1"), ("c3", "c3")]
)
async def test_an_id_or_its_beginning_names_the_only_job_whose_id_begins_like_it(given, found):
    assert found == (await one_job(VIEW, given)).id


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("a", InvalidJobError, r"^2 jobs have ids that begin like this: .* They are ab, abc$"),
        ("c", InvalidJobError, r"^5 jobs have ids .* The first are c0, c1, c2$"),
        ("x", JobNotFoundError, "x"),
        ("", InvalidJobError, "empty"),
    ],
)
async def test_an_id_of_no_job_or_of_several_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        await one_job(VIEW, given)
