"""Payloads and results are validated by annotation, and no error shows any of their content."""

import dataclasses
import logging
import math
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, Field, Json, computed_field, field_validator

from jqueue import DirectQueue, InMemoryStorage, InvalidJobError, Limits
from jqueue.errors import ResultNotKeptError
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Context, RunReport, Worker
from tests.worker.scenes import COMPLETED, DEAD, SECRET, broker, drained, only_job

pytestmark = pytest.mark.virtual_time


class Email(BaseModel):
    to: str
    copies: int = 1


class Newsletter(Email):
    issue: int = 1


class Aliased(BaseModel):
    to: str = Field(alias="recipient")


class Hidden(BaseModel):
    word: str
    secret: str = Field("none", exclude=True)


class Renamed(BaseModel):
    """A model whose JSON, by its aliases, would be read as another value."""

    path: str = Field(validation_alias="file", serialization_alias="location")
    size: int = Field(0, serialization_alias="bytes")


class Strange(BaseModel):
    model_config = {"extra": "forbid"}
    to: str = Field(validation_alias=AliasChoices("recipient", "receiver"), serialization_alias="receiver")
    name: str = Field(validation_alias=AliasPath("names", 0))
    w: int = Field(alias="w")


class Room(BaseModel):
    model_config = {"extra": "forbid"}
    width: int
    settings: Json[list[int]] = []

    @computed_field
    def area(self) -> int:
        return self.width**2


class Strict(BaseModel):
    model_config = {"extra": "forbid"}
    word: str

    @field_validator("word")
    @classmethod
    def refuse(cls, value):
        raise ValueError(f"what a word: {value}")


@dataclasses.dataclass
class Point:
    x: int
    y: int


def handling(annotation, **options):
    """A worker with one handler "work", the handler, and the payloads that it gets."""
    worker, got = Worker(), []

    async def work(payload) -> None:
        got.append(payload)

    work.__annotations__["payload"] = annotation
    return worker, worker.handler("work", **options)(work), got


async def there_and_back(annotation, value):
    """The payload that a handler gets for a value, and the result that a program gets if it returns the value."""
    worker, got = Worker(), []

    async def work(payload):
        got.append(payload)
        return value

    work.__annotations__.update({"payload": annotation, "return": annotation})
    handler = worker.handler("work", keep_result=60)(work)
    async with broker() as queue:
        job = await handler.using(queue).enqueue(value)
        assert RunReport(succeeded=1) == await drained(worker, queue)
        return got[0], await handler.using(queue).result(job)


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
        await mail.using(queue, priority=1).enqueue()
        await mail.using(queue, priority=2).enqueue(Email(to="ada"))
        await queue.apply(greet.using(priority=3).call().operation())
        await queue.enqueue("mail", priority=4)
        await queue.enqueue("greet", b"", priority=5)  # an empty text is a text
        assert RunReport(succeeded=5) == await drained(worker, queue)
    assert [Email(to="all"), Email(to="ada"), "hello", Email(to="all"), ""] == got


async def _context_last(message: "str", ctx: Context):
    return ctx, message


async def _context_first_and_by_annotation(about: Context, message: str):
    return about, message


async def _by_name_only(*, ctx, message: str):
    return ctx, message


async def _by_position_only(ctx, message: str, /):
    return ctx, message


@pytest.mark.parametrize(
    "function", [_context_last, _context_first_and_by_annotation, _by_name_only, _by_position_only]
)
async def test_the_context_parameter_is_found_by_annotation_or_name_at_any_position(function):
    worker, seen = Worker(), []
    worker.handler("work")(function)

    @worker.middleware
    async def look(ctx, call_next):
        seen.append((ctx, await call_next()))

    async with broker() as queue:
        await queue.enqueue("work", b"hello")
        assert RunReport(succeeded=1) == await drained(worker, queue)
    [(ctx, answer)] = seen
    assert (ctx, "hello") == answer


# Several payload parameters


