"""URLs `dirq:///folder?...`: the kind of the queue and its options."""

import pytest

from jqueue import connect
from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.names import Schema
from jqueue.formats.dirq.simple import DirqSimple


def store_of(url):
    return connect(url).store


def test_a_missing_folder_is_of_the_simple_kind_unless_the_url_sets_options(tmp_path):
    assert isinstance(store_of(f"dirq://{tmp_path}/a"), DirqSimple)
    assert isinstance(store_of(f"dirq://{tmp_path}/a?kind=queue"), DirqElements)
    assert isinstance(store_of(f"dirq://{tmp_path}/a?schema=body:binary"), DirqElements)
    assert isinstance(store_of(f"dirq://{tmp_path}/a?kind=simple&granularity=3600"), DirqSimple)
    assert [] == list(tmp_path.iterdir()), "nothing is made before it is used"


@pytest.mark.parametrize("folder", ["temporary", "obsolete"])
def test_the_content_of_a_folder_tells_its_kind(tmp_path, folder):
    (tmp_path / folder).mkdir()
    assert isinstance(store_of(f"dirq://{tmp_path}"), DirqElements)


def test_options_become_settings(tmp_path):
    url = f"dirq://{tmp_path}?kind=queue&umask=027&maxelts=9&maxtemp=0&maxlock=5&fsync=false&entrypoint=mail"
    assert {
        "entrypoint": "mail",
        "umask": 0o027,
        "maxtemp": 0.0,
        "maxlock": 5.0,
        "fsync": False,
        "attributes": True,
        "schema": Schema(),
        "maxelts": 9,
    } == store_of(url)._settings
    named = store_of(f"dirq://{tmp_path}?schema=text:string,h:table&payload=text&headers=h")
    assert Schema("text", True, "h", False) == named._settings["schema"]
    assert tmp_path.name == named.entrypoint


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("kind=other", "kind"),
        ("umask=8", "umask"),
        ("umask=7777", "umask"),
        ("maxelts=0", "maxelts"),
        ("maxelts=x", "maxelts"),
        ("maxlock=-1", "maxlock"),
        ("fsync=yes", "fsync"),
        ("schema=body", "schema"),
        ("schema=body:binary,more:string", "schema"),
        ("schema=data:binary", "schema"),
        ("kind=simple&maxelts=3", "maxelts"),
        ("kind=queue&granularity=3", "granularity"),
        ("colour=red", "unknown"),
    ],
)
def test_a_wrong_option_is_refused_with_a_valid_example_url(tmp_path, options, wrong):
    with pytest.raises(InvalidURLError, match=wrong) as raised:
        connect(f"dirq://{tmp_path}?{options}")
    assert "dirq:///var/spool/app/messages" in str(raised.value)


async def test_a_payload_that_is_no_text_is_refused_by_a_text_schema(tmp_path):
    async with connect(f"dirq://{tmp_path}/a?schema=body:string&fsync=false") as queue:
        with pytest.raises(InvalidJobError, match="UTF-8"):
            await queue.enqueue("work", b"\xff")
        job = await queue.enqueue("work", "größe".encode())
        assert [job.id] == [found.id for found in (await queue.read_state()).jobs]


async def test_a_schema_without_a_table_allows_no_headers(tmp_path):
    async with connect(f"dirq://{tmp_path}/a?schema=body:binary&fsync=false") as queue:
        assert not queue.capabilities.headers
        with pytest.raises(InvalidJobError, match="headers"):
            await queue.enqueue("work", b"payload", headers={"a": "b"})
