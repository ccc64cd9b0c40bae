"""A folder of vsqs by its URL."""

import pytest

from jqueue.connect import connect
from jqueue.domain.errors import InvalidURLError
from tests.unit.formats.folders import names


async def test_the_options_of_a_url_are_those_of_the_folder(tmp_path):
    queue = connect(f"vsqs://{tmp_path}/queue?unit=ms&capacity=1&when_full=refuse&fsync=false&entrypoint=work")
    await queue.enqueue("work", b"payload")
    [name] = names(tmp_path / "queue")
    assert 13 == len(name)
    with pytest.raises(Exception, match="no room"):
        await queue.enqueue("work", b"payload")


@pytest.mark.parametrize(
    "wrong",
    [
        "unit=s",
        "unit=",
        "capacity=0",
        "capacity=-1",
        "capacity=many",
        "capacity=1.5",
        "when_full=drop",
        "fsync=no",
        "x=1",
    ],
)
def test_a_wrong_option_is_refused_with_an_example_url(wrong):
    with pytest.raises(InvalidURLError, match="vsqs:///var/spool/app/queue"):
        connect(f"vsqs:///tmp/queue?{wrong}")


@pytest.mark.parametrize("wrong", ["vsqs://", "vsqs:///", "vsqs://host/queue", "vsqs://user@/queue", "vsqs:///a%00b"])
def test_a_url_that_names_no_folder_is_refused(wrong):
    with pytest.raises(InvalidURLError):
        connect(wrong)
