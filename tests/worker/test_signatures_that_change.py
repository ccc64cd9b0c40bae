"""Payloads outlive the signature of their handler: what a job gives to the handler, or the error that it gets."""

from typing import Any

import pytest
from pydantic import BaseModel

from jqueue import InvalidJobError, connect
from jqueue.core.blob.codec import KNOWN_CRITICAL
from jqueue.domain.job import ENCODINGS
from jqueue.domain.models import Job
from jqueue.formats.queue import StoreQueue
from jqueue.worker import Context, Router, RunReport, Worker
from jqueue.worker.payloads import PayloadError
from tests.virtual_world import in_virtual_time
from tests.worker.scenes import SECRET, broker, drained

AnyWorker: Any = Worker


class Email(BaseModel):
    to: str


def no_parameter(ctx: Context) -> None: ...
def text(address: str) -> None: ...
def with_default(address: str, subject: str = "hello") -> None: ...
def two(address: str, subject: str) -> None: ...
def optional(address: str = "nobody") -> None: ...
def number(address: int) -> None: ...
def raw(data: bytes) -> None: ...
def raw_and_more(data: bytes, n: int = 1) -> None: ...
def model(email: Email, copies: int = 1) -> None: ...
def one_model(email: Email) -> None: ...
def mapping(address: dict[str, Any]) -> None: ...


ADDRESS, BOTH = b'{"address":"a"}', b'{"address":"a","subject":"b"}'
TAKES_TEXT = "it is a JSON object, and the parameter 'address' takes a text"

READINGS: list[tuple[str | None, bytes, Any, dict[str, Any] | str]] = [
    # names that the handler knows, and missing ones
    ("named", ADDRESS, text, {"address": "a"}),
    ("named", ADDRESS, with_default, {"address": "a"}),
    ("named", BOTH, with_default, {"address": "a", "subject": "b"}),
    ("named", ADDRESS, two, "subject: Field required"),
    ("named", b"{}", optional, {}),
    ("named", b"{}", text, "address: Field required"),
    ("named", b"", text, "address: Field required"),
    ("named", ADDRESS, number, "address: Input should be a valid integer"),
    ("named", b'{"data":"a"}', raw, {"data": b"a"}),
    ("named", b'{"email":{"to":"a"}}', one_model, {"email": Email(to="a")}),
    # names that it does not know
    ("named", BOTH, text, "it has no parameter 'subject'"),
    ("named", ADDRESS, no_parameter, "it has no parameter 'address'"),
    ("named", ADDRESS, raw, "it has no parameter 'address'"),
    ("named", b'{"%s ":1}' % SECRET.encode(), optional, "…: Extra inputs are not permitted"),
    ("named", b"{}", no_parameter, {}),
    ("named", b"a", text, "Invalid JSON"),
    # one value
    (None, b"a", text, {"address": "a"}),
    (None, b'"a"', text, {"address": '"a"'}),
    (None, b"5", number, {"address": 5}),
    (None, b"a", raw, {"data": b"a"}),
    (None, ADDRESS, raw, {"data": ADDRESS}),
    (None, ADDRESS, mapping, {"address": {"address": "a"}}),
    (None, b"", optional, {"address": ""}),
    (None, b"a", no_parameter, {}),
    # one value, and parameters that were added
    (None, b"a", with_default, {"address": "a"}),
    (None, b"5", with_default, {"address": "5"}),
    (None, b"a", raw_and_more, {"data": b"a"}),
    (None, b'{"to":"a"}', model, {"email": Email(to="a")}),
    (None, b'{"ot":"a"}', model, "to: Field required"),
    (None, b"a", two, "Invalid JSON"),
    # several arguments, as earlier versions wrote them
    (None, BOTH, two, {"address": "a", "subject": "b"}),
    (None, BOTH, with_default, {"address": "a", "subject": "b"}),
    (None, ADDRESS, with_default, {"address": "a"}),
    (None, b'{"email":{"to":"a"},"copies":2}', model, {"email": Email(to="a"), "copies": 2}),
    (None, b'{"email":{"to":"a"},"width":2}', model, "it has no parameter 'width'"),
    (None, b'{"%s":1}' % SECRET.encode(), two, "…: Extra inputs are not permitted"),
    (None, b'{"subject":"b"}', with_default, "address: Field required"),
    # an object is never a text
    (None, BOTH, text, TAKES_TEXT),
    (None, b'{"to":"a"}', with_default, TAKES_TEXT),
    (None, b'{"to":', text, {"address": '{"to":'}),
]


@pytest.mark.parametrize(("encoding", "payload", "function", "expected"), READINGS)
def test_a_payload_gives_its_arguments_or_a_clear_error(encoding, payload, function, expected):
    handler = AnyWorker().handler("mail")(function)
    job = Job.new("mail", payload).model_copy(update={"encoding": encoding})
    if isinstance(expected, dict):
        assert expected == handler.signature.parse(job)
        return
    with pytest.raises(PayloadError) as caught:
        handler.signature.parse(job)
    assert expected in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.__context__}"


