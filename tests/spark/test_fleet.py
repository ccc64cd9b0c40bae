"""Lists and wildcards name several queues, in files and in an object store."""

import asyncio
from contextlib import suppress
from urllib.parse import quote

import pytest

from jqueue import open_storage
from jqueue.domain.errors import CASConflictError, InvalidURLError
from jqueue.ports.storage import describe
from jqueue.spark.fleet import find_all, release_all, split
from tests.object_stores import BUCKET

FILES = ("a.json", "b.json", "deep/c.json", "deep/er/d.json", "e.txt", ".hidden.json", "x [1], *.json")
NO_QUEUES = ("a.json.staged-1-2", ".b.json.token.tmp", "f.json.lock")


def put(url):
    async def write():
        storage = open_storage(url, create=True)
        with suppress(CASConflictError):  # another case has put it there
            await storage.write(b"{}", None)
        if hasattr(storage, "release"):
            await storage.release()

    asyncio.run(write())


def queues_of(path):
    """Return the URLs of all queues that a path names."""

    async def urls():
        queues = await find_all(split(path))
        await release_all(queues)
        return [queue.url for queue in queues]

    return asyncio.run(urls())


@pytest.fixture
def folder(tmp_path):
    """A folder with queues, the files beside them, and other files."""
    for name in FILES:
        put(str(tmp_path / name))
    for name in NO_QUEUES:
        (tmp_path / name).touch()
    (tmp_path / "folder.json").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.json", ["a.json", "b.json", "x [1], *.json"]),
        ("**/*.json", ["a.json", "b.json", "deep/c.json", "deep/er/d.json", "x [1], *.json"]),
        ("*", ["a.json", "b.json", "e.txt", "x [1], *.json"]),
        ("x [[]1]? [*].json", ["x [1], *.json"]),
    ],
)
def test_wildcards_match_names_of_files(folder, pattern, names):
    urls = queues_of(f"{folder}/{pattern}")
    assert names == sorted(describe(open_storage(url)).removeprefix(f"{folder}/") for url in urls)
    assert urls == [url for each in urls for url in queues_of(each)] == queues_of(",".join(urls))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("fleet/queues/**/*.json", ["a.json", "b.json", "deep/c.json", "x [1], *.json"]),
        ("fleet/queues/x%20%5B1%5D%2C%20%2A.j*", ["x [1], *.json"]),
        ("*/queues/[ab].json", ["a.json", "b.json"]),
    ],
)
def test_wildcards_match_keys_of_a_bucket(seaweedfs, pattern, names):
    bucket = f"s3://{seaweedfs.access_key}:{quote(seaweedfs.secret_key)}@{seaweedfs.bucket}/"
    end = f"?endpoint_url={seaweedfs.endpoint_url}&region_name={seaweedfs.region}"
    for name in ("a.json", "b.json", "deep/c.json", ".hidden.json", "x [1], *.json", "a.json.staged-1-2"):
        put(f"{bucket}fleet/queues/{quote(name)}{end}")
    urls = queues_of(f"{bucket}{pattern}{end}")
    assert names == [describe(open_storage(url)).removeprefix(f"s3://{BUCKET}/fleet/queues/") for url in urls]


def test_options_of_a_url_apply_to_all_queues_and_one_named_twice_is_listed_once(folder):
    urls = queues_of(f"file://{folder}/[ab].json?lock_timeout=3")
    assert [f"file://{folder}/{name}.json?lock_timeout=3" for name in "ab"] == urls
    assert [str(folder / "b.json"), str(folder / "a.json")] == queues_of(f"{folder}/b.json,{folder}/[ab].json")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{0}/a.json,{0}/none*.json", "no queue matches"),
        ("a.json,,b.json", "%2C"),
    ],
)
def test_a_wrong_list_or_pattern_is_refused_in_one_line(folder, path, words):
    with pytest.raises(InvalidURLError, match=words) as caught:
        queues_of(path.format(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://id:a%20secret@bucket/queue.json?endpoint_url=http://127.0.0.1:1", "s3://bucket/queue.json"),
        ("/tmp/a\x07b", "/tmp/a\\x07b"),
    ],
)
def test_the_name_of_a_queue_is_printable_and_has_no_secret(url, name):
    assert name == describe(open_storage(url))
