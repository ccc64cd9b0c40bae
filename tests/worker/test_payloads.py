"""Payloads and results are validated by annotation, and no error shows any of their content."""

import asyncio
import dataclasses
import itertools
import logging
import math
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, PrivateAttr, field_validator
from typing_extensions import TypedDict

from jqueue import InvalidJobError
from jqueue.testing.virtual_time import run
from jqueue.worker import Context, RunReport, Worker
from jqueue.worker.payloads import ResultError, adapter_of, json_value
from tests.virtual_world import in_virtual_time
from tests.worker.scenes import DEAD, SECRET, broker, only_job


class Email(BaseModel):
    to: str
    copies: int = 1


class Aliased(BaseModel):
    to: str = Field(alias="recipient")


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Movie(TypedDict):
    name: str
    year: int


class Colour(Enum):
    RED = "red"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


class Strict(BaseModel):
    model_config = {"extra": "forbid"}
    word: str
    wisdom: int = 0

    @field_validator("word")
    @classmethod
    def refuse(cls, value):
        raise ValueError(f"what a word: {value}")


def handling(annotation, **options):
    """A worker with one handler "work", the handler, and the payloads that it gets."""
    worker, got = Worker(), []

    async def work(payload) -> None:
        got.append(payload)

    work.__annotations__["payload"] = annotation
    return worker, worker.handler("work", **options)(work), got


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bytes, b"\x00\xff"),
        (str, "grüße"),
        (Email, Email(to="a@b", copies=3)),
        (Aliased, Aliased(recipient="a@b")),
        (Point, Point(1, 2)),
        (Movie, Movie(name="M", year=1931)),
        (dict, {"a": [1, None]}),
        (dict[str, int], {"a": 1}),
        (list[Email], [Email(to="a")]),
        (int, 5),
        (float, 0.5),
        (bool, True),
        (int | None, None),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
        (date, date(2026, 1, 2)),
        (Decimal, Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=5)),
        (Colour, Colour.RED),
        (Literal["a", "b"], "b"),
        (Annotated[int, Field(gt=3)], 4),
        (Annotated[Cat | Dog, Field(discriminator="kind")], Cat(kind="cat", lives=9)),
        (Any, {"free": "form"}),
    ],
    ids=str,
)
def test_a_payload_is_parsed_by_the_annotation_of_the_first_parameter(annotation, value):
    async def main():
        worker, handler, got = handling(annotation)
        async with broker() as queue:
            await handler.enqueue(queue, value)
            assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)
        assert [value] == got
        assert type(value) is type(got[0])

    run(main())


@in_virtual_time
async def test_a_payload_with_a_default_may_be_left_out_by_handlers_operations_and_other_programs():
    worker = Worker()
    got: list[Email | str] = []

    @worker.handler("mail")
    async def mail(ctx: Context, email: Email = Email(to="all")) -> None:  # noqa: B008 - it is never changed
        got.append(email)

    @worker.handler("greet")
    async def greet(text: str = "hello") -> None:
        got.append(text)

    async with broker() as queue:
        await mail.enqueue(queue, priority=1)
        await mail.enqueue(queue, Email(to="ada"), priority=2)
        await queue.apply(greet.operation(priority=3))
        await queue.enqueue("mail", priority=4)
        await queue.enqueue("greet", b"", priority=5)  # an empty text is a text
        assert RunReport(succeeded=5) == await worker.run(queue, drain=True, signals=False)
    assert [Email(to="all"), Email(to="ada"), "hello", Email(to="all"), ""] == got


@in_virtual_time
async def test_a_handler_without_a_parameter_ignores_the_payload():
    worker, done = Worker(), []

    @worker.handler("work")
    async def work() -> None:
        done.append(1)

    async with broker() as queue:
        await queue.enqueue("work", b"\xff\xfe anything")
        await worker.run(queue, drain=True, signals=False)
    assert [1] == done


def test_a_parameter_without_annotation_is_a_type_error_with_the_right_form():
    worker = Worker()
    with pytest.raises(TypeError, match="'work': annotate its parameter 'message' as bytes, str, a pydantic model"):

        @worker.handler("work")
        async def work(message):
            pass


def test_a_parameter_without_a_possible_value_is_a_type_error():
    with pytest.raises(TypeError, match="give third a default"):

        @Worker().handler("work")
        async def work(message: bytes, ctx: Context, third: int) -> None:
            pass


def test_an_annotation_that_is_not_defined_yet_is_a_type_error():
    with pytest.raises(TypeError, match="'Later', which is not defined when it is decorated"):

        @Worker().handler("work")
        async def work(message: "Later") -> None:  # type: ignore[name-defined]  # noqa: F821
            pass


