"""A URL becomes the right storage, or one error that names the mistake, shows a valid URL, and keeps its secrets."""

import logging
import os
import pathlib
import pickle
import subprocess
import sys
import traceback
from typing import Any, assert_type

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jqueue
from jqueue import (
    AzureBlobStorage,
    BrokerQueue,
    DirectQueue,
    GCSStorage,
    InMemoryStorage,
    LocalFileSystemStorage,
    S3Storage,
    StorageError,
    connect,
    open_storage,
)
from jqueue.domain.errors import InvalidJobError, InvalidURLError, MissingFolderError
from jqueue.formats.queue import StoreQueue

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


# Right URLs


@pytest.mark.parametrize(
    ("url", "bucket", "name"),
    [
        ("s3://bucket/queue.json", "bucket", "queue.json"),
        ("S3://id:key@bucket/folder/queue.json", "bucket", "folder/queue.json"),
        ("s3://Bucket_1.x-y/a%20b%3F%23%2Bc+d", "Bucket_1.x-y", "a b?#+c+d"),
        ("s3://bucket//begins-with-a-slash", "bucket", "/begins-with-a-slash"),
        ("s3://bucket/käse/队列#1", "bucket", "käse/队列#1"),
        ("s3://bucket/k%C3%A4se?", "bucket", "käse"),
        ("s3://bucket/user@example.org:1", "bucket", "user@example.org:1"),
    ],
)
def test_a_url_of_s3_names_bucket_and_key(url, bucket, name):
    storage = open_storage(url)
    assert isinstance(storage, S3Storage)
    assert (bucket, name) == (storage.bucket, storage.key)


def test_options_of_s3_are_converted():
    options = {
        **{"endpoint_url": "https://[::1]:9000/base", "region_name": "eu-central-1", "addressing_style": "path"},
        **{"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn:aws:kms:eu:1:key/2", "etag_style": "unquoted"},
        **{"storage_class": "EXPRESS_ONEZONE", "timeout": 2.5},
    }
    storage = open_storage(f"s3://bucket/key?{'&'.join(f'{name}={value}' for name, value in options.items())}")
    assert options == {name: getattr(storage, name) for name in options}


async def test_credentials_of_s3_come_from_the_url_or_a_profile():
    for url, expected in [
        ("s3://id:a%2Fb%40+c:d@bucket/key", ("id", "a/b@+c:d")),
        ("s3://i%2Fd:@[#\ufdfa@bucket/key", ("i/d", "@[#\ufdfa")),
        ("s3://bucket/key?profile_name=here", ("a", "b")),
    ]:
        storage = open_storage(url)
        assert isinstance(storage, S3Storage)
        found = await (await storage.open_session().get_credentials()).get_frozen_credentials()
        assert expected == (found.access_key, found.secret_key)
    plain = open_storage("s3://bucket/key")
    assert isinstance(plain, S3Storage)
    assert plain.session is None, "the source of credentials is decided at their use"


def test_a_url_of_google_names_bucket_and_object():
    storage = open_storage(
        f"gs://bucket/a%20b?endpoint_url={NOBODY}&project=mine&kms_key_name=projects/p/key&timeout=1e1"
    )
    assert isinstance(storage, GCSStorage)
    assert ("bucket", "a b", NOBODY) == (storage.bucket_name, storage.blob_name, storage.endpoint_url)
    assert ("mine", "projects/p/key", 10.0) == (storage.project, storage.kms_key_name, storage.timeout)


@pytest.mark.parametrize(
    ("url", "account_url"),
    [
        ("az://account:a%2Fb+c==@box/a", "https://account.blob.core.windows.net"),
        ("az://account@box/a?account_key=b+/c==", "https://account.blob.core.windows.net"),
        (f"az://box/a?account_url={NOBODY}/acc&sas_token=sv%3D1%26sig%3D%252B", f"{NOBODY}/acc"),
    ],
)
def test_a_url_of_azure_names_account_container_and_blob(url, account_url):
    storage = open_storage(url)
    assert isinstance(storage, AzureBlobStorage)
    assert ("box", "a", account_url) == (storage.container, storage.blob_name, storage.account_url)


