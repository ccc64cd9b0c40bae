"""The dashboard as an ASGI application: the page, its files, the figures as JSON, and the actions."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import asdict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.domain.operations.groups import status_of
from jqueue.ports.clock import Clock
from jqueue.ports.queue import JobQueue
from jqueue.runtime.system import SystemClock
from jqueue.server import actions, page
from jqueue.server.access import ACCESS, OF_THE_PAGE, Authorize, Role, Tokens, without_hidden
from jqueue.server.jobs import Searches, dead_groups, job_details, job_page, query_of
from jqueue.server.past import SPANS, Lives, timeline
from jqueue.server.payloads import payload_of, result_of
from jqueue.server.shield import Shield
from jqueue.server.view import Viewers, name_of, overview

Answer = Callable[[Request], Awaitable[dict[str, Any]]]
"""Returns the values of an answer."""

LARGEST_BODY = 64 << 10
"""Bytes of the largest request that is read."""


def dashboard(
    queue: JobQueue,
    *,
    authorize: Authorize,
    hosts: Collection[str] | None = None,
    clock: Clock | None = None,
    others: Sequence[JobQueue] = (),
) -> ASGIApp:
    """Return the dashboard of a queue as an ASGI application. An application mounts it below any path.

    Args:
        queue: any queue of jqueue. The caller opens and closes it.
        authorize: called with every request for data, a `starlette.requests.Request`. It returns the user's role,
            "viewer" or "operator", or None to refuse the request. It may be a coroutine function.
        hosts: names under which the page may be reached; None accepts every name, which is right behind an application
            that checks the `Host` header itself.
        clock: the machine's clock by default.
        others: further queues for the same users. The page has an overview of all, and a page for each.
    """
    queues, clock = (queue, *others), clock or SystemClock()
    names = [name_of(each) for each in queues]
    first, *rest = (_Dashboard(each, authorize, clock, names, place).routes() for place, each in enumerate(queues))
    mounts = [Mount(f"/queues/{place}", routes=routes) for place, routes in enumerate(rest, 1)]
    return Shield(Router([*first, *mounts]), hosts)


class _Dashboard:
    """The routes."""

    def __init__(self, queue: JobQueue, authorize: Authorize, clock: Clock, names: Sequence[str], place: int) -> None:
        self._queue = queue
        self._queues = {"queues": names, "place": place}
        self._authorize = authorize
        self._clock = clock
        self._viewers = Viewers(queue, clock)
        self._lives, self._searches = Lives(queue, clock), Searches(clock)
        self._reading_past = asyncio.Lock()  # an hour of a busy queue is much to read: one viewer at a time

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        values: dict[str, Answer] = {
            "GET /api/job": self._job,
            "GET /api/job/events": self._events,
            "GET /api/job/payload": partial(self._value, payload_of),
            "GET /api/job/result": partial(self._value, result_of),
            "GET /api/jobs": self._jobs,
            "POST /api/jobs": self._jobs,
            "GET /api/dead": self._dead,
            "GET /api/timeline": self._timeline,
            "POST /api/actions/{name}": self._act,
        }

        def route(request: str, answer: Answer) -> Route:
            async def checked(asked: Request) -> Response:
                role = await self._role(asked)
                if role not in ACCESS[request]:
                    raise HTTPException(403, "you may look at this queue, but not change it or see payloads")
                return JSONResponse(without_hidden(role, await answer(asked)))

            method, path = request.split()
            return Route(path, checked, methods=[method])

        return [
            *(Route(f"/{name}", self._file, methods=["GET"]) for name in ("", *page.files())),
            Route("/healthz", lambda _: Response("the dashboard's server is alive\n"), methods=["GET"]),
            Route("/api/session", self._session, methods=["POST", "DELETE"]),
            Route("/api/overview", self._overview, methods=["GET"]),
            *(route(request, answer) for request, answer in values.items()),
        ]

    # The page

    async def _file(self, request: Request) -> Response:
        name = request.scope["path"].rpartition("/")[2] or page.INDEX
        return Response(page.read(name), media_type=page.media_type(name))

    async def _session(self, request: Request) -> Response:
        """Exchange the token of the printed link for a cookie, or drop the cookie."""
        tokens, root = self._authorize, request.scope.get("root_path", "")
        path = root.removesuffix(f"/queues/{self._queues['place']}") or "/"
        if not isinstance(tokens, Tokens):
            raise HTTPException(403, "the token is wrong")
        answer = JSONResponse({"done": 1})
        if request.method == "DELETE":
            answer.delete_cookie(tokens.cookie, path=path)
            return answer
        token = (await _body(request)).get("token")
        value = tokens.session(token) if isinstance(token, str) else None
        if value is None:
            raise HTTPException(403, "the token is wrong: use the link that `jqueue dashboard` has printed last")
        secure = "https" in (request.url.scheme, request.headers.get("origin", "").partition(":")[0])  # behind a proxy
        answer.set_cookie(tokens.cookie, value, httponly=True, samesite="strict", secure=secure, path=path)
        return answer

    # Looking

    async def _overview(self, request: Request) -> Response:
        role = await self._role(request)
        view = await self._viewers.look()
        etag = f'"{view.etag}-{role}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304)
        table = actions.actions_of(self._queue) if role is Role.OPERATOR else {}
        values = {"role": role, "actions": table, "session": isinstance(self._authorize, Tokens), **self._queues}
        return JSONResponse({**values, **overview(self._queue, view)}, headers={"ETag": etag})

    async def _jobs(self, request: Request) -> dict[str, Any]:
        asked = dict(request.query_params) if request.method == "GET" else await _body(request)
        query, order = query_of(asked), asked.get("order", "served")
        if request.method == "GET" and query.reads_payloads:
            raise InvalidJobError("send a part of a payload in the body of a POST: logs show addresses")
        try:
            start = msgspec.convert(asked.get("start", 0), Annotated[int, Meta(ge=0, le=10**9)], strict=False)
        except msgspec.ValidationError:
            raise InvalidJobError("'start' must be a number of jobs") from None
        searches = self._searches if asked.get("all") else None
        return await job_page(await self._viewers.look(), query, order, start, searches)

    async def _dead(self, _: Request) -> dict[str, Any]:
        return await dead_groups(await self._viewers.look())

    async def _job(self, request: Request) -> dict[str, Any]:
        view = await self._viewers.look()
        job = await self._found(request)
        group = view.header.groups.get(job.group or "")
        more: dict[str, Any] = {} if group is None else {"group_status": asdict(status_of(job.group or "", group))}
        return {
            **job_details(job, view.now),
            **more,
            "children": view.queue.children_of(job),
            "why_waiting": await view.queue.why_waits(job, view.now),
        }

    async def _value(self, read: Callable[..., Awaitable[dict[str, Any]]], request: Request) -> dict[str, Any]:
        return await read(self._queue, await self._found(request))

    async def _events(self, request: Request) -> dict[str, Any]:
        return await self._lives.look(await self._viewers.look(), request.query_params.get("id", ""))

    async def _timeline(self, request: Request) -> dict[str, Any]:
        view = await self._viewers.look()
        async with self._reading_past:
            asked = request.query_params
            return await timeline(self._queue, view, asked.get("entrypoint") or None, asked.get("span", SPANS[0]))

    async def _found(self, request: Request) -> Job:
        job_id = request.query_params.get("id", "")
        view = await self._viewers.look()
        job = await view.queue.find(job_id)
        if job is None:
            done = job_id in view.header.finished
            raise HTTPException(404, "this job has finished" if done else "there is no job with this id in the queue")
        return job

    # Acting

    async def _act(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        if name not in actions.ACTIONS:
            raise HTTPException(404, "there is no such action")
        body = await _body(request)
        view = await self._viewers.look(fresh=True)
        user = self._authorize.user(request) if isinstance(self._authorize, Tokens) else None
        asked_by = None if user is None else user.name
        try:
            return await actions.Request(name, self._queue, view, body, self._clock, asked_by).done()
        finally:
            self._viewers.forget()

    # Rights

    async def _role(self, request: Request) -> Role:
        role = self._authorize(request)
        if inspect.isawaitable(role):
            role = await role
        if role is None and isinstance(self._authorize, Tokens):
            raise HTTPException(
                401, "you are not signed in: use the link that `jqueue dashboard` has printed, or a token"
            )
        if role not in OF_THE_PAGE:
            raise HTTPException(403, "you may not look at this queue")
        return Role(role)


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
