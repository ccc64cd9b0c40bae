"""A URL becomes the right storage, or one error that names the mistake and shows a valid URL."""

import asyncio
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
import threading

import pytest

import jqueue
from jqueue import (
    AzureBlobStorage,
    BrokerQueue,
    DirectQueue,
    GCSStorage,
    InMemoryStorage,
    JQueueError,
    LocalFileSystemStorage,
    ObjectStoragePort,
    S3Storage,
    connect,
)
from jqueue.domain.errors import InvalidURLError

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sys.modules["jqueue.connect"].EXAMPLES
SECRET = "xYzZy4711"
NOBODY = "http://127.0.0.1:1"
"""No server listens on its port."""


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch, tmp_path):
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    config = tmp_path / "aws"
    config.write_text("[profile here]\naws_access_key_id = a\naws_secret_access_key = b\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def often_interrupted():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


# Right URLs


@pytest.mark.parametrize("url", EXAMPLES.values())
async def test_every_example_url_in_an_error_is_valid(url):
    await getattr(connect(url, create=True), "release", lambda: asyncio.sleep(0))()


@pytest.mark.parametrize(
    ("url", "bucket", "name"),
    [
        ("s3://bucket/queue.json", "bucket", "queue.json"),
        ("S3://bucket/folder/queue.json", "bucket", "folder/queue.json"),
        ("s3://Bucket_1.x-y/a%20b%3F%23%2Bc+d", "Bucket_1.x-y", "a b?#+c+d"),
        ("s3://bucket//begins-with-a-slash", "bucket", "/begins-with-a-slash"),
        ("s3://bucket/käse/队列#1", "bucket", "käse/队列#1"),
        ("s3://bucket/k%C3%A4se?", "bucket", "käse"),
        ("s3://bucket/user@example.org:1", "bucket", "user@example.org:1"),
        ("s3://id:key@bucket/a", "bucket", "a"),
    ],
)
def test_a_url_of_s3_names_bucket_and_key(url, bucket, name):
    storage = connect(url)
    assert isinstance(storage, S3Storage)
    assert (bucket, name) == (storage.bucket, storage.key)


def test_options_of_s3_are_converted():
    storage = connect(
        "s3://bucket/key?endpoint_url=https://[::1]:9000/base&region_name=eu-central-1&addressing_style=path"
        "&server_side_encryption=aws:kms&sse_kms_key_id=arn:aws:kms:eu:1:key/2&storage_class=EXPRESS_ONEZONE&timeout=2.5"
        "&etag_style=unquoted"
    )
    assert isinstance(storage, S3Storage)
    assert "https://[::1]:9000/base" == storage.endpoint_url
    assert ("eu-central-1", "path", "EXPRESS_ONEZONE") == (
        storage.region_name,
        storage.addressing_style,
        storage.storage_class,
    )
    assert ("aws:kms", "arn:aws:kms:eu:1:key/2") == (storage.server_side_encryption, storage.sse_kms_key_id)
    assert (2.5, "unquoted") == (storage.timeout, storage.etag_style)


async def test_credentials_of_s3_come_from_the_url_or_a_profile():
    for url, expected in [
        ("s3://id:a%2Fb%40+c:d@bucket/key", ("id", "a/b@+c:d")),
        ("s3://i%2Fd:@[#\ufdfa@bucket/key", ("i/d", "@[#\ufdfa")),
        ("s3://bucket/key?profile_name=here", ("a", "b")),
    ]:
        storage = connect(url)
        assert isinstance(storage, S3Storage)
        found = await (await storage.open_session().get_credentials()).get_frozen_credentials()
        assert expected == (found.access_key, found.secret_key)
    plain = connect("s3://bucket/key")
    assert isinstance(plain, S3Storage)
    assert plain.session is None, "the source of credentials is decided at their use"


def test_a_url_of_google_names_bucket_and_object():
    storage = connect(f"gs://bucket/a%20b?endpoint_url={NOBODY}&project=mine&kms_key_name=projects/p/key&timeout=1e1")
    assert isinstance(storage, GCSStorage)
    assert ("bucket", "a b", NOBODY) == (storage.bucket_name, storage.blob_name, storage.endpoint_url)
    assert ("mine", "projects/p/key", 10.0) == (storage.project, storage.kms_key_name, storage.timeout)


@pytest.mark.parametrize(
    ("url", "account_url", "credential"),
    [
        ("az://account@box/a", "https://account.blob.core.windows.net", None),
        ("az://account:a%2Fb+c==@box/a", "https://account.blob.core.windows.net", "a/b+c=="),
        ("az://account@box/a?account_key=b+/c==", "https://account.blob.core.windows.net", "b+/c=="),
        (f"az://box/a?account_url={NOBODY}/acc&sas_token=sv%3D1%26sig%3D%252B", f"{NOBODY}/acc", "sv=1&sig=%2B"),
        (f"az://devstore:key@box/a?account_url={NOBODY}/dev", f"{NOBODY}/dev", "key"),
    ],
)
def test_a_url_of_azure_names_account_container_and_blob(url, account_url, credential):
    storage = connect(url)
    assert isinstance(storage, AzureBlobStorage)
    assert ("box", "a") == (storage.container, storage.blob_name)
    assert (account_url, credential) == (storage.account_url, storage._credential)


def test_the_account_of_azure_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=a;AccountKey={SECRET}")
    storage = connect("az://box/a?timeout=3&encryption_scope=mine&standard_blob_tier=Hot")
    assert isinstance(storage, AzureBlobStorage)
    assert (3.0, "mine", "Hot") == (storage.timeout, storage.encryption_scope, storage.standard_blob_tier)


PATHS = [
    "queue.json", "./queue.json", "../queue.json", "a folder/my queue.json", "what?.json", "queue.json?timeout=5",
    "queue#1.json", "100%.json", "%41", "~/queue.json", "~", "C:\\queues\\queue.json", "C:/queue.json", "c:queue.json",
    "./jobs:today.json", "12:30.json", "-", " ", "käse", "\udcff", "a/../b", "//host/share", "s3", "memory", "a" * 300,
]  # fmt: skip


@pytest.mark.parametrize("path", [path for path in PATHS if path.strip()])
@pytest.mark.parametrize("kind", [str, pathlib.Path, pathlib.PurePosixPath])
def test_a_bare_path_is_used_unchanged(path, kind):
    storage = connect(kind(path), create=True)
    assert isinstance(storage, LocalFileSystemStorage)
    assert pathlib.Path(path) == storage.path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///var/queue.json", "/var/queue.json"),
        ("FILE://localhost/a%20b%3F", "/a b?"),
        ("file:///a b#c", "/a b#c"),
        ("file:///%ff%C3%A4", os.fsdecode(b"/\xff\xc3\xa4")),
        ("file:////a", "//a"),
    ],
)
def test_a_url_of_a_file_names_an_absolute_path(url, path):
    storage = connect(url)
    assert isinstance(storage, LocalFileSystemStorage)
    assert pathlib.Path(path) == storage.path


