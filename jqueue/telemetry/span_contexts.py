"""The contexts of spans: in the headers of jobs, and of the handlers that ran in this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import SpanContext

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits, check_headers

REMEMBERED = 10_000
"""Number of jobs whose last handler span is remembered."""

SYSTEM = "jqueue"


def with_context(headers: Mapping[str, str] | None, limits: Limits) -> dict[str, str] | None:
    """Return the headers of a new job with the current span context, as the program's propagators write it.

    Headers with a context stay as they are. So do headers that would become too large.
    """
    given = dict(headers or {})
    carrier: dict[str, str] = {}
    inject(carrier)
    if carrier.keys() & given.keys():
        return given
    try:
        check_headers({**given, **carrier}, limits)
    except InvalidJobError:
        return given or None
    return {**given, **carrier} or None


def has_context(headers: Mapping[str, str] | None) -> bool:
    """Return True if headers have a span context."""
    return bool(headers) and span_context_in(headers or {}) is not None


def context_in(headers: Mapping[str, str]) -> Context:
    """Return the context in the headers of a job, with its baggage."""
    return extract(dict(headers), context=Context())


def span_context_in(headers: Mapping[str, str]) -> SpanContext | None:
    """Return the span context in the headers of a job; None if there is none."""
    found = trace.get_current_span(context_in(headers)).get_span_context()
    return found if found.is_valid else None


class HandlerContexts:
    """The span contexts of the last handlers of this process, by job."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, SpanContext]] = OrderedDict()

    def note(self, job_id: str, attempt: int, context: SpanContext) -> None:
        """Remember the span of a handler."""
        self._known[job_id] = attempt, context
        self._known.move_to_end(job_id)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def of_attempt(self, job_id: str, attempt: int) -> SpanContext | None:
        """Return the context of the span of an attempt; None if it is not known."""
        known = self._known.get(job_id)
        return known[1] if known is not None and known[0] == attempt else None

    def before(self, job_id: str, attempt: int) -> SpanContext | None:
        """Return the context of the span of the attempt before; None if it is not known."""
        known = self._known.get(job_id)
        return known[1] if known is not None and known[0] < attempt else None
