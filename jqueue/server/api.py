"""HTTP for programs in any language: enqueue, claim, end claims, and look. Each endpoint is a verb of the queue.

Bodies and answers are JSON; `jqueue.server.openapi` describes them. Errors are problem documents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive

from jqueue.core.blob_queue import BlobQueue
from jqueue.core.json_views import ShownEvent, ShownJob, ShownLife, ShownStats, job_values, stats_values
from jqueue.core.messages import check_values
from jqueue.core.view import QueueView
from jqueue.domain.errors import InvalidJobError, JobNotFoundError, QueueMissingError
from jqueue.domain.fields import GivenDuration, Moment
from jqueue.domain.job import Claim, JobStatus
from jqueue.domain.job_options import EnqueueOptions, PriorityOption, options_of
from jqueue.domain.models import Job
from jqueue.domain.operations.dequeue import DequeueOptions
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.ports.queue import Wait, payload_of
from jqueue.ports.sharing import client_name
from jqueue.ports.storage import describe, time_of
from jqueue.server.access import HIDDEN, Caller, check, check_operation, not_signed_in, without_hidden
from jqueue.server.calls import end, is_gone, unless_gone
from jqueue.server.intake import Intake, caller_of
from jqueue.server.past import events_of
from jqueue.server.payloads import text_of
from jqueue.server.problems import Problem
from jqueue.server.view import Viewers

LARGEST_BODY = 64 << 20
"""Bytes of the largest body of a request."""

MOST_WAIT = 60
"""Seconds that a claim may wait: proxies end connections on which nothing happens for longer."""

TURNS = 8
"""Turns of the event loop until a connection that has ended is noticed."""

MOST_EVENTS = 1000
"""Largest number of events in an answer."""


def _options(listed: type, names: Mapping[str, str] | None = None) -> Iterator[tuple[str, Any, Any]]:
    """Yield the options of a verb as fields of a record."""
    hints = get_type_hints(listed, include_extras=True)
    for name, option in options_of(listed).items():
        kind: Any = Annotated[hints[name].__origin__, Meta(description=option.description.replace("None", "null"))]
        yield (names or {}).get(name, name), kind, option.default


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A body, or the query of a URL."""


class Payload(_Body, frozen=True):
    """The payload of a job, given in one of three ways, or not at all.

    Attributes:
        payload: bytes in Base64.
        text: text, which becomes UTF-8.
        json: any JSON value, which is kept as it is written.
    """

    payload: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET
    json: Raw | UnsetType = UNSET

    def content(self) -> bytes:
        """Return the payload.

        Raises:
            InvalidJobError: it is given in more than one way.
        """
        forms = [each for each in (self.payload, self.text, self.json) if not isinstance(each, UnsetType)]
        if len(forms) > 1:
            raise InvalidJobError("give one of payload, text and json")
        return b"".join(each.encode() if isinstance(each, str) else bytes(each) for each in forms)


NewJob: Any = msgspec.defstruct(
    "NewJob",
    [
        ("entrypoint", Annotated[str, Meta(min_length=1, description="name of the handler.")]),
        *_options(PriorityOption),
        *_options(EnqueueOptions, {"job_id": "id"}),
    ],
    bases=(Payload,),
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)
"""A job to enqueue: its options are those of `enqueue`."""

_CallName = Annotated[str, Meta(pattern="^[!-~]{1,100}$")]
_CALL = (
    "name of the call, of at most 100 visible ASCII characters. Draw a new one for each call. If the answer is lost, "
    "send the call again: with the same token and name it gets the same jobs."
)

NewClaim: Any = msgspec.defstruct(
    "NewClaim",
    [
        ("entrypoints", Annotated[list[str] | None, Meta(description="entrypoints of the jobs; null for all.")], None),
        ("call", Annotated[_CallName | None, Meta(description=_CALL)], None),
        *_options(DequeueOptions),
    ],
    bases=(_Body,),
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)
"""A wish for jobs: its options are those of `dequeue`."""


