"""The small Cloud Storage server under Google's own client: its answers, and the results that the client returns."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.servers.gcs_server import CHUNK, GCSServer

pytest.importorskip("google.cloud.storage")
from google.api_core import exceptions as google
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import InvalidOperation
from google.cloud.storage import Blob, Bucket, Client

pytestmark = pytest.mark.wide

ONCE: dict[str, Any] = {"retry": None, "timeout": (5, 30)}
LARGE = 9 << 20  # above the 8 MiB from which the client uploads in several requests
NAME = "a folder/jöbs+%2F?.json"


class Clock:
    """A clock that stands still until it is moved."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def _client(server: GCSServer) -> Client:
    return Client(project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[GCSServer]:
    # Otherwise the client also requests the bucket in another thread, and retries for two minutes.
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    threads = threading.active_count()
    with GCSServer(clock) as server:
        server.create_bucket("bucket")
        yield server
    assert threads == threading.active_count()


@pytest.fixture
def bucket(store: GCSServer) -> Iterator[Bucket]:
    with _client(store) as client:
        yield client.bucket("bucket")


def _put(bucket: Bucket, content: bytes = b"content", name: str = NAME, **preconditions: int) -> int:
    """Upload and return the generation. Each call uses a new blob, because a blob requests the generation it knows."""
    blob = bucket.blob(name)
    blob.upload_from_string(content, **preconditions, **ONCE)
    return int(blob.generation)


def _get(bucket: Bucket, name: str = NAME, **preconditions: int) -> tuple[bytes, int]:
    blob = bucket.blob(name)
    return blob.download_as_bytes(**preconditions, **ONCE), int(blob.generation)


@pytest.mark.parametrize("content", [b"", b"\r\n--content\x00\r\n"])
def test_a_get_returns_the_content_and_its_generation(bucket, content):
    generation = _put(bucket, content)
    assert (content, generation) == _get(bucket)


def test_the_resource_describes_the_object(bucket):
    uploaded, reloaded = bucket.blob(NAME), bucket.blob(NAME)
    uploaded.upload_from_string(b"123456789", content_type="text/x-test", **ONCE)
    reloaded.reload(**ONCE)
    for blob in (uploaded, reloaded):
        assert (NAME, 9, 1, "text/x-test") == (blob.name, blob.size, blob.metageneration, blob.content_type)
        assert ("4waSgw==", "JfnnlDI7RTiF9RgfG2JNCw==") == (blob.crc32c, blob.md5_hash)
        assert Clock.now == blob.updated.timestamp() == blob.time_created.timestamp()
    assert uploaded.etag == reloaded.etag


def test_a_second_create_is_refused(bucket):
    generation = _put(bucket, b"first", if_generation_match=0)
    with pytest.raises(google.PreconditionFailed) as refused:
        _put(bucket, b"second", if_generation_match=0)
    assert "conditionNotMet" == refused.value.response.json()["error"]["errors"][0]["reason"]
    assert (b"first", generation) == _get(bucket)


def test_the_current_generation_can_be_replaced_and_a_stale_one_cannot(bucket):
    first = _put(bucket, b"same")
    second = _put(bucket, b"same", if_generation_match=first)
    assert second > first
    with pytest.raises(google.PreconditionFailed):
        _put(bucket, b"other", if_generation_match=first)
    assert (b"same", second) == _get(bucket)


def test_an_absent_object_matches_no_generation(bucket):
    with pytest.raises(google.PreconditionFailed):
        _put(bucket, if_generation_match=_put(bucket, name="another"))
    with pytest.raises(google.PreconditionFailed):
        _put(bucket, if_metageneration_match=1)


@pytest.mark.parametrize("read", [Blob.download_as_bytes, Blob.reload])
def test_a_known_generation_is_answered_with_304(bucket, read):
    generation = _put(bucket)
    with pytest.raises(google.NotModified) as refused:
        read(bucket.blob(NAME), if_generation_not_match=generation, **ONCE)
    assert b"" == refused.value.response.content
    read(bucket.blob(NAME), if_generation_not_match=generation - 1, **ONCE)


@pytest.mark.parametrize("call", [Blob.download_as_bytes, Blob.reload, Blob.delete])
def test_reads_and_deletions_check_preconditions(bucket, call):
    generation = _put(bucket)
    for wrong in ({"if_generation_match": generation - 1}, {"if_metageneration_match": 2}):
        with pytest.raises(google.PreconditionFailed):
            call(bucket.blob(NAME), **wrong, **ONCE)
    call(bucket.blob(NAME), if_generation_match=generation, if_metageneration_match=1, **ONCE)


@pytest.mark.parametrize("call", [Blob.download_as_bytes, Blob.reload, Blob.delete])
def test_an_absent_object_is_not_found_with_any_precondition(bucket, call):
    for precondition in ({}, {"if_generation_match": 1}, {"if_generation_not_match": 1}):
        with pytest.raises(google.NotFound, match="No such object: bucket/absent"):
            call(bucket.blob("absent"), **precondition, **ONCE)


def test_a_blob_with_a_generation_is_not_found_after_a_replacement(bucket):
    blob = bucket.blob(NAME)
    blob.upload_from_string(b"old", **ONCE)
    _put(bucket, b"new")
    with pytest.raises(google.NotFound):
        blob.download_as_bytes(**ONCE)


def test_a_deleted_object_is_absent_and_returns_with_a_higher_generation(bucket):
    generation = _put(bucket)
    bucket.blob(NAME).delete(if_generation_match=generation, **ONCE)
    with pytest.raises(google.NotFound):
        _get(bucket)
    assert _put(bucket, if_generation_match=0) > generation


def test_generations_rise_even_when_the_clock_is_set_back(bucket, clock):
    generations = [_put(bucket), _put(bucket)]
    clock.now -= 1000
    generations.append(_put(bucket))
    clock.now += 2000
    generations.append(_put(bucket))
    assert sorted(set(generations)) == generations
    assert clock.now * 1_000_000 == generations[-1]


@pytest.mark.parametrize(("start", "end", "part"), [(0, 0, b"0"), (2, 5, b"2345"), (7, None, b"789"), (8, 99, b"89")])
def test_a_range_of_an_object_can_be_read(bucket, start, end, part):
    _put(bucket, b"0123456789")
    assert part == bucket.blob(NAME).download_as_bytes(start=start, end=end, **ONCE)
    with pytest.raises(google.RequestRangeNotSatisfiable):
        bucket.blob(NAME).download_as_bytes(start=10, **ONCE)


@pytest.mark.parametrize(("chunk", "puts"), [(None, 1), (16 * CHUNK, 3)])
def test_a_large_upload_takes_several_requests(bucket, store, chunk, puts):
    content = bytes(range(256)) * (LARGE // 256)
    (blob := bucket.blob(NAME, chunk_size=chunk)).upload_from_string(content, if_generation_match=0, **ONCE)
    assert {("POST", "resumable"): 1, ("PUT", "resumable"): puts} == store.requests
    assert (content, blob.generation) == _get(bucket)


def test_a_large_upload_with_a_failed_precondition_is_refused_at_its_start(bucket, store):
    _put(bucket)
    with pytest.raises(google.PreconditionFailed):
        _put(bucket, bytes(LARGE), if_generation_match=0)
    assert 0 == store.requests["PUT", "resumable"]


def test_a_large_upload_overtaken_by_another_write_does_not_land(bucket):
    url = bucket.blob(NAME).create_resumable_upload_session(if_generation_match=0, **ONCE)
    generation = _put(bucket, b"first", if_generation_match=0)
    answer = bucket.client._http.put(url, b"second", headers={"Content-Range": "bytes 0-5/6"})
    assert (412, "conditionNotMet") == (answer.status_code, answer.json()["error"]["errors"][0]["reason"])
    assert (b"first", generation) == _get(bucket)


def test_a_resumable_upload_reports_its_progress(bucket):
    session = bucket.client._http
    url = bucket.blob(NAME).create_resumable_upload_session(**ONCE)

    def put(content: bytes, told: str) -> tuple[int, str | None]:
        answer = session.put(url, content, headers={"Content-Range": told}, allow_redirects=False)
        return answer.status_code, answer.headers.get("Range")

    content = bytes(CHUNK) + b"end"
    assert (308, None) == put(b"", "bytes */*")
    assert (308, f"bytes=0-{CHUNK - 1}") == put(content[:-2], f"bytes 0-{len(content) - 3}/*")
    assert (308, f"bytes=0-{CHUNK - 1}") == put(b"", f"bytes */{len(content)}")
    assert (400, None) == put(b"d", f"bytes {len(content) - 1}-{len(content) - 1}/{len(content)}")
    assert (200, None) == put(content[8:], f"bytes 8-{len(content) - 1}/{len(content)}")
    assert (200, None) == put(b"", "bytes */*")
    assert content == _get(bucket)[0]
    assert 404 == session.put(url + "0", b"", headers={"Content-Range": "bytes */*"}).status_code


def test_a_plain_upload_stores_its_content(bucket):
    url = f"{bucket.client.api_endpoint}/upload/storage/v1/b/bucket/o?uploadType=media&name=plain"
    answer = bucket.client._http.post(url, b"content", headers={"Content-Type": "text/x-test"})
    assert "text/x-test" == answer.json()["contentType"]
    assert (b"content", int(answer.json()["generation"])) == _get(bucket, "plain")
    assert 412 == bucket.client._http.post(f"{url}&ifGenerationMatch=0", b"again").status_code


def test_an_upload_with_a_wrong_checksum_is_refused(bucket):
    url = f"{bucket.client.api_endpoint}/upload/storage/v1/b/bucket/o?uploadType=media&name=wrong"
    answer = bucket.client._http.post(url, b"content", headers={"X-Goog-Hash": "crc32c=AAAAAA=="})
    assert (400, "invalid") == (answer.status_code, answer.json()["error"]["errors"][0]["reason"])
    with pytest.raises(google.NotFound):
        _get(bucket, "wrong")


def test_an_interrupted_upload_does_not_land(bucket, store):
    with socket.create_connection(("127.0.0.1", int(store.url.rpartition(":")[2]))) as connection:
        head = "POST /upload/storage/v1/b/bucket/o?name=half HTTP/1.1\r\nHost: test\r\nContent-Length: 8\r\n\r\n"
        connection.sendall(head.encode() + b"half")
        connection.shutdown(socket.SHUT_WR)
        assert b"" == connection.recv(1)
    with pytest.raises(google.NotFound):
        _get(bucket, "half")


def _increment(bucket: Bucket, times: int) -> None:
    while times:
        content, generation = _get(bucket, "counter")
        try:
            _put(bucket, b"%d" % (int(content) + 1), "counter", if_generation_match=generation)
            times -= 1
        except google.PreconditionFailed:
            time.sleep(random.uniform(0, 0.3))


def _for_20_clients(server: GCSServer, work: Callable[[Bucket], Any]) -> list[Any]:
    """The result of the work of each client."""

    def run(_: int) -> Any:
        with _client(server) as client:
            return work(client.bucket("bucket"))

    with ThreadPoolExecutor(20) as threads:
        return list(threads.map(run, range(20)))


def test_concurrent_increments_are_not_lost(bucket, store):
    _put(bucket, b"0", "counter")
    _for_20_clients(store, lambda own: _increment(own, 20))
    assert b"400" == _get(bucket, "counter")[0]
    assert store.requests["POST", "upload"] > 420, "the clients did not run at the same time"


def test_one_of_many_creators_wins(store):
    together = threading.Barrier(20, timeout=30)

    def create(own: Bucket) -> bool:
        together.wait()
        try:
            _put(own, if_generation_match=0)
        except google.PreconditionFailed:
            return False
        return True

    assert 1 == sum(_for_20_clients(store, create))


def test_writes_above_the_rate_limit_of_an_object_are_refused(bucket, store, clock):
    store.writes_per_second = 2.0
    _put(bucket, b"first")
    with pytest.raises(google.TooManyRequests) as refused:
        _put(bucket, b"second")
    assert "rateLimitExceeded" == refused.value.response.json()["error"]["errors"][0]["reason"]
    with pytest.raises(google.TooManyRequests):
        bucket.blob(NAME).delete(**ONCE)
    _put(bucket, name="another")
    assert b"first" == _get(bucket)[0]
    clock.now += 0.5
    _put(bucket, b"second")
    store.writes_per_second = None
    _put(bucket, b"third")


def test_a_refused_write_does_not_count_against_the_limit(bucket, store, clock):
    store.writes_per_second = 1.0
    generation = _put(bucket)
    clock.now += 1
    with pytest.raises(google.PreconditionFailed):
        _put(bucket, if_generation_match=generation - 1)
    _put(bucket, if_generation_match=generation)


def test_calls_on_a_missing_bucket_are_not_found(bucket):
    absent = bucket.client.bucket("absent")
    for call in (lambda: _put(absent), lambda: _get(absent), lambda: bucket.client.get_bucket("absent", **ONCE)):
        with pytest.raises(google.NotFound, match="The specified bucket does not exist"):
            call()
    assert not absent.exists(**ONCE)


def test_buckets_are_created_and_objects_listed(bucket):
    made = bucket.client.create_bucket("made", **ONCE)
    with pytest.raises(google.Conflict):
        bucket.client.create_bucket("made", **ONCE)
    assert made.exists(**ONCE)
    for name in ("b/2", "a/1", "b/1"):
        _put(made, name=name)
    assert ["a/1", "b/1", "b/2"] == [blob.name for blob in bucket.client.list_blobs("made", **ONCE)]
    assert ["b/1", "b/2"] == [blob.name for blob in bucket.client.list_blobs("made", prefix="b/", **ONCE)]
    in_pages = bucket.client.list_blobs("made", page_size=2, **ONCE)
    assert [["a/1", "b/1"], ["b/2"]] == [[blob.name for blob in page] for page in in_pages.pages]


def test_calls_on_a_forbidden_bucket_are_refused(bucket, store):
    _put(bucket)
    store.forbid("bucket")
    for call, permission in (
        (lambda: _put(bucket), "objects.create"),
        (lambda: _put(bucket, bytes(LARGE)), "objects.create"),
        (lambda: _get(bucket), "objects.get"),
        (lambda: bucket.blob(NAME).delete(**ONCE), "objects.delete"),
        (lambda: bucket.reload(**ONCE), "buckets.get"),
    ):
        with pytest.raises(google.Forbidden, match=f"does not have storage.{permission} access"):
            call()
    store.forbid("bucket", 401)
    with pytest.raises(InvalidOperation, match="Anonymous credentials cannot be refreshed"):
        _get(bucket)
    store.forbid("bucket", None)
    assert b"content" == _get(bucket)[0]


def test_every_answer_has_the_date(bucket, clock):
    clock.now += 3600
    dates: list[str] = []
    bucket.client._http.hooks["response"].append(lambda answer, **_: dates.append(answer.headers["Date"]))
    generation = _put(bucket)
    with pytest.raises(google.PreconditionFailed):
        _put(bucket, if_generation_match=0)
    with pytest.raises(google.NotModified):
        _get(bucket, if_generation_not_match=generation)
    with pytest.raises(google.NotFound):
        _get(bucket, "absent")
    assert [clock.now] * 4 == [parsedate_to_datetime(date).timestamp() for date in dates]


def test_requests_are_counted(bucket, store):
    _put(bucket)
    _get(bucket)
    bucket.blob(NAME).reload(**ONCE)
    bucket.blob(NAME).delete(**ONCE)
    with pytest.raises(google.NotFound):
        _get(bucket)
    counted = {("POST", "upload"): 1, ("GET", "download"): 2, ("GET", "metadata"): 1, ("DELETE", "delete"): 1}
    assert counted == store.requests
    store.reset()
    with pytest.raises(google.NotFound, match="bucket"):
        _put(bucket)
    assert {("POST", "upload"): 1} == store.requests


def test_unknown_parameters_and_headers_are_refused(bucket):
    with pytest.raises(google.BadRequest, match="startOffset"):
        list(bucket.list_blobs(start_offset="b", **ONCE))
    _put(bucket)
    with pytest.raises(google.BadRequest, match="if-match"):
        bucket.blob(NAME).download_as_bytes(if_etag_match="etag", **ONCE)


def test_a_restarted_server_keeps_its_port_and_its_objects(bucket, store):
    generation, url = _put(bucket), store.url
    store.stop()
    with pytest.raises(OSError, match="refused"):
        _get(bucket)
    store.start()
    assert url == store.url
    assert (b"content", generation) == _get(bucket)