async def test_several_payload_parameters_are_a_json_object_by_name_in_calls_operations_and_other_programs():
    worker, got = Worker(), list[tuple[Any, ...]]()

    @worker.handler("resize", priority=7)
    async def resize(
        ctx: Context,
        path: str,
        width: int = 640,
        *,
        priority: int = 0,
        shape: Annotated[Email | None, Field(alias="s")] = None,
    ) -> None:
        got.append((path, width, priority, shape, ctx.job.priority))

    @worker.handler("defaults")
    def defaults(*, size: int = 3, mail: Email | None = None) -> None:
        got.append((size, mail))

    async with broker() as queue:
        job = await resize.using(queue, unique_key="once").enqueue("a", width=200)
        assert (b'{"path":"a","width":200}', "once") == (job.payload, job.unique_key)
        await resize.using(queue, priority=9).enqueue("b", 300, priority=4, shape=Email(to="c"))
        await queue.apply(resize.using(priority=10, delay=0).call(path="c").operation())
        await queue.enqueue("resize", b'{"path": "d", "shape": {"to": "e"}}', priority=11)
        await queue.enqueue("defaults", priority=12)
        await defaults.using(queue, priority=13).enqueue(size=5)
        assert RunReport(succeeded=6) == await drained(worker, queue)
    assert [
        ("a", 200, 0, None, 7),
        ("b", 300, 4, Email(to="c"), 9),
        ("c", 640, 0, None, 10),
        ("d", 640, 0, Email(to="e"), 11),
        (3, None),
        (5, None),
    ] == sorted(got, key=lambda each: (len(each) < 5, each[0]))


async def _sized(path: str, width: int = 640) -> None: ...


async def _alone(path: str) -> None: ...


async def _empty() -> None: ...


@pytest.mark.parametrize(
    ("function", "payload", "keywords", "error"),
    [
        (_sized, (), {"width": 3}, "the payload does not fit the handler: path: Field required"),
        (_sized, ("a", SECRET), {}, "the payload does not fit the handler: width: Input should be a valid integer, "),
        (_sized, (SECRET, 3, 4), {}, "the handler 'work' takes at most 2 arguments by position, got 3"),
        (_sized, (SECRET,), {"path": "b"}, "the handler 'work' got its argument 'path' twice"),
        (_alone, (SECRET,), {"path": "b"}, "the handler 'work' got its argument 'path' twice"),
        (_alone, (), {}, "the payload does not fit the handler: path: Field required"),
        (_empty, (SECRET,), {}, "the handler 'work' takes no payload, got 1"),
        (
            _sized,
            ("a",),
            {"delay": 60},
            "the handler 'work' takes no argument 'delay' (its payload: path, width). A queue and",
        ),
        (
            _alone,
            (DirectQueue(InMemoryStorage()), "a"),
            {},
            "the handler 'work' takes at most 1 argument by position, got 2. A queue and",
        ),
        (
            _sized,
            ("a",),
            {"widht": SECRET},
            "the handler 'work' takes no argument 'widht' (its payload: path, width)",
        ),
    ],
)
def test_arguments_that_do_not_fit_the_handler_are_refused_by_name(function, payload, keywords, error):
    handler: Any = Worker().handler("work")(function)
    with pytest.raises(InvalidJobError) as caught:
        handler.call(*payload, **keywords)
    assert str(caught.value).startswith(error)
    assert SECRET not in f"{caught.value} {caught.value.__context__}"


def test_a_field_in_the_place_of_a_default_is_refused_as_the_function_would_get_it():
    async def resize(path: str, width: int = Field(3, gt=0)) -> None: ...

    with pytest.raises(TypeError, match="write the Field of its parameter 'width' in the annotation"):
        Worker().handler(resize)


# Wrong payloads and results


@pytest.mark.parametrize(
    ("annotation", "payload", "error"),
    [
        (str, b"\xff%s", ""),
        (int, b"%s", "the handler: Invalid JSON"),
        (dict[str, int], b'{"%s": "x"}', ""),
        (Strict, b'{"word": "%s"}', ""),
        (Strict, b'{"word": "", "%s": 1}', ""),
        (list[Email], b'[{"to": 1}, {"%s": 2}]', "0.to: Input should be a valid string; 1.to: Field required"),
        (Literal["a", "b"], b'"%s"', ""),
    ],
)
async def test_an_invalid_payload_makes_its_job_dead_and_is_never_shown(annotation, payload, error, caplog):
    caplog.set_level(logging.DEBUG)
    worker, _, got = handling(annotation, max_attempts=10)

    async def batch(numbers: list[int]) -> None:
        got.extend(numbers)

    async def several(it: int, other: int = 3) -> None: ...

    worker.handler("several", max_attempts=10)(several)
    worker.handler("batch", batch=10, max_attempts=10)(batch)
    async with broker() as queue:
        await queue.enqueue_many([Enqueue(name, payload % SECRET.encode()) for name in ("work", "batch")])
        await queue.enqueue("several", b'{"it": 3, "%s": 4}' % SECRET.encode())
        await queue.enqueue("batch", b"7")
        assert RunReport(succeeded=1, dead=3) == await drained(worker, queue)
        jobs = (await queue.read_state()).jobs
    assert ([7], {DEAD}) == (got, {job.status for job in jobs})
    assert all(job.error.startswith("the payload ") for job in jobs)
    assert error in jobs[0].error
    assert SECRET not in f"{[job.error for job in jobs]} {caplog.text}"