class WaitQuery(_Body, frozen=True):
    """The query of a claim: the seconds to wait for the first job if none is ready."""

    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT)] = 0


class Done(_Body, frozen=True):
    """The end of a job: its result, a JSON value, is kept if the job was enqueued with `keep_result`."""

    result: Any = None


class Failed(_Body, frozen=True):
    """The end of a claim without success.

    Attributes:
        delay: minimum time until the job can be claimed again.
        error: text to keep with the job.
        dead: true if the job must not be tried again.
        charge: false hands the job back unharmed: no failure is counted, and it keeps its place.
    """

    delay: GivenDuration | None = None
    error: str | None = None
    dead: bool = False
    charge: bool = True


class Choice(_Body, frozen=True):
    """The query of a history."""

    id: str | UnsetType = UNSET
    entrypoint: str | UnsetType = UNSET
    since: Moment | UnsetType = UNSET
    until: Moment | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 100


class FoundJob(ShownLife):
    """A job with its payload, or without it if the role of the caller does not allow to see it.

    Attributes:
        headers: null if they may not be seen.
        payload: in Base64; null if it may not be seen, or is too large to be handed out.
        text: the payload, if it is UTF-8.
        result: of a completed job.
    """

    headers: dict[str, str] | None
    payload: bytes | None
    text: str | None
    result: Any


class EnqueuedJobs(msgspec.Struct):
    """The jobs of a list, in its order."""

    jobs: list[ShownJob]


class ClaimedJobs(msgspec.Struct):
    """The claimed jobs; none if none was ready."""

    jobs: list[FoundJob]


class Events(msgspec.Struct):
    """Events, the newest first.

    Attributes:
        events: the events.
        more: true if there may be more.
        missing: the reason why events are missing; null if none is.
    """

    events: list[ShownEvent]
    more: bool
    missing: str | None


@dataclass(frozen=True)
class Call:
    """A request that was read.

    Attributes:
        caller: its sender.
        receive: returns what else comes from the sender.
        body: the record of its body; None without one.
        query: the record of the query.
        path: the values in the path.
    """

    caller: Caller
    receive: Receive
    body: Any
    query: Any
    path: Mapping[str, str]

    @property
    def claim(self) -> Claim:
        """The claim that the path names.

        Raises:
            InvalidJobError: the attempt is no number.
        """
        attempt = self.path["attempt"]
        if not attempt.isascii() or not attempt.isdigit() or len(attempt) > 16:
            raise InvalidJobError("the attempt in the path must be a number")
        return Claim(self.path["id"], int(attempt))


@dataclass(frozen=True)
class Endpoint:
    """One method on one path.

    Attributes:
        request: the method of HTTP and the path, with names in braces, as in the table of rights.
        name: its name in the description.
        summary: its description, one line.
        answers: the types that its answer may have; none if it has no content.
        body: the type of the body; None for none.
        query: the record of the query.
        errors: more statuses that it may have.
    """

    request: str
    name: str
    summary: str
    answers: tuple[Any, ...]
    body: Any
    query: type[_Body]
    errors: tuple[int, ...]


ENDPOINTS: list[Endpoint] = []
"""Every endpoint but those of jqueue's own clients and of the description."""

Verb = TypeVar("Verb", bound=Callable[..., Any])


def _endpoint(
    request: str, *answers: Any, body: Any = None, query: type[_Body] = _Body, errors: tuple[int, ...] = ()
) -> Callable[[Verb], Verb]:
    """List a method of `Api` as an endpoint: see `Endpoint`. Its docstring is the summary."""

    def listed(verb: Verb) -> Verb:
        summary = " ".join((verb.__doc__ or "").split())
        ENDPOINTS.append(Endpoint(request, verb.__name__, summary, answers, body, query, errors))
        return verb

    return listed