def test_an_annotation_unknown_to_pydantic_is_a_type_error():
    class Odd:
        pass

    with pytest.raises(TypeError, match="pydantic cannot validate"):

        @Worker().handler("work")
        async def work(message: Odd) -> None:
            pass


def test_string_annotations_may_name_local_classes():
    class Local(BaseModel):
        number: int

    @Worker().handler("work")
    async def work(message: "Local") -> None:
        pass

    assert b'{"number":1}' == work.encode({"number": 1})


async def _context_first(ctx: Context, message: str):
    return ctx, message


async def _context_last(message: str, ctx: Context):
    return ctx, message


async def _context_by_annotation(message: str, about: Context):
    return about, message


async def _context_by_name(message: str, ctx):
    return ctx, message


async def _by_name_only(*, ctx: Context, message: str):
    return ctx, message


async def _with_defaults(message: str, retries: int = 3, *, ctx: Context):
    assert 3 == retries
    return ctx, message


@pytest.mark.parametrize(
    "function",
    [_context_first, _context_last, _context_by_annotation, _context_by_name, _by_name_only, _with_defaults],
)
def test_the_context_parameter_is_found_by_annotation_or_name_at_any_position(function):
    async def main():
        worker, seen = Worker(), []
        worker.handler("work")(function)

        @worker.middleware
        async def look(ctx, call_next):
            seen.append((ctx, await call_next()))

        async with broker() as queue:
            await queue.enqueue("work", b"hello")
            assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)
        [(ctx, (own, message))] = seen
        assert (ctx, "hello") == (own, message)

    run(main())


BAD = [
    (str, b"\xff" + SECRET.encode()),
    (int, SECRET.encode()),
    (int, b'"%s"' % SECRET.encode()),
    (dict[str, int], b'{"%s": "x"}' % SECRET.encode()),
    (dict[int, int], b'{"%s": 1}' % SECRET.encode()),
    (Email, b'{"to": 1, "copies": "%s"}' % SECRET.encode()),
    (Email, b'{"to": "%s"' % SECRET.encode()),
    (Strict, b'{"word": "%s", "%s": 1}' % (SECRET.encode(), SECRET.encode())),
    (list[Email], b'[{"to": "a"}, {"%s": 1}]' % SECRET.encode()),
    (Annotated[Cat | Dog, Field(discriminator="kind")], b'{"kind": "%s"}' % SECRET.encode()),
    (Literal["a", "b"], b'"%s"' % SECRET.encode()),
    (Colour, b'"%s"' % SECRET.encode()),
    (uuid.UUID, b'"%s"' % SECRET.encode()),
    (datetime, b'"%s"' % SECRET.encode()),
    (Decimal, b'"%s"' % SECRET.encode()),
    (Movie, b'{"name": ["%s"]}' % SECRET.encode()),
    (Point, b'{"x": "%s"}' % SECRET.encode()),
]


@pytest.mark.parametrize(("annotation", "payload"), BAD)
def test_an_invalid_payload_makes_its_job_dead_and_is_never_shown(annotation, payload, caplog):
    caplog.set_level(logging.DEBUG)

    async def main():
        worker, _, got = handling(annotation, max_attempts=10)
        async with broker() as queue:
            await queue.enqueue("work", payload)
            assert RunReport(dead=1) == await worker.run(queue, drain=True, signals=False)
            return got, await only_job(queue)

    got, job = run(main())
    assert ([], DEAD) == (got, job.status)
    assert job.error.startswith("the payload ")
    assert SECRET not in job.error
    assert SECRET not in caplog.text
    assert not any(record.exc_info and SECRET in str(record.exc_info) for record in caplog.records)


def test_the_error_of_an_invalid_payload_names_each_wrong_field():
    _, handler, _ = handling(list[Email])
    with pytest.raises(
        ValueError, match=r"the handler: 0.to: Input should be a valid string; 1.to: Field required"
    ) as caught:
        handler.signature.codec.parse(b'[{"to": 1}, {"copies": 2}]')
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("annotation", "payload"), [(Email, {"to": [SECRET]}), (int, SECRET), (bytes, SECRET), (str, 5)]
)
def test_enqueue_refuses_an_invalid_payload_without_showing_it(annotation, payload):
    _, handler, _ = handling(annotation)
    with pytest.raises(InvalidJobError) as caught:
        handler.operation(payload)
    assert SECRET not in str(caught.value)
    assert SECRET not in str(caught.value.__context__)


class Newsletter(Email):
    issue: int = 1


class Hidden(BaseModel):
    word: str
    secret: str = Field("none", exclude=True)


class Counting(BaseModel):
    word: str
    _calls: int = PrivateAttr(0)

    def model_post_init(self, _):
        self._calls = next(NUMBERS)