def test_a_handler_may_ignore_arguments_that_it_does_not_know():
    handler = AnyWorker().handler("mail", extra="ignore")(text)
    for encoding in ("named", None):
        job = Job.new("mail", BOTH).model_copy(update={"encoding": encoding})
        if encoding is not None:
            assert {"address": "a"} == handler.signature.parse(job)
    with pytest.raises(InvalidJobError, match="subject"):
        handler.call("a", subject="b")  # a call is checked all the same
    with pytest.raises(InvalidJobError, match='extra must be "forbid" or "ignore"'):
        AnyWorker().handler("mail", extra="drop")(text)


def test_bytes_alone_are_a_value_and_other_arguments_are_encoded_by_name():
    for function, arguments, expected in (
        (raw, [b"a"], (b"a", None)),
        (raw_and_more, [b"a"], (b'{"data":"a"}', "named")),
        (no_parameter, [], (b"", None)),
    ):
        call = AnyWorker().handler("mail")(function).call(*arguments)
        assert expected == (call.payload, call.encoding)


@in_virtual_time
async def test_jobs_of_calls_values_cron_entries_and_batches_run_and_the_queue_names_the_feature():
    worker, got = Worker(), list[Any]()

    @worker.handler("mail")
    async def mail(address: str, subject: str = "hello") -> None:
        got.append((address, subject))

    @worker.cron("* * * * *", payload="cron")
    async def every_minute(address: str) -> None:
        got.append(address)

    @worker.handler("batch", batch=10)
    async def batch(numbers: list[int]) -> None:
        got.append(sorted(numbers))

    async with broker() as queue:
        await queue.enqueue("mail", b"one")
        await batch.using(queue).enqueue(1)
        assert ENCODINGS not in (await queue.read_state()).critical
        await queue.enqueue("batch", b'{"numbers":2}', encoding="named")
        await mail.using(queue).enqueue("two", subject="b")
        assert ENCODINGS in (await queue.read_state()).critical
        assert RunReport(succeeded=4) == await drained(worker, queue)
        [entry] = await queue.schedules()
        assert (b'{"address":"cron"}', "named") == (entry.payload, entry.encoding)
        with pytest.raises(InvalidJobError, match=r"encoding must be one of .*'named'"):
            await queue.enqueue("mail", b"{}", encoding="json")
    assert sorted([("one", "hello"), ("two", "b"), [1, 2]], key=str) == sorted(got, key=str)
    assert ENCODINGS in KNOWN_CRITICAL


async def test_a_queue_in_the_format_of_another_program_takes_values_as_before(tmp_path):
    worker, got = Worker(), list[Any]()

    @worker.handler
    async def mail(address: str) -> None:
        got.append(address)

    @worker.handler
    async def resize(path: str, width: int = 1) -> None:
        got.append((path, width))

    async with connect(f"vsqs://{tmp_path}/queue", StoreQueue) as queue:
        jobs = [await mail.using(queue).enqueue("a"), await resize.using(queue).enqueue("b", width=2)]
        await mail.using(queue).enqueue("c")
        assert [(b"a", None), (b'{"path":"b","width":2}', None)] == [_form(job) for job in jobs]
        assert RunReport(succeeded=3) == await worker.run(queue, drain=True, signals=False)
    assert sorted(["a", "c", ("b", 2)], key=str) == sorted(got, key=str)


def _form(job):
    return job.payload, job.encoding


@in_virtual_time
async def test_a_handler_runs_the_jobs_of_its_earlier_names_too():
    worker, router, got = Worker(), Router(prefix="mail."), list[str]()

    @router.handler("send", aliases=["deliver", "post"], max_running=3)
    async def send(address: str, ctx: Context) -> None:
        got.append(f"{ctx.entrypoint} {address}")

    with pytest.raises(InvalidJobError, match=r"'mail\.post' already has a handler"):
        router.handler("post")(text)
    worker.include(router)
    async with broker() as queue:
        await send.using(queue).enqueue("a")
        await queue.enqueue("mail.deliver", b'{"address":"b"}', encoding="named")
        await queue.enqueue("mail.post", b"c")
        assert RunReport(succeeded=3) == await drained(worker, queue)
        limits = (await queue.read_state()).entrypoints
        assert {"mail.send", "mail.deliver", "mail.post"} == limits.keys()
    assert ["mail.deliver b", "mail.post c", "mail.send a"] == sorted(got)
    with pytest.raises(InvalidJobError, match="aliases must be a list of names"):
        AnyWorker().handler("a", aliases="b")(text)
