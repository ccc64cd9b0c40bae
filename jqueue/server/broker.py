"""The broker of a queue as an ASGI application: the calls of jqueue's own clients, and HTTP for all programs."""

from __future__ import annotations

from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from jqueue.core.blob_queue import BlobQueue
from jqueue.server.access import TokenFile
from jqueue.server.api import Api
from jqueue.server.calls import Calls, WholeObject
from jqueue.server.intake import Gate, Intake
from jqueue.server.openapi import openapi

NAMES = ("", "/{name}")
"""The beginnings of the paths for clients of jqueue: their URL may name the queue, `jqueue+https://host:8470/queue`."""


def broker(queue: BlobQueue, tokens: TokenFile | None = None, hosts: Collection[str] = ()) -> ASGIApp:
    """Return the broker of a queue as an ASGI application.

    Args:
        queue: the queue. The caller opens it before the first request, and closes it.
        tokens: the tokens; None if every caller is an operator.
        hosts: names of this host that clients may use, besides addresses and `localhost`.
    """
    intake = Intake()
    calls, whole = Calls(queue, intake), WholeObject(queue)
    routes = [
        *(Route(f"{name}/v1/calls", calls, methods=["POST"]) for name in NAMES),
        *(Route(f"{name}/v1/object", whole, methods=["GET"]) for name in NAMES),
        Route("/v1/openapi.json", _description, methods=["GET"]),
        *Api(queue, intake).routes(),
    ]
    return Gate(Router(routes, redirect_slashes=False), tokens, hosts)


async def _description(_: Request) -> Response:
    return Response(openapi(), media_type="application/json")
