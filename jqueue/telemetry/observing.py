"""Observing a queue object for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jqueue.ports.observer import Observer, SupportsObservers


@contextmanager
def observed(queue: object, observer: Observer | None) -> Iterator[None]:
    """Have an observer told of the commits of a queue object while the block runs."""
    if observer is None or not isinstance(queue, SupportsObservers):
        yield
        return
    queue.observe(observer)
    try:
        yield
    finally:
        queue.unobserve(observer)
