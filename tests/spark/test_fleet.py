"""Lists and wildcards name several queues, in files and in an object store."""

import asyncio
from urllib.parse import quote

import pytest

pytest.importorskip("pyspark")

from jqueue import DirectQueue, connect
from jqueue.domain.errors import InvalidURLError
from jqueue.spark.fleet import addresses_of, find_all, is_fleet, name_of, queues_of, release_all, split
from tests.object_stores import BUCKET


def put(url, content=b"{}"):
    async def write():
        async with DirectQueue(connect(url, create=True)) as queue:
            await queue.storage.write(content, None)

    asyncio.run(write())


@pytest.fixture
def folder(tmp_path):
    """A folder with queues, their sidecars, and other files."""
    for name in ("a.json", "b.json", "deep/c.json", "deep/er/d.json", "e.txt", ".hidden.json", "x [1], *.json"):
        put(tmp_path / name)
    for name in ("a.json.staged-1-2", ".b.json.token.tmp", "f.json.lock", "jqueue-1.bad-rows-2-3.json"):
        (tmp_path / name).touch()
    (tmp_path / "folder.json").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("options", "addresses"),
    [
        ({"path": "queue.json"}, ["queue.json"]),
        ({"path": "a.json, b.json"}, ["a.json", "b.json"]),
        ({"paths": '["a.json", "b.json,c.json"]'}, ["a.json", "b.json", "c.json"]),
        ({"Path": "s3://b/a%2Cb.json"}, ["s3://b/a%2Cb.json"]),
    ],
)
def test_options_name_one_or_several_queues(options, addresses):
    assert addresses == addresses_of(options)


@pytest.mark.parametrize("path", ["a.json,", ",", "a.json,,b.json"])
def test_a_comma_without_a_url_beside_it_is_refused(path):
    with pytest.raises(InvalidURLError, match="%2C"):
        split(path)


@pytest.mark.parametrize(
    ("path", "several"),
    [
        ("queue.json", False),
        ("s3://bucket/queue.json?endpoint_url=http://127.0.0.1:9000", False),
        ("file:///a%2A.json", False),
        ("queue?.json", True),
        ("queue[12].json", True),
        ("file:///queues/*.json", True),
        ("az://account@container/queues/*.json?sas_token=se%3D1", True),
        ("a.json,b.json", True),
    ],
)
def test_a_fleet_is_recognised_without_access_to_a_store(path, several):
    assert several == is_fleet({"path": path})


PATTERNS = {
    "*.json": ["a.json", "b.json", "x [1], *.json"],
    "?.json": ["a.json", "b.json"],
    "[!a].json": ["b.json"],
    "**/*.json": ["a.json", "b.json", "deep/c.json", "deep/er/d.json", "x [1], *.json"],
    "deep/*/d.json": ["deep/er/d.json"],
    "*": ["a.json", "b.json", "e.txt", "x [1], *.json"],
    ".h*.json": [".hidden.json"],
    "x [[]1]? [*].json": ["x [1], *.json"],
}


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_wildcards_match_names_of_files(folder, pattern, scheme):
    if scheme:
        pattern = pattern.replace("?", "[!.]")  # a ? begins the options of a URL
    urls = queues_of(f"{scheme}{folder}/{pattern}")
    expected = PATTERNS[pattern.replace("[!.]", "?")]
    assert expected == sorted(name_of(connect(url)).removeprefix(f"{folder}/") for url in urls)


def test_the_urls_of_a_fleet_can_be_used_one_by_one(folder):
    urls = queues_of(f"{folder}/*.json")
    assert urls == [url for each in urls for url in queues_of(each)] == queues_of(",".join(urls))


def test_options_of_a_url_with_wildcards_apply_to_all_queues(folder):
    urls = queues_of(f"file://{folder}/[ab].json?lock_timeout=3")
    assert [f"file://{folder}/{name}.json?lock_timeout=3" for name in "ab"] == urls