PATHS = ["queue.json", "../queue.json", "a folder/q.json", "q.json?timeout=5", "q#1", "%41", "~/q.json", "C:\\q.json",
         "C:/q.json", "./jobs:today.json", "12:30.json", "\udcff", "//host/share", "s3"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_bare_path_is_used_unchanged(path, kind):
    storage = open_storage(kind(path), create=True)
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
    storage = open_storage(url)
    assert isinstance(storage, LocalFileSystemStorage)
    assert pathlib.Path(path) == storage.path


def test_memory_is_shared_by_name_while_it_is_in_use():
    named = open_storage("memory://queue")
    assert isinstance(named, InMemoryStorage)
    assert named is open_storage("memory://queue")
    assert named is open_storage("MEMORY://queue/")
    assert named is not open_storage("memory://queue/2")
    assert named is not open_storage("memory://")
    assert open_storage("memory://") is not open_storage("memory:///")


async def test_a_queue_is_made_of_a_url_its_class_and_settings():
    async with connect("memory://", BrokerQueue, stale_timeout=7) as queue:
        await queue.enqueue("a", b"")
        [job] = await queue.dequeue()
        assert 7 == job.claim_timeout
    assert isinstance(connect("memory://", DirectQueue), DirectQueue)


def test_a_queue_is_a_broker_queue_or_that_of_the_older_program_if_no_class_is_given(tmp_path):
    older = f"vsqs://{tmp_path}/queue"
    assert [BrokerQueue, StoreQueue] == [type(connect(url)) for url in ("memory://", older)]
    assert_type(connect("memory://"), BrokerQueue)
    assert_type(connect("memory://", DirectQueue), DirectQueue)
    assert isinstance(assert_type(connect(older, StoreQueue, stale_timeout=7), StoreQueue), StoreQueue)
    for kind in (BrokerQueue, DirectQueue):
        with pytest.raises(InvalidURLError, match=r"the given class cannot open: .*formats\.queue\.StoreQueue"):
            connect(older, kind)
    with pytest.raises(InvalidURLError, match="a queue of an older program"):
        open_storage(older)
    with pytest.raises(InvalidJobError, match=r"got InMemoryStorage: `connect\(url\)`"):
        connect("memory://", StoreQueue)


# Wrong URLs

WRONG = [
    ("", "is empty"),
    ("folder/", "names no file"),
    ("a\0b", "names no file"),
    ("\ud800", "names no file"),
    ('"s3://bucket/key"', "does not begin with its scheme"),
    ("sftp://host/key", "the scheme of this URL is unknown"),
    ("jobs:today.json", r"a path \(./a:b"),
    ("gcs://bucket/key", "no store is called gcs: try gs://bucket/"),
    ("s3:bucket/key", "has no // after"),
    ("s3:///key", "names no bucket"),
    ("gs://bucket/", "no object in it"),
    ("s3://bu cket/key", "a name that no bucket can have"),
    ("s3://localhost:9000/bucket/key", "give an endpoint as an option"),
    ("s3://bucket/key\n", "a line break"),
    ("s3://bucket/%ff", "not UTF-8"),
    ("s3://bucket/key?region=eu", "unknown option .known: endpoint_url, region_name, .* as %26"),
    ("memory://?a=b", "unknown option .known: none"),
    ("s3://bucket/key?region_name", "an option without a value"),
    ("s3://bucket/key?timeout=1&timeout=2", "an option twice"),
    ("s3://bucket/key?timeout=nan", "a wrong value for timeout, which takes a number of seconds above 0"),
    ("s3://bucket/key?addressing_style=vhost", "takes path, virtual or auto"),
    ("s3://bucket/key?region_name=eu/../x", "takes the name of a region"),
    ("s3://bucket/key?storage_class=a%0d%0ab", "takes printable text"),
    ("s3://bucket/key?profile_name=absent", "a profile that is not in the AWS configuration"),
    ("s3://id:key@bucket/key?profile_name=here", "both a key and a profile_name"),
    ("s3://id@bucket/key", "half of a key"),
    ("s3://id:@bucket/key", "lacks a name or a secret"),
    ("gs://user@bucket/key", "names a user"),
    ("gs://bucket/key?endpoint_url=http://user:key@host", "endpoint_url, which takes the URL of an http"),
    ("az://box/blob", "names no account, and AZURE_STORAGE_CONNECTION_STRING is not set"),
    ("az://evil.example%2F@box/blob", "no account can have"),
    ("az://box/blob?account_key=a", "a key or token, but names no account"),
    ("az://account@box/blob?account_key=a&sas_token=b", "more than one key or token"),
    (f"az://box/blob?account_url={NOBODY}/?sv=1", "wrong value for account_url"),
    ("file://queue.json", "two slashes where three belong"),
    ("file:///queue.json?lock_timeout=-1", "wrong value for lock_timeout"),
    ("file:///queue.json?mode=4660", "wrong value for mode, which takes a mode in octal"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "wrong"), WRONG)
def test_the_error_for_a_wrong_url_names_the_mistake_and_shows_a_valid_url(url, wrong):
    with pytest.raises(InvalidURLError, match=wrong) as raised:
        connect(url)
    assert any(right in str(raised.value) for right in EXAMPLES.values())
    assert "\n" not in str(raised.value)
    assert (None, None) == (raised.value.__cause__, raised.value.__context__)


# Folders that do not exist

PLACES = [
    "{}/misspelled/queue.json",
    "file://{}/misspelled/queue.json",
    "vsqs://{}/misspelled/queue",
    "dirq://{}/misspelled/messages/",
    "textq://{}/misspelled/queue.tq",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_missing_folder_is_reported_with_a_remedy_and_not_created(tmp_path, place):
    for call in (connect, open_storage):
        with pytest.raises(MissingFolderError, match=r"create=true in a URL, or --create") as raised:
            call(place.format(tmp_path))
        assert f"the folder '{tmp_path}/misspelled' does not exist" in str(raised.value)
        assert f"{tmp_path}/misspelled" == raised.value.folder
    assert isinstance(raised.value, InvalidURLError)
    assert not (tmp_path / "misspelled").exists()


@pytest.mark.parametrize("place", PLACES)
async def test_the_first_job_creates_the_folder_if_create_is_set(tmp_path, place):
    async with connect(place.format(tmp_path), create=True) as queue:
        assert not (tmp_path / "misspelled").exists(), "not before"
        await queue.enqueue("work", b"1")
    async with connect(place.format(tmp_path)) as queue:
        assert 1 == len(await queue.dequeue())


# Secrets


def everything_shown(error: BaseException) -> str:
    """Return the text of every way to show an error: the error itself, its causes, and its contexts."""
    texts, seen, waiting = [], set(), [error]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.__suppress_context__ = False
            texts += [str(one), repr(one), repr(vars(one)), *traceback.format_exception(one)]
            waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
    return "\n".join(texts)


pieces = st.sampled_from(
    [*"/:@?&=#%+ .~[]\\", "://", "s3", "gs", "az", "file", "memory", "s3://b/k", "az://a@b/c", "?timeout=",
     "&timeout=1", "?endpoint_url=http://", "?account_key=", "%00", "%ff", "%2F", "\n", "\0", "\ud800", "ß", "a", "1"]
)  # fmt: skip
texts = st.text(max_size=30) | st.lists(pieces, max_size=8).map("".join)
urls = texts | st.builds("{}://{}".format, st.sampled_from(list(EXAMPLES)), texts)


@settings(max_examples=25)
@given(urls)
@example("s3://\ufdfa/a").via("urlsplit refuses such a host, and shows it")
@example("VSQS:///0")
def test_any_text_makes_a_storage_or_an_older_queue_or_raises_invalid_url_error(url):
    try:
        found = connect(url)
    except InvalidURLError:
        return
    assert isinstance(found, BrokerQueue | StoreQueue)


@settings(max_examples=25)
@given(texts, texts, st.sampled_from([*EXAMPLES, "nonsense"]))
@example("/", "/queue.json", "file")
def test_no_error_shows_anything_of_the_url_but_a_missing_folder(before, behind, scheme):
    said = ""
    try:
        connect(f"{scheme}://{before}{SECRET}{behind}")
    except MissingFolderError:
        return  # it names the folder on purpose
    except InvalidURLError as error:
        said = everything_shown(error)
    assert SECRET not in said


@pytest.mark.parametrize(
    "url",
    [
        f"s3://id:{SECRET}@bucket/key?region_name=eu-west-1&endpoint_url={NOBODY}",
        f"az://devstore:{SECRET}AAA@box/a?account_url={NOBODY}/devstore",
        f"az://box/a?account_url={NOBODY}/devstore&account_key={SECRET}AAA",
        f"az://box/a?account_url={NOBODY}/devstore&sas_token=sv%3D1%26sig%3D{SECRET}",
    ],
)
async def test_neither_use_nor_a_copy_of_a_storage_shows_the_secrets_of_its_url(url, caplog):
    caplog.set_level(logging.DEBUG)
    queue = connect(url, DirectQueue)
    storage: Any = open_storage(url)
    said = [repr(storage), str(storage), f"{storage}", repr(queue), str(queue)]
    for call in (storage.read, lambda: storage.write(b"content"), lambda: storage.write(b"content", '"1"')):
        with pytest.raises(StorageError) as raised:
            await call()
        said.append(everything_shown(raised.value))
    await storage.release()
    said += [caplog.text, repr(storage.beside(".x"))]
    said += [repr(pickle.loads(pickle.dumps(each))) for each in (storage, queue)]
    assert [] == [text for text in said if SECRET in text]


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
for get in (
    lambda: jqueue.open_storage({url!r}),
    lambda: jqueue.{storage},
    lambda: exec("from jqueue import {storage}"),
):
    try:
        get()
    except ImportError as error:
        print(error)
"""
    lines = in_a_new_process(code).splitlines()
    assert 3 == len(lines)
    assert all(line.startswith(f"{storage} needs ") and line.endswith(advice) for line in lines)


def test_the_error_for_a_rarer_name_says_where_to_import_it():
    for name, home in [
        *[("RunReport", "worker"), ("Enqueue", "operations"), ("MissingFolderError", "errors"), ("JobQueue", "ports")],
        *[("StorageContract", "testing"), ("RedisStorage", None)],
    ]:
        advice = f": use `from jqueue.{home} import {name}`" if home else ""
        with pytest.raises(AttributeError, match=f"^module 'jqueue' has no attribute '{name}'{advice}$"):
            getattr(jqueue, name)


async def test_a_store_without_the_packages_of_a_client_says_once_that_a_broker_is_not_used(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "jqueue.adapters.http_link", None)
    storage: Any = connect("gs://bucket/key", DirectQueue).storage
    assert None is await storage.dial_url("https://broker.example:8470")
    assert None is await storage.dial_url("https://broker.example:8470")
    assert 1 == caplog.text.count("the broker at https://broker.example:8470 is not used")
    assert 'pip install "jqueue[client]"' in caplog.text
