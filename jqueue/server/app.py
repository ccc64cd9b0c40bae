"""The dashboard as an ASGI application: the page, its files, the figures as JSON, and the actions."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from jqueue.domain.errors import (
    InvalidJobError,
    JQueueError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.models import Job
from jqueue.ports.clock import Clock
from jqueue.ports.queue import JobQueue
from jqueue.runtime.system import SystemClock
from jqueue.server import actions, page
from jqueue.server.access import OF_THE_PAGE, Authorize, Role, Tokens
from jqueue.server.jobs import Query, dead_groups, job_details, job_page, query_of
from jqueue.server.overview import overview
from jqueue.server.past import events_of_job, timeline
from jqueue.server.payloads import payload_of, result_of
from jqueue.server.shield import Shield
from jqueue.server.view import Viewers, name_of

LARGEST_BODY = 64 << 10
"""Bytes of the largest request that is read."""


def dashboard(
    queue: JobQueue,
    *,
    authorize: Authorize,
    hosts: Collection[str] | None = None,
    clock: Clock | None = None,
) -> ASGIApp:
    """Return the dashboard of a queue as an ASGI application. An application mounts it below any path.

    Args:
        queue: any queue of jqueue. The caller opens and closes it.
        authorize: called with every request for data, a `starlette.requests.Request`. It returns the user's role,
            "viewer" or "operator", or None to refuse the request. It may be a coroutine function.
        hosts: names under which the page may be reached; None accepts every name, which is right behind an application
            that checks the `Host` header itself.
        clock: the machine's clock by default.
    """
    return Shield(_Dashboard(queue, authorize, clock or SystemClock()).application(), hosts)


class _Dashboard:
    """The routes."""

    def __init__(self, queue: JobQueue, authorize: Authorize, clock: Clock) -> None:
        self._queue = queue
        self._authorize = authorize
        self._viewers = Viewers(queue, clock)
        self._name = name_of(queue)
        self._reading_past = asyncio.Lock()  # an hour of a busy queue is much to read: one viewer at a time

    def application(self) -> Starlette:
        """Return the application."""
        files = [Route(f"/{name}", self._file, methods=["GET"]) for name in page.files()]
        return Starlette(
            routes=[
                Route("/", self._index, methods=["GET"]),
                *files,
                Route("/api/session", self._session, methods=["POST"]),
                Route("/api/overview", self._overview, methods=["GET"]),
                Route("/api/jobs", self._jobs, methods=["GET", "POST"]),
                Route("/api/job", self._job, methods=["GET"]),
                Route("/api/job/payload", self._payload, methods=["GET"]),
                Route("/api/job/result", self._result, methods=["GET"]),
                Route("/api/job/events", self._events, methods=["GET"]),
                Route("/api/dead", self._dead, methods=["GET"]),
                Route("/api/timeline", self._timeline, methods=["GET"]),
                Route("/api/actions/{name}", self._act, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _refused, JQueueError: _failed},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        first = asyncio.create_task(self._first_look())
        yield
        first.cancel()

    async def _first_look(self) -> None:
        """Read the queue before the first viewer asks."""
        with suppress(JQueueError):  # the page says why, as long as it lasts
            await self._viewers.look()

    # The page

    async def _index(self, request: Request) -> Response:
        return Response(page.read("index.html"), media_type="text/html; charset=utf-8")

    async def _file(self, request: Request) -> Response:
        name = request.scope["path"].rpartition("/")[2]
        return Response(page.read(name), media_type=page.media_type(name))

    async def _session(self, request: Request) -> Response:
        """Exchange the token of the printed link for a cookie."""
        body = await _body(request)
        if not isinstance(self._authorize, Tokens) or not isinstance(token := body.get("token"), str):
            raise HTTPException(403, "the token is wrong")
        value = self._authorize.session(token)
        if value is None:
            raise HTTPException(403, "the token is wrong: use the link that `jqueue dashboard` has printed last")
        answer = JSONResponse({"done": 1})
        secure = request.url.scheme == "https"
        path = request.scope.get("root_path", "") or "/"
        answer.set_cookie(self._authorize.cookie, value, httponly=True, samesite="strict", secure=secure, path=path)
        return answer

    # Looking

    async def _overview(self, request: Request) -> Response:
        role = await self._role(request)
        view = await self._viewers.look()
        if request.headers.get("if-none-match") == f'"{view.etag}-{role}"':
            return Response(status_code=304)
        allowed = actions.actions_of(self._queue) if role is Role.OPERATOR else {}
        values = {"name": self._name, "role": role, "actions": allowed, **overview(view)}
        return JSONResponse(values, headers={"ETag": f'"{view.etag}-{role}"'})

    async def _jobs(self, request: Request) -> Response:
        if request.method == "POST":
            await self._operator(request)
            body = await _body(request)
            if not all(isinstance(text, str) for text in body.values()):
                raise InvalidJobError("the filters must be texts")
            return await self._list(body, query_of(body))
        await self._role(request)
        if "payload" in request.query_params:
            raise InvalidJobError("send a part of a payload in the body of a POST: logs show addresses")
        return await self._list(request.query_params, query_of(request.query_params))

    async def _list(self, asked: Mapping[str, str], query: Query) -> Response:
        start = _natural(asked.get("start", "0"))
        return JSONResponse(await job_page(await self._viewers.look(), query, asked.get("order", "served"), start))

    async def _dead(self, request: Request) -> Response:
        await self._role(request)
        return JSONResponse(await dead_groups(await self._viewers.look()))

    async def _job(self, request: Request) -> Response:
        await self._role(request)
        view = await self._viewers.look()
        return JSONResponse(job_details(await self._found(request), view.now))

    async def _payload(self, request: Request) -> Response:
        await self._operator(request)
        return JSONResponse(await payload_of(self._queue, await self._found(request)))

    async def _result(self, request: Request) -> Response:
        await self._operator(request)
        return JSONResponse(await result_of(self._queue, await self._found(request)))

    async def _events(self, request: Request) -> Response:
        await self._role(request)
        return JSONResponse(await events_of_job(self._queue, request.query_params.get("id", "")))

    async def _timeline(self, request: Request) -> Response:
        await self._role(request)
        view = await self._viewers.look()
        async with self._reading_past:
            return JSONResponse(await timeline(self._queue, view, request.query_params.get("entrypoint") or None))

    async def _found(self, request: Request) -> Job:
        job_id = request.query_params.get("id", "")
        view = await self._viewers.look()
        job = await view.queue.find(job_id)
        if job is None:
            done = job_id in view.header.finished
            raise HTTPException(404, "this job has finished" if done else "there is no job with this id in the queue")
        return job

    # Acting

    async def _act(self, request: Request) -> Response:
        await self._operator(request)
        name = request.path_params["name"]
        if name not in actions.ACTIONS:
            raise HTTPException(404, "there is no such action")
        body = await _body(request)
        view = await self._viewers.look(fresh=True)
        try:
            return JSONResponse(await actions.Request(name, self._queue, view, body).done())
        finally:
            self._viewers.forget()

    # Rights

    async def _role(self, request: Request) -> Role:
        found = self._authorize(request)
        if inspect.isawaitable(found):
            found = await found
        if found is None and isinstance(self._authorize, Tokens):
            raise HTTPException(
                401, "you are not signed in: use the link that `jqueue dashboard` has printed, or a token"
            )
        if found not in OF_THE_PAGE:
            raise HTTPException(403, "you may not look at this queue")
        return Role(found)

    async def _operator(self, request: Request) -> None:
        if await self._role(request) is not Role.OPERATOR:
            raise HTTPException(403, "you may look at this queue, but not change it or see payloads")


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidJobError("'start' must be a number of jobs")
    return int(text)


async def _body(request: Request) -> Mapping[str, Any]:
    """Return the JSON object that a request carries."""
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > LARGEST_BODY:
            raise HTTPException(413, "the request is too long")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the request must be a JSON object")
    return body


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "token" if error.status_code == 401 else "refused"
    return JSONResponse({"error": error.detail, "kind": kind}, error.status_code)


async def _failed(_: Request, error: Exception) -> Response:
    """Return what a queue has answered. The message of an error of the queue never shows a payload."""
    if isinstance(error, UnknownOutcomeError):
        return JSONResponse({"error": str(error), "kind": "unknown"}, 503)
    if isinstance(error, actions.CHANGED):
        return JSONResponse({"error": str(error), "kind": "changed"}, 409)
    if isinstance(error, StorageError):
        return JSONResponse({"error": str(error), "kind": "store"}, 503)
    return JSONResponse({"error": str(error), "kind": "invalid"}, 400)