@pytest.mark.parametrize(
    ("annotation", "value", "error"),
    [
        (Email, {"to": [SECRET]}, "to: Input should be a valid string"),
        (str, SECRET + "\ud800", "payload does not fit the handler: it has a value that JSON cannot hold"),
        (dict[str, Any], {SECRET: math.nan}, "payload.… does not come back equal from JSON"),
        (list[Email], [Email(to="a"), Newsletter(to=SECRET)], "payload.1 does not come back equal from JSON"),
        (Hidden, Hidden(word="a", secret=SECRET), "payload.secret does not come back equal from JSON"),
        (Any, {1: SECRET}, "payload.… does not come back equal from JSON"),
    ],
)
async def test_a_payload_that_its_handler_would_not_get_is_refused_by_its_place(annotation, value, error):
    _, handler, _ = handling(annotation)
    with pytest.raises(InvalidJobError) as caught:
        handler.call(value)
    assert error in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.__context__}"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "grüße"),
        (Point, Point(1, 2)),
        (list[Email], [Email(to="a", copies=3)]),
        (int | None, None),
        (set[str], {"a"}),
        (Decimal, Decimal("1.10")),
        (Annotated[int, Field(gt=3)], 4),
        (Any, {"free": "form"}),
        (Aliased, Aliased(recipient="a@b")),
        (Renamed, Renamed.model_validate({"file": "a", "size": 3})),
        (list[Strange], [Strange.model_validate({"receiver": "b", "names": ["c"], "w": 4})]),
        (Room, Room.model_validate({"width": 2, "settings": "[3]"})),
    ],
    ids=str,
)
async def test_a_payload_and_a_result_come_back_as_they_are_annotated(annotation, value):
    assert [(value, type(value))] * 2 == [(each, type(each)) for each in await there_and_back(annotation, value)]


def test_a_payload_is_written_by_the_aliases_that_are_read_and_otherwise_by_name():
    for annotation, value, payload in (
        (Aliased, Aliased(recipient="a"), b'{"payload":{"recipient":"a"}}'),
        (Renamed, Renamed.model_validate({"file": "a"}), b'{"payload":{"path":"a","size":0}}'),
    ):
        assert payload == handling(annotation)[1].call(value).payload


