"""The value that a batch handler returns: one result for each of its jobs, or an error in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def results_of(value: Any, count: int) -> Sequence[Any]:
    """Return the result of each job, or the exception with which it failed.

    Args:
        value: the value that the handler returned. None: all jobs succeeded, without a result.
        count: number of jobs in the batch.

    Raises:
        TypeError: the value is neither None nor a list.
        ValueError: it has more or fewer results than the batch has jobs.
    """
    if value is None:
        return [None] * count
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        raise TypeError(
            f"a batch handler must return None or a list with one result for each job, got {type(value).__name__}"
        )
    if len(value) != count:
        raise ValueError(f"the batch handler returned {len(value)} results for {count} jobs: return one for each")
    return value


def error_in(result: Any) -> BaseException | None:
    """Return the exception that a batch handler returned in the place of a result; None for any other result.

    An exception class counts as its exception, as it does after `raise`.
    """
    if isinstance(result, BaseException):
        return result
    if not isinstance(result, type) or not issubclass(result, BaseException):
        return None
    try:
        raise result
    except BaseException as error:
        return error.with_traceback(None)