_CLAIM = "POST /v1/claims/{id}/{attempt}"


class Api:
    """The endpoints.

    Args:
        queue: the queue, which is open.
        intake: reads the bodies.
    """

    def __init__(self, queue: BlobQueue, intake: Intake) -> None:
        self._queue, self._intake = queue, intake
        self._viewers = Viewers(queue, queue.options.clock)
        self._view: QueueView | None = None
        self._looking = asyncio.Lock()
        self._waits: dict[str, Wait] = {}  # of the last claim under way with each name

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        requests = [(each.request.replace("{id}", "{id:path}").split(), self._serving(each)) for each in ENDPOINTS]
        return [Route(path, serve, methods=[method]) for (method, path), serve in requests]

    def _serving(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """Return the function that answers the requests of an endpoint."""
        verb: Callable[[Call], Awaitable[Any]] = getattr(self, endpoint.name)
        decoder = None if endpoint.body is None else msgspec.json.Decoder(endpoint.body)

        async def serve(request: Request) -> Response:
            caller, receive = caller_of(request.scope), request.receive
            check(caller.role, endpoint.request)
            async with self._intake.body(request.scope, receive, LARGEST_BODY) as data:
                check_values(data)
                try:
                    query = msgspec.convert(dict(request.query_params), endpoint.query, strict=False)
                    body = None if decoder is None else decoder.decode(data or b"{}")
                except (msgspec.ValidationError, OverflowError) as error:
                    raise InvalidJobError(f"the request is wrong: {error}") from None
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    raise Problem(400, "NotJSON", f"the body is not JSON: {error}") from None
                work = verb(Call(caller, receive, body, query, request.path_params))
                answer = await (work if endpoint.name == "claim" else unless_gone(receive, work))
            content = msgspec.json.encode(answer) if endpoint.answers else None
            status, kind = (200, "application/json") if endpoint.answers else (204, None)
            return Response(content, status, {"Cache-Control": "no-store"}, kind)

        return serve

    @_endpoint("POST /v1/jobs", ShownJob, EnqueuedJobs, body=NewJob | list[NewJob], errors=(409,))
    async def enqueue(self, call: Call) -> Any:
        """Enqueue a job, or a list of jobs all together or none of them. A job with an `id` is added at most once."""
        queue, is_list = self._queue, isinstance(call.body, list)
        if is_list and len(call.body) > (most := queue.options.limits.batch_size):
            raise InvalidJobError(f"a list may have at most {most} jobs")
        enqueues = [_enqueue_of(each) for each in (call.body if is_list else [call.body])]
        for each in enqueues:
            check_operation(call.caller.role, each)
        jobs = await (queue.enqueue_many(enqueues) if is_list else queue.apply(*enqueues))
        shown = [job_values(job, self._now()) for job in jobs]
        return {"jobs": shown} if is_list else shown[0]

    @_endpoint("GET /v1/jobs/{id}", FoundJob, errors=(404,))
    async def find(self, call: Call) -> Any:
        """Look at a job."""
        queue, job_id = self._queue, call.path["id"]
        async with self._looking:  # one at a time: each reads the whole object if it has changed
            self._view = view = await queue.view(self._view)
        if view.absent:
            raise QueueMissingError(queue.storage)
        job = await view.find(job_id)
        if job is None:
            gone = f"job {job_id!r} has finished" if job_id in view.header.finished else None
            raise JobNotFoundError(job_id, gone)
        seen = "payload" not in HIDDEN[call.caller.role]
        if seen and job.payload_apart and job.payload_object is not None and job.payload_object.size <= LARGEST_BODY:
            job = job.model_copy(update={"payload": b"".join([piece async for piece in payload_of(queue, job)])})
        result = job.result
        if job.status is JobStatus.COMPLETED and job.result_object is not None:
            result = await queue.result(job, timeout=0)
        return without_hidden(call.caller.role, self._found(job) | {"result": result})

    @_endpoint("POST /v1/claims", ClaimedJobs, body=NewClaim, query=WaitQuery)
    async def claim(self, call: Call) -> Any:
        """Claim ready jobs, and wait for the first one. If the answer is lost, a repeated `call` gets the same jobs."""
        options, wait = msgspec.structs.asdict(call.body), Wait(call.query.wait)
        name, names = options.pop("call"), options.pop("entrypoints")
        dequeue: Callable[..., Awaitable[list[Job]]] = self._queue.dequeue
        if name is not None:
            caller = client_name(call.caller.name, call.caller.token_hash)
            name = f"{caller} {name}"  # no name of a token has a space: nobody gets another one's jobs
            dequeue = partial(self._queue.dequeue_again, name)
            if (before := self._waits.get(name)) is not None:
                before.end()
            self._waits[name] = wait
        gone = asyncio.ensure_future(is_gone(call.receive))
        gone.add_done_callback(lambda _: wait.end())
        try:
            jobs = await dequeue(names, wait=wait or None, **options)
            for _ in range(TURNS if jobs else 0):
                await asyncio.sleep(0)
            if not gone.done() and call.caller.is_known():  # or else the jobs go back, unless the call was repeated
                return {"jobs": [without_hidden(call.caller.role, self._found(job)) for job in jobs]}
            if name is None or self._waits.get(name) is wait:
                await self._queue.nack_many(jobs, charge=False)
            raise Problem(400, "Disconnected", "the client is gone") if gone.done() else not_signed_in()
        finally:
            if name is not None and self._waits.get(name) is wait:
                del self._waits[name]
            await end(gone)

    @_endpoint(f"{_CLAIM}/ack", body=Done, errors=(404, 409))
    async def ack(self, call: Call) -> None:
        """Finish a claimed job."""
        await self._queue.ack(call.claim, result=call.body.result)

    @_endpoint(f"{_CLAIM}/nack", body=Failed, errors=(404, 409))
    async def nack(self, call: Call) -> None:
        """Give a claimed job back."""
        await self._queue.nack(call.claim, **msgspec.structs.asdict(call.body))

    @_endpoint(f"{_CLAIM}/heartbeat", errors=(404, 409))
    async def heartbeat(self, call: Call) -> None:
        """Say that the work on a claimed job goes on. JobCancelledError says that it was cancelled: nack it."""
        await self._queue.heartbeat(call.claim)

    @_endpoint("GET /v1/stats", ShownStats, errors=(404,))
    async def stats(self, call: Call) -> Any:
        """Show the figures of the queue."""
        view = await self._viewers.look()
        if view.queue.absent:
            raise QueueMissingError(self._queue.storage)
        return stats_values(describe(self._queue.storage), view.queue, view.stats, view.now)

    @_endpoint("GET /v1/history", Events, query=Choice, errors=(404,))
    async def history(self, call: Call) -> Any:
        """List what happened to jobs, the newest event first. A queue keeps a history if it was configured to."""
        query = {name: value for name, value in msgspec.structs.asdict(call.query).items() if value is not UNSET}
        return await events_of(self._queue, query.pop("limit"), job_id=query.pop("id", None), **query)

    def _now(self) -> datetime:
        return time_of(self._queue, self._queue.options.clock)

    def _found(self, job: Job) -> dict[str, Any]:
        """Return the values of a `FoundJob`. Its result is left out."""
        payload = None if job.payload_apart else job.payload
        text = None if payload is None else text_of(payload, whole=True)
        shown = job_values(job, self._now(), ShownLife)
        return {**shown, "headers": dict(job.headers), "payload": payload, "text": text, "result": None}


def _enqueue_of(new_job: Any) -> Enqueue:
    options = msgspec.structs.asdict(new_job)
    for name in Payload.__struct_fields__:
        del options[name]
    return Enqueue(options.pop("entrypoint"), new_job.content(), job_id=options.pop("id"), **options)