def test_a_queue_named_twice_is_listed_once(folder):
    assert [str(folder / "b.json"), str(folder / "a.json")] == queues_of(f"{folder}/b.json,{folder}/[ab].json")


@pytest.mark.parametrize("path", ["{0}/none*.json", "file://{0}/none*.json", "{0}/a.json,{0}/none*.json"])
def test_wildcards_without_a_match_are_an_error(folder, path):
    with pytest.raises(InvalidURLError, match="no queue matches"):
        queues_of(path.format(folder))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("file://queues/*.json", "three belong"),
        ("s3://bucket/*.json", "two characters"),
        ("s3://bucket/q*.json", "two characters"),
        ("s4://bucket/queues/*.json", "the scheme of this URL is unknown"),
        ("memory://name/queues/*", "no queue matches"),
    ],
)
def test_a_wrong_url_of_a_fleet_gives_a_one_line_error(path, words):
    with pytest.raises(InvalidURLError, match=words) as caught:
        queues_of(path)
    assert "\n" not in str(caught.value)


async def test_queues_can_be_found_inside_a_running_event_loop(folder):
    assert [str(folder / "a.json")] == queues_of(f"{folder}/a*.json")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://id:a%20secret@bucket/queue.json?endpoint_url=http://127.0.0.1:1", "s3://bucket/queue.json"),
        ("/tmp/a\x07b", "/tmp/a\\x07b"),
        ("file:///tmp/q%FFueue.json", "/tmp/q\\udcffueue.json"),
    ],
)
def test_the_name_of_a_queue_is_printable_and_has_no_secrets(url, name):
    assert name == name_of(connect(url))


NAMES = ("a.json", "b.json", "deep/c.json", ".hidden.json", "x [1], *.json", "a.json.staged-1-2", "a.json.lock")
KEYS = (*(f"queues/{name}" for name in NAMES), "q2.json")


@pytest.fixture
def bucket(seaweedfs):
    """The beginning and the end of a URL in a bucket with some queues and their sidecars."""
    begin = f"s3://{seaweedfs.access_key}:{quote(seaweedfs.secret_key)}@{seaweedfs.bucket}/fleet/"
    end = f"?endpoint_url={seaweedfs.endpoint_url}&region_name={seaweedfs.region}"
    if not hasattr(seaweedfs, "fleet"):
        for key in KEYS:
            put(f"{begin}{quote(key)}{end}")
        seaweedfs.fleet = True
    return begin, end


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("queues/*.json", ["queues/a.json", "queues/b.json", "queues/x [1], *.json"]),
        ("queues/[ab].json", ["queues/a.json", "queues/b.json"]),
        ("queues/a*", ["queues/a.json"]),
        ("queues/*", ["queues/a.json", "queues/b.json", "queues/x [1], *.json"]),
        ("queues/**/*.json", ["queues/a.json", "queues/b.json", "queues/deep/c.json", "queues/x [1], *.json"]),
        ("*/*/c.json", ["queues/deep/c.json"]),
        ("q*.json", ["q2.json"]),
        ("queues/x%20%5B1%5D%2C%20%2A.j*", ["queues/x [1], *.json"]),
        ("queues/.h*", ["queues/.hidden.json"]),
    ],
)
def test_wildcards_match_keys_of_a_bucket(bucket, pattern, names):
    begin, end = bucket
    urls = queues_of(f"{begin}{pattern}{end}")
    assert names == [name_of(connect(url)).removeprefix(f"s3://{BUCKET}/fleet/") for url in urls]
    assert urls == queues_of(",".join(urls))


async def test_the_queues_of_a_pattern_share_one_client(bucket):
    begin, end = bucket
    members = await find_all([f"{begin}queues/*.json{end}"])
    try:
        assert [b"{}"] * 3 == [(await member.storage.read())[0] for member in members]
        assert 1 == len({vars(member.storage)["_client"] for member in members})
    finally:
        await release_all(members)
