"""The worker: handlers for jobs, and the loop that claims, runs, retries and finishes them, on any queue."""

from jqueue.worker.calls import Middleware
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handler_options import HandlerOptions, Rate
from jqueue.worker.handlers import BatchHandler, Handler
from jqueue.worker.report import RunReport
from jqueue.worker.retries import Discard, Exponential, Retry, Snooze
from jqueue.worker.worker import Lifespan, Worker

__all__ = [
    "BatchContext",
    "BatchHandler",
    "Context",
    "Discard",
    "Exponential",
    "Handler",
    "HandlerOptions",
    "Lifespan",
    "Middleware",
    "Rate",
    "Retry",
    "RunReport",
    "Snooze",
    "Worker",
]
