"""Errors of the broker as problem documents (RFC 9457): an error of the queue has the name of its class."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from jqueue.domain.errors import (
    CASConflictError,
    ChangedMeanwhileError,
    ClaimLostError,
    DuplicateJobError,
    InvalidJobError,
    InvalidURLError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    JQueueError,
    QueueClosedError,
    QueueFullError,
    QueueMissingError,
    ResultNotKeptError,
    ResultTimeoutError,
    StorageError,
    StorageThrottledError,
    UnknownOutcomeError,
    WorkerNotFoundError,
)
from jqueue.domain.operations.codec import refusal_of

MEDIA_TYPE = "application/problem+json"

STATUSES: Mapping[type[JQueueError], int] = {
    InvalidJobError: 422,
    InvalidURLError: 422,
    JobNotFoundError: 404,
    WorkerNotFoundError: 404,
    QueueMissingError: 404,
    ResultNotKeptError: 404,
    ClaimLostError: 409,
    JobStateError: 409,
    JobFailedError: 409,
    DuplicateJobError: 409,
    ChangedMeanwhileError: 409,
    QueueFullError: 429,
    CASConflictError: 503,
    QueueClosedError: 503,
    ResultTimeoutError: 504,
    UnknownOutcomeError: 504,
    StorageError: 503,
    JQueueError: 500,
}
"""The status of each error. A subclass that is not listed has the one of its base."""

LATER: Mapping[type[JQueueError], int] = {QueueFullError: 5, StorageThrottledError: 2, QueueClosedError: 1}
"""Seconds after which a request may be sent again, in the header Retry-After."""


class Problem(Exception):
    """A request that is refused.

    Args:
        status: of the answer.
        title: name of the kind of problem.
        detail: what happened, and what to do.
        retry_after: seconds after which the request may be sent again.
        headers: more headers of the answer.
        about: more members of the document.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)
        self.document = {
            **(about or {}),
            "type": f"urn:jqueue:{title}",
            "title": title,
            "status": status,
            "detail": detail,
        }

    @classmethod
    def of(cls, error: JQueueError) -> Problem:
        """Return the problem for an error of the queue. The text of such an error never shows a payload."""
        kinds = type(error).__mro__
        status = next(STATUSES[kind] for kind in kinds if kind in STATUSES)
        later = next((LATER[kind] for kind in kinds if kind in LATER), 2 if status == 503 else None)
        return cls(status, type(error).__name__, str(error), retry_after=later, about=refusal_of(error).about)

    def response(self) -> Response:
        """Return the answer."""
        return Response(msgspec.json.encode(self.document, enc_hook=str), self.status, self.headers, MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """Return the problem for any error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, JQueueError):
        return Problem.of(error)
    if isinstance(error, HTTPException):  # of a route
        name = HTTPStatus(error.status_code).phrase.replace(" ", "")
        return Problem(error.status_code, name, error.detail, headers=error.headers)
    return Problem(500, "InternalError", f"the broker failed: {type(error).__name__}")