async def test_a_file_may_be_used_through_its_url(tmp_path):
    storage = connect(f"file://{tmp_path}/queue%201.json?lock_timeout=0.5")
    await storage.write(b"content")
    assert b"content" == (tmp_path / "queue 1.json").read_bytes()


def test_memory_is_shared_by_name_while_it_is_in_use():
    named = connect("memory://queue")
    assert isinstance(named, InMemoryStorage)
    assert named is connect("memory://queue")
    assert named is connect("MEMORY://queue/")
    assert named is not connect("memory://queue/2")
    assert named is not connect("memory://")
    assert connect("memory://") is not connect("memory:///")


def test_threads_that_open_the_same_memory_url_share_one_storage(often_interrupted):
    for number in range(50):
        barrier = threading.Barrier(4)
        found: list[ObjectStoragePort] = []

        def find(name=f"memory://{number}", barrier=barrier, found=found):
            barrier.wait()
            found.append(connect(name))

        threads = [threading.Thread(target=find) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 == len({id(storage) for storage in found})


async def test_a_queue_is_made_of_a_url_its_class_and_settings():
    async with connect("memory://", BrokerQueue, stale_timeout=7) as queue:
        await queue.enqueue("a", b"")
        [job] = await queue.dequeue()
        assert 7 == job.claim_timeout
    assert isinstance(connect("memory://", DirectQueue), DirectQueue)


def test_settings_without_a_queue_are_refused():
    with pytest.raises(TypeError, match=r"stale_timeout only with the class of a queue: connect\(url, kind\)"):
        connect("memory://", stale_timeout=7)


@pytest.mark.parametrize("what", [None, 7, b"queue.json", ["memory://"]])
def test_an_argument_that_is_neither_text_nor_a_path_is_a_type_error(what):
    with pytest.raises(TypeError):
        connect(what)


# Wrong URLs

WRONG = [
    ("", "is empty"),
    (" \t", "is empty"),
    (".", "names no file"),
    ("/", "names no file"),
    ("..", "names no file"),
    ("folder/", "names no file"),
    ("a\0b", "names no file"),
    ("\ud800", "names no file"),
    (" s3://bucket/key", "does not begin with its scheme"),
    ('"s3://bucket/key"', "does not begin with its scheme"),
    ("url=s3://bucket/key", "does not begin with its scheme"),
    ("sftp://host/key", "the scheme of this URL is unknown"),
    ("https://bucket.s3.amazonaws.com/key", "the scheme of this URL is unknown"),
    ("jobs:today.json", r"a path \(./a:b"),
    ("gcs://bucket/key", "no store is called gcs: try gs://bucket/"),
    ("azure://box/blob", "no store is called azure: try az://"),
    ("s3a://bucket/key", "no store is called s3a: try s3://"),
    ("s3:bucket/key", "has no // after"),
    ("memory:", "has no // after"),
    ("file:/queue.json", "has no // after"),
    ("s3://", "names no bucket"),
    ("s3:///key", "names no bucket"),
    ("gs://bucket", "no object in it"),
    ("gs://bucket/", "no object in it"),
    ("s3://bucket/folder/", "no object in it"),
    ("s3://bu cket/key", "a name that no bucket can have"),
    ("s3://[::1]/key", "has a colon in the name of its bucket"),
    ("az://@box/key", "lacks a name or a secret before its @"),
    ("az://-/key", "a name that no container can have"),
    ("s3://localhost:9000/bucket/key", "give an endpoint as an option"),
    ("s3://bucket/key\n", "a line break"),
    ("s3://bucket/key ", "a line break or another character"),
    ("s3://bucket/k\rey", "a line break"),
    ("s3://bucket/%ff", "not UTF-8"),
    ("s3://bucket/key?region_name=%ff", "not UTF-8"),
    ("s3://%ff:a@bucket/key", "not UTF-8"),
    ("s3://bucket/key?region=eu", "unknown option .known: endpoint_url, region_name, .* as %26"),
    ("memory://?a=b", "unknown option .known: none"),
    ("s3://bucket/key?region_name", "an option without a value"),
    ("s3://bucket/key?region_name=", "an option without a value"),
    ("s3://bucket/key?timeout=1&", "an option without a value"),
    ("s3://bucket/key?timeout=1&timeout=2", "an option twice"),
    ("s3://bucket/key?timeout=soon", "a wrong value for timeout, which takes a number of seconds above 0"),
    ("s3://bucket/key?timeout=0", "a wrong value for timeout"),
    ("s3://bucket/key?timeout=nan", "a wrong value for timeout"),
    ("s3://bucket/key?timeout=1e300", "a wrong value for timeout"),
    ("s3://bucket/key?addressing_style=vhost", "takes path, virtual or auto"),
    ("s3://bucket/key?etag_style=bare", "takes quoted or unquoted"),
    ("s3://bucket/key?region_name=eu/../x", "takes the name of a region"),
    ("s3://bucket/key?storage_class=a%0d%0ab", "takes printable text"),
    ("s3://bucket/key?profile_name=absent", "a profile that is not in the AWS configuration"),
    ("s3://id:key@bucket/key?profile_name=here", "both a key and a profile_name"),
    ("s3://id@bucket/key", "half of a key"),
    ("s3://:key@bucket/key", "lacks a name or a secret"),
    ("s3://id:@bucket/key", "lacks a name or a secret"),
    ("gs://user@bucket/key", "names a user"),
    ("memory://user@name", "names a user"),
    ("file://user@localhost/key", "names a user"),
    *[
        (f"gs://bucket/key?endpoint_url={url}", "wrong value for endpoint_url, which takes the URL of an http")
        for url in [
            "localhost:9000", "ftp://host", "http://", "http://user:key@host", "http://host?a=b", "http://host#a",
            "http://a b", "http://host:port", "http://host:99999", "http://[::1", "http://host%0a", "http://hößt",
        ]
    ],
    ("az://box/blob", "names no account, and AZURE_STORAGE_CONNECTION_STRING is not set"),
    ("az://Not.An.Account@box/blob", "no account can have"),
    ("az://evil.example%2F@box/blob", "no account can have"),
    ("az://box/blob?account_key=a", "a key or token, but names no account"),
    ("az://account:a@box/blob?account_key=a", "more than one key or token"),
    ("az://account@box/blob?account_key=a&sas_token=b", "more than one key or token"),
    (f"az://box/blob?account_url={NOBODY}/?sv=1", "wrong value for account_url"),
    ("file://queue.json", "two slashes where three belong"),
    ("file://~/queue.json", "two slashes where three belong"),
    ("file:///", "names no file"),
    ("file:///folder/", "names no file"),
    ("file:///a%00b", "names no file"),
    ("file:///queue.json?lock_timeout=-1", "wrong value for lock_timeout"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "wrong"), WRONG)
def test_the_error_for_a_wrong_url_names_the_mistake_and_shows_a_valid_url(url, wrong):
    with pytest.raises(InvalidURLError, match=wrong) as raised:
        connect(url)
    assert any(right in str(raised.value) for right in EXAMPLES.values())
    assert "\n" not in str(raised.value)
    assert (None, None) == (raised.value.__cause__, raised.value.__context__)


def test_an_invalid_url_error_is_a_jqueue_error_and_a_value_error():
    assert issubclass(InvalidURLError, JQueueError)
    assert issubclass(InvalidURLError, ValueError)


# Imports

MISSING = [
    ("s3://bucket/key", "S3Storage", "aiobotocore", 'pip install "jqueue[s3]"'),
    ("gs://bucket/key", "GCSStorage", "google.cloud", 'pip install "jqueue[gcs]"'),
    ("az://account@box/key", "AzureBlobStorage", "azure.storage.blob.aio", 'pip install "jqueue[azure]"'),
]


def in_a_new_process(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.wide
@pytest.mark.parametrize(("url", "storage", "module", "advice"), MISSING)
def test_a_client_that_is_not_installed_is_named_with_the_command_that_installs_it(url, storage, module, advice):
    code = f"""
import sys
sys.modules[{module!r}] = None
import jqueue
for get in (lambda: jqueue.connect({url!r}), lambda: jqueue.{storage}, lambda: exec("from jqueue import {storage}")):
    try:
        get()
    except ImportError as error:
        print(error)
"""
    lines = in_a_new_process(code).splitlines()
    assert 3 == len(lines)
    assert all(line.startswith(f"{storage} needs ") and line.endswith(advice) for line in lines)


def test_no_client_is_imported_before_its_storage_is_asked_for():
    code = """
import sys
import jqueue
assert "S3Storage" not in jqueue.__all__, "an import of all would need every extra"
exec("from jqueue import *")
for url in ("memory://", "queue.json", "file:///queue.json"):
    jqueue.connect(url)
clients = {"aiobotocore", "botocore", "aiohttp", "requests", "google.auth", "google.cloud", "azure"}
print(sorted(clients & set(sys.modules)))
from jqueue import S3Storage
print(sorted(clients & set(sys.modules)))
"""
    assert ["[]", "['aiobotocore', 'aiohttp', 'botocore']"] == in_a_new_process(code).splitlines()


def test_jqueue_connect_stays_the_function_after_its_module_is_imported():
    module = importlib.import_module("jqueue.connect")
    assert inspect.ismodule(module)
    assert jqueue.connect is module.connect
    assert jqueue.connect is connect
    assert module is sys.modules["jqueue.connect"]
    code = """
import jqueue.connect
from jqueue.connect import EXAMPLES, connect
import jqueue.connect as connect_too
assert connect is jqueue.connect is connect_too
print(jqueue.connect("memory://"))
"""
    assert "InMemoryStorage()\n" == in_a_new_process(code)


def test_an_unknown_name_of_jqueue_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'jqueue' has no attribute 'RedisStorage'"):
        jqueue.RedisStorage  # noqa: B018


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("RangeFailure", "jqueue.operations"),
        ("RunReport", "jqueue.worker"),
        ("KeepAlive", "jqueue.sync"),
        ("StorageFatalError", "jqueue.domain.errors"),
        ("Schedule", "jqueue.domain.rules"),
        ("StoreQueue", "jqueue.formats.queue"),
    ],
)
def test_the_error_for_a_rarer_name_says_where_to_import_it(name, module):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': use `from {module} import {name}`$"):
        getattr(jqueue, name)
