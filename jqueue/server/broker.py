"""The broker of a queue as an ASGI application: the calls of jqueue's own clients, and HTTP for all programs."""

from __future__ import annotations

from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from jqueue.core.blob_queue import BlobQueue
from jqueue.runtime.system import SystemEntropy
from jqueue.server.access import Role, TokenFile, Tokens
from jqueue.server.api import Api
from jqueue.server.app import dashboard
from jqueue.server.calls import Calls, WholeObject
from jqueue.server.intake import PATIENCE, Gate, Intake
from jqueue.server.openapi import openapi

NAMES = ("", "/{name}")
"""The beginnings of the paths for clients of jqueue: their URL may name the queue, `jqueue+https://host:8470/queue`."""


def broker(
    queue: BlobQueue,
    tokens: TokenFile | None = None,
    hosts: Collection[str] = (),
    patience: float = PATIENCE,
    cookie: str = "jqueue-broker",
) -> ASGIApp:
    """Return the broker of a queue as an ASGI application, with its dashboard beside it.

    Args:
        queue: the queue. The caller opens it before the first request, and closes it.
        tokens: the tokens; None if every caller is an operator.
        hosts: names of this host that clients may use, besides addresses and `localhost`.
        patience: seconds in which a client must go on with its request.
        cookie: name of the cookie of the dashboard.
    """
    intake = Intake(patience)
    calls, whole = Calls(queue, intake), WholeObject(queue)
    routes = [
        *(Route(f"{name}/v1/calls", calls, methods=["POST"]) for name in NAMES),
        *(Route(f"{name}/v1/object", whole, methods=["GET"]) for name in NAMES),
        Route("/v1/openapi.json", _description, methods=["GET"]),
        *Api(queue, intake).routes(),
    ]
    gate = Gate(Router(routes, redirect_slashes=False), tokens, hosts)
    secret = SystemEntropy().new_id() + SystemEntropy().new_id()
    authorize = (lambda _: Role.OPERATOR) if tokens is None else Tokens(tokens, cookie, secret.encode())
    page = dashboard(queue, authorize=authorize, hosts=hosts)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_call = scope["type"] == "http" and "/v1/" in scope["path"]
        await (gate if is_call else page)(scope, receive, send)

    return app


async def _description(_: Request) -> Response:
    return Response(openapi(), media_type="application/json")
