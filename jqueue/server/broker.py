"""The broker of a queue as an ASGI application: the calls of jqueue's own clients, and HTTP for all programs."""

from __future__ import annotations

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from jqueue.core.blob_queue import BlobQueue
from jqueue.domain.errors import JQueueError
from jqueue.server.access import TokenFile
from jqueue.server.calls import Calls
from jqueue.server.intake import Gate, Intake
from jqueue.server.problems import Problem, answer_problem


def broker(queue: BlobQueue, tokens: TokenFile | None = None, hosts: Collection[str] = ()) -> ASGIApp:
    """Return the broker of a queue as an ASGI application.

    Args:
        queue: the queue. The caller opens it before the first request, and closes it.
        tokens: the tokens; None if every caller is an operator.
        hosts: names of this host that clients may use, besides addresses and `localhost`.
    """
    intake = Intake()
    app = Starlette(
        routes=[Route("/v1/calls", Calls(queue, intake), methods=["POST"])],
        exception_handlers={
            Problem: answer_problem,
            HTTPException: answer_problem,
            JQueueError: answer_problem,
            Exception: answer_problem,
        },
    )
    return Gate(app, tokens, hosts)
