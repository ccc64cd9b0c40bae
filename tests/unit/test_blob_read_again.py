"""Cases that the state machine of `tests/property/test_pages_properties.py` rarely reaches, each on its own."""

import pytest

from jqueue.core.blob import codec
from jqueue.core.blob.content import Blob
from jqueue.domain.operations import Cancel
from jqueue.domain.slices import exhaust
from jqueue.testing.virtual_time import EPOCH
from tests.deep_queue import deep_blob, waiting_line


def adopted(*contents):
    blob = Blob()
    for content in contents:
        blob.adopt(codec.parse_blob(content), len(content))
    return blob


@pytest.mark.parametrize("place", [b"\n}}", b'"job 000000": {', b'"job 000300": {'])
def test_new_and_running_readers_resolve_a_duplicated_id_alike(place):
    data = deep_blob(600)
    twin = waiting_line(299, "twin")
    behind = b",\n" + twin + place if place == b"\n}}" else twin + b",\n" + place
    data, twice = data, data.replace(place, behind, 1)
    used, fresh = adopted(data, twice).draft.freeze(), adopted(twice).draft.freeze()
    assert sorted(fresh.jobs, key=lambda job: job.id) == sorted(used.jobs, key=lambda job: job.id)
    assert 1 == len(fresh.set_aside)
    assert fresh.set_aside == used.set_aside == adopted(data).look(codec.parse_blob(twice)).set_aside


def test_a_look_shows_the_blob_as_read_while_the_draft_changes():
    data = deep_blob(3000)
    blob = adopted(data)
    lazy = exhaust(blob.looking(codec.parse_blob(data)))
    state = lazy.to_state()
    next(state)
    Cancel("job 002999").change(blob.draft, EPOCH)
    assert codec.decode(data) == exhaust(state)
    assert "payload" not in repr(lazy).replace("history_payloads", "")