class Plain:
    """A class without `__eq__`."""

    def __init__(self, word):
        self.word = word


NUMBERS = itertools.count()
AsText = Annotated[
    Plain, PlainValidator(lambda v: v if isinstance(v, Plain) else Plain(v)), PlainSerializer(lambda v: v.word)
]


@pytest.mark.parametrize(
    ("annotation", "value", "place"),
    [
        (dict[str, Any], {SECRET: math.nan}, "payload.…"),
        (Any, math.inf, "payload"),
        (float | None, math.nan, "payload"),
        (Email, Newsletter(to=SECRET), "payload"),
        (list[Email], [Email(to="a"), Newsletter(to=SECRET)], "payload.1"),
        (Hidden, Hidden(word="a", secret=SECRET), "payload.secret"),
        (dict[str, Any], {"at": datetime(2026, 1, 2)}, "payload.…"),
        (Any, {1: SECRET}, "payload.…"),
        (Any, Point(1, 2), "payload"),
    ],
)
def test_a_payload_or_result_that_json_would_change_is_refused_by_its_place(annotation, value, place):
    _, handler, _ = handling(annotation)
    with pytest.raises(InvalidJobError) as caught:
        handler.operation(value)
    assert f"the payload does not fit the handler: {place} does not come back equal from JSON" in str(caught.value)
    with pytest.raises(ResultError) as refused:
        json_value(adapter_of(annotation), value)
    assert SECRET not in f"{caught.value} {refused.value}"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (dict[str, Any], {"size": (1, [2.5, None, True])}),  # a tuple is read as a list
        (Hidden, Hidden(word="a", secret="none")),
        (Counting, Counting(word="a")),
        (list[AsText], [Plain("a")]),
        (set[str], {"a", "b"}),
    ],
)
def test_a_payload_or_result_that_only_looks_different_is_accepted(annotation, value):
    _, handler, _ = handling(annotation)
    assert handler.operation(value).payload
    assert json_value(adapter_of(annotation), value)


def test_the_error_of_a_text_that_utf_8_cannot_write_names_the_parameter():
    _, handler, _ = handling(str)
    with pytest.raises(InvalidJobError, match="payload has a lone surrogate at index 1, ") as caught:
        handler.operation("a\ud800")
    assert caught.value.__context__ is None


def test_a_validation_error_raised_in_a_handler_is_stored_without_its_input():
    async def main():
        worker = Worker()

        @worker.handler("work", max_attempts=1)
        async def work(payload: bytes) -> None:
            Email.model_validate_json(payload)

        async with broker() as queue:
            await queue.enqueue("work", b'{"to": ["%s"]}' % SECRET.encode())
            await worker.run(queue, drain=True, signals=False)
            return await only_job(queue)

    job = run(main())
    assert job.error.startswith("ValidationError: …: Input should be a valid string (tests/worker/test_payloads.py:")


class Receipt(BaseModel):
    at: datetime
    lines: list[Point]


@in_virtual_time
async def test_a_result_is_kept_and_returned_as_its_annotated_type():
    worker, receipt = Worker(), Receipt(at=datetime(2026, 1, 1, tzinfo=UTC), lines=[Point(1, 2)])

    @worker.handler("work", keep_result=60)
    async def work(payload: bytes) -> Receipt:
        return receipt

    async with broker() as queue:
        job = await work.enqueue(queue, b"")
        waiting = asyncio.create_task(work.result(queue, job, timeout=10))
        await worker.run(queue, drain=True, signals=False)
        assert receipt == await waiting


@in_virtual_time
async def test_a_result_that_is_not_kept_is_not_validated():
    worker = Worker()

    @worker.handler("odd")
    async def odd() -> Any:
        return object()

    async with broker() as queue:
        await odd.enqueue(queue)
        assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)


@pytest.mark.parametrize("value", [object(), {1: object()}, b"\xff" + SECRET.encode(), "x" * 2_000_000])
def test_a_result_that_cannot_be_stored_makes_its_job_dead_with_a_readable_error(value, caplog):
    caplog.set_level(logging.DEBUG)

    async def main():
        worker = Worker()

        @worker.handler("work", keep_result=60)
        async def work() -> Any:
            return value

        @worker.handler("fine")
        async def fine() -> None:
            return

        async with broker() as queue:
            await work.enqueue(queue)
            await fine.enqueue(queue)
            assert RunReport(succeeded=1, dead=1) == await worker.run(queue, drain=True, signals=False)
            return await only_job(queue)

    job = run(main())
    assert DEAD == job.status
    assert any(word in job.error for word in ("JSON", "1048576", "result"))
    assert SECRET not in job.error + caplog.text
