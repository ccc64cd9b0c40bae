"""Errors of the broker as problem documents (RFC 9457): an error of the queue has the name of its class."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from jqueue.domain import errors
from jqueue.domain.errors import JQueueError
from jqueue.domain.operations.codec import refusal_of

MEDIA_TYPE = "application/problem+json"

STATUSES: Mapping[type[JQueueError], int] = {
    errors.InvalidJobError: 422,
    errors.InvalidURLError: 422,
    errors.JobNotFoundError: 404,
    errors.WorkerNotFoundError: 404,
    errors.QueueMissingError: 404,
    errors.ResultNotKeptError: 404,
    errors.ClaimLostError: 409,
    errors.JobStateError: 409,
    errors.ResultWantedError: 409,
    errors.GroupEndedError: 409,
    errors.JobFailedError: 409,
    errors.DuplicateJobError: 409,
    errors.ChangedMeanwhileError: 409,
    errors.QueueFullError: 429,
    errors.CASConflictError: 503,
    errors.QueueClosedError: 503,
    errors.ResultTimeoutError: 504,
    errors.UnknownOutcomeError: 504,
    errors.StorageError: 503,
    JQueueError: 500,
}
"""The status of each error. A subclass that is not listed has the one of its base."""

LATER: Mapping[type[JQueueError], int] = {
    errors.QueueFullError: 5,
    errors.StorageThrottledError: 2,
    errors.QueueClosedError: 1,
}
"""Seconds after which a request may be sent again, in the header Retry-After."""


Headers = Mapping[str, Any]
NONE: Headers = {}


class Problem(Exception):
    """A request that is refused.

    Args:
        status: of the answer.
        title: name of the kind of problem.
        detail: what happened, and what to do.
        headers: more headers of the answer.
        about: more members of the document.
    """

    def __init__(self, status: int, title: str, detail: str, headers: Headers = NONE, about: Headers = NONE) -> None:
        super().__init__(detail)
        self.status: int = status
        self.headers: dict[str, str] = dict(headers)
        document = {"type": f"urn:jqueue:{title}", "title": title, "status": status, "detail": detail}
        self.document: dict[str, Any] = {**about, **document}

    def response(self) -> Response:
        """Return the answer."""
        return Response(msgspec.json.encode(self.document, enc_hook=str), self.status, self.headers, MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """Return the problem for any error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, JQueueError):  # whose text never shows a payload
        kinds = type(error).__mro__
        status = next(STATUSES[kind] for kind in kinds if kind in STATUSES)
        later = next((LATER[kind] for kind in kinds if kind in LATER), 2 if status == 503 else None)
        headers = NONE if later is None else {"Retry-After": str(later)}
        return Problem(status, type(error).__name__, str(error), headers, refusal_of(error).about)
    if isinstance(error, HTTPException):  # of a route
        name = HTTPStatus(error.status_code).phrase.replace(" ", "")
        return Problem(error.status_code, name, error.detail, error.headers or NONE)
    return Problem(500, "InternalError", f"the broker failed: {type(error).__name__}")