async def test_a_validation_error_raised_in_a_handler_is_stored_without_its_input():
    worker = Worker()

    @worker.handler("work", max_attempts=1)
    async def work(payload: bytes) -> None:
        Email.model_validate_json(payload)

    async with broker() as queue:
        await queue.enqueue("work", b'{"to": ["%s"]}' % SECRET.encode())
        await drained(worker, queue)
        error = (await only_job(queue)).error
    assert error.startswith("ValidationError: …: Input should be a valid string (tests/worker/test_payloads.py:")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "the handler returned a value of type object that JSON cannot hold as annotated"),
        (b"\xff" + SECRET.encode(), "a value of type bytes that JSON cannot hold"),
        ({SECRET: math.nan}, "a value of type dict; its part … does not come back equal from JSON"),
        (
            "x" * 2_000_000,
            "without its result: the queue refused the ack: the result is 2000002 bytes as JSON; the limit is 1048576",
        ),
    ],
    ids=["object", "bytes", "nan", "large"],
)
async def test_a_job_whose_result_cannot_be_kept_is_done_once_and_its_result_is_missing_with_a_reason(
    value, reason, caplog
):
    caplog.set_level(logging.DEBUG)
    worker, calls = Worker(), []

    @worker.handler("work", keep_result=60)
    async def work(ctx: Context) -> Any:
        ctx.on_ack(Enqueue("next", b""))
        return value

    @worker.handler("batch", batch=2, keep_result=60)
    async def batch(payloads: list[int]) -> list[Any]:
        calls.append(payloads)
        return [value, len(payloads)]

    @worker.handler("odd")
    async def odd() -> Worker:
        return worker

    async with broker() as queue:
        single, own = await work.using(queue).enqueue(), await work.using(queue, keep_result=1).enqueue()
        first, second = await batch.using(queue).enqueue(1), await batch.using(queue).enqueue(2)
        await odd.using(queue).enqueue()  # nobody keeps its result, so its type does not matter
        typed = await odd.using(queue, keep_result=60).enqueue()
        assert RunReport(succeeded=6) == await drained(worker, queue)
        for job in (single, own, first, typed):
            with pytest.raises(ResultNotKeptError):
                await queue.result(job)
        assert (2, [[1, 2]]) == (await queue.result(second), calls)
        assert 2 == len(await queue.dequeue("next", batch_size=9))
        assert [COMPLETED] == [job.status for job in (await queue.read_state()).jobs if job.entrypoint != "next"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert 4 == len(warnings)
    [warning] = [each for each in warnings if typed.id in each]
    assert "handler 'odd', return type: pydantic cannot validate" in warning
    for job in (single, own, first):
        assert any(job.id in each and job.entrypoint in each and reason in each for each in warnings)
    assert SECRET not in caplog.text


# Large payloads

LARGE = bytes(range(256)) * 10
LIMITS = Limits(object_bytes=100, payload_bytes=5000)


async def pieces():
    for _ in range(10):
        yield LARGE


async def test_large_payloads_reach_single_and_batch_handlers_and_one_too_large_to_load_is_refused_with_advice():
    worker, seen = Worker(), list[bytes]()

    @worker.handler("single")
    async def single(payload: bytes) -> None:
        seen.append(payload)

    @worker.handler("batch", batch=10)
    async def batch(payloads: list[bytes]) -> None:
        seen.extend(payloads)

    async with broker(limits=LIMITS) as queue:
        for name in ("single", "batch"):
            await queue.enqueue(name, pieces())
            lost = await queue.enqueue(name, LARGE)
            await queue.storage.remove_object(lost.payload_object.suffix)
            await queue.enqueue_many([Enqueue(name, LARGE), Enqueue(name, b"small")])
        assert RunReport(succeeded=4, dead=2) == await drained(worker, queue)
        errors = [job.error for job in (await queue.read_state()).jobs]
    assert sorted([LARGE, LARGE, b"small", b"small"]) == sorted(seen)
    advice = (
        "the payload has 25600 bytes, too many to load: give the handler only a Context and read pieces with ctx.open"
    )
    assert 2 == len([error for error in errors if error.startswith(advice)])


async def test_a_handler_reads_a_payload_larger_than_memory_in_pieces_on_the_loop_and_in_a_thread():
    worker, seen = Worker(), []

    @worker.handler("film")
    async def film(ctx: Context) -> None:
        assert ctx.job.payload_apart
        seen.append(b"".join([piece async for piece in ctx.open_payload()]))
        ctx.on_ack(Enqueue("next", LARGE))
        await ctx.queue.enqueue("next", pieces())
        with pytest.raises(RuntimeError, match="write `async for"):
            next(iter(ctx.open_payload()))

    @worker.handler("song")
    def song(ctx: Context) -> None:
        seen.append(b"".join(ctx.open_payload()))

    @worker.handler("blind")
    async def blind() -> None: ...

    storage = InMemoryStorage(clock=VirtualClock())
    async with broker(storage, limits=LIMITS) as queue:
        for name in ("film", "song"):
            await queue.enqueue(name, pieces())
        unread = await queue.enqueue("blind", pieces())
        await storage.remove_object(unread.payload_object.suffix)  # a handler without a payload does not miss it
        assert RunReport(succeeded=3) == await drained(worker, queue)
        following = await queue.dequeue("next", batch_size=2)
    assert [LARGE * 10] * 2 == seen
    assert {(LARGE, False), (b"", True)} == {(job.payload, job.payload_apart) for job in following}
