"""No error, repr, log record or copy shows a secret of a URL, and any text makes a store, a queue or our own error."""

import inspect
import logging
import pickle
import sys
import traceback

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jqueue import DirectQueue, StorageError, connect
from jqueue.domain.errors import InvalidURLError, MissingFolderError
from jqueue.formats.queue import StoreQueue

EXAMPLES = sys.modules["jqueue.connect"].EXAMPLES
SECRET = "xYzZy4711"
NOBODY = "http://127.0.0.1:1"
"""No server listens on its port."""


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def everything_shown(error: BaseException) -> str:
    """Return the text of every way to show an error: the error itself, its causes, and its contexts."""
    said, seen, waiting = [], set(), [error]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.__suppress_context__ = False
            said += [str(one), repr(one), repr(vars(one)), *traceback.format_exception(one)]
            waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
    return "\n".join(said)


# Any text

pieces = st.sampled_from(
    [*"/:@?&=#%+ .~[]\\", "://", "s3", "gs", "az", "file", "memory", "s3://b/k", "az://a@b/c", "?timeout=",
     "&timeout=1", "?endpoint_url=http://", "?account_key=", "%00", "%ff", "%2F", "\n", "\0", "\ud800", "ß", "a", "1"]
)  # fmt: skip
texts = st.text(max_size=30) | st.lists(pieces, max_size=8).map("".join)
urls = texts | st.builds("{}://{}".format, st.sampled_from(list(EXAMPLES)), texts)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(urls)
@example("s3://\ufdfa/a").via("urlsplit refuses such a host, and shows it")
@example("VSQS:///0")
def test_any_text_makes_a_storage_or_an_older_queue_or_raises_invalid_url_error(url):
    try:
        found = connect(url)
    except InvalidURLError:
        return
    assert isinstance(found, StoreQueue) or inspect.iscoroutinefunction(found.read)


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


# Secrets


@pytest.mark.parametrize(
    "url",
    [
        f"s3://id:{SECRET}/b@bucket/key", f"s3://id:1{SECRET}?x@bucket/key",
        f"s3://{SECRET}:a/b@bucket/key", f"s3://id:{SECRET}@", f"s3://{SECRET}@bucket/key",
        f"s3://id:{SECRET}%ff@bucket/key", f"s3://id:{SECRET}\n@bucket/key",
        f" s3://id:{SECRET}@bucket/key", f"'s3://id:{SECRET}@bucket/key'", f"s4://id:{SECRET}@bucket/key",
        f"id:{SECRET}@bucket/key", f"s3:id:{SECRET}@bucket/key", f"s3a://id:{SECRET}@bucket/key", f"{SECRET}://a",
        f"gs://id:{SECRET}@bucket/key", f"file://id:{SECRET}@localhost/a", f"file:///a%00{SECRET}", f"\0{SECRET}",
        f"s3://bucket/key?{SECRET}", f"s3://bucket/key?{SECRET}=a", f"s3://bucket/key?a={SECRET}",
        *[f"s3://bucket/key?{name}={SECRET}%0a" for name in (
            "endpoint_url", "region_name", "profile_name", "addressing_style", "server_side_encryption", "timeout",
        )],
        f"s3://bucket/key?timeout={SECRET}",
        f"s3://bucket/key?endpoint_url=http://id:{SECRET}@host", f"s3://bucket/key?endpoint_url=http://host:{SECRET}",
        f"s3://bucket/key?endpoint_url=http://[{SECRET}", f"s3://bucket/key?endpoint_url=http://\ufdfa{SECRET}",
        f"az://box/a?account_url=https://a.example/?sig={SECRET}", f"az://box/a?account_key={SECRET}",
        f"az://account@box/a?sas_token=sv=1&sig={SECRET}", f"az://account@box/a?account_key=a&{SECRET}==",
        f"az://account@box/a?account_key=a&sas_token={SECRET}", f"az://A:{SECRET}@box/a",
    ],
)  # fmt: skip
def test_an_error_about_a_url_has_none_of_its_secrets(url, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(InvalidURLError) as raised:
        connect(url)
    assert SECRET not in everything_shown(raised.value) + caplog.text


@pytest.mark.parametrize(
    "url",
    [
        f"s3://id:{SECRET}@bucket/key?region_name=eu-west-1&endpoint_url={NOBODY}",
        f"az://devstore:{SECRET}@box/a?account_url={NOBODY}/devstore",
        f"az://devstore:{SECRET}AAA@box/a?account_url={NOBODY}/devstore",
        f"az://box/a?account_url={NOBODY}/devstore&account_key={SECRET}AAA",
        f"az://box/a?account_url={NOBODY}/devstore&sas_token=sv%3D1%26sig%3D{SECRET}",
    ],
)
async def test_neither_use_nor_a_copy_of_a_storage_shows_the_secrets_of_its_url(url, caplog):
    caplog.set_level(logging.DEBUG)
    storage, queue = connect(url), connect(url, DirectQueue)
    said = [repr(storage), str(storage), f"{storage}", repr(queue), str(queue)]
    for call in (storage.read, lambda: storage.write(b"content"), lambda: storage.write(b"content", '"1"')):
        with pytest.raises(StorageError) as raised:
            await call()
        said.append(everything_shown(raised.value))
    await storage.release()
    said += [caplog.text, repr(storage.beside(".x"))]
    said += [repr(pickle.loads(pickle.dumps(each))) for each in (storage, queue)]
    assert [] == [text for text in said if SECRET in text]
