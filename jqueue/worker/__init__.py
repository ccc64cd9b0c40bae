"""The worker: handlers for jobs, and the loop that claims, runs, retries and finishes them, on any queue."""

from jqueue.domain.operations.call import Call
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.dependencies import Depends
from jqueue.worker.handler_options import HandlerOptions, Lifespan, Middleware, Rate, WorkerSettings
from jqueue.worker.handlers import BatchHandler, Handler
from jqueue.worker.retries import Discard, Exponential, Retry, RetryRule, Snooze
from jqueue.worker.router import Router
from jqueue.worker.run import RunReport
from jqueue.worker.worker import Worker

__all__ = [
    "BatchContext",
    "BatchHandler",
    "Call",
    "Context",
    "Depends",
    "Discard",
    "Exponential",
    "Handler",
    "HandlerOptions",
    "Lifespan",
    "Middleware",
    "Rate",
    "Retry",
    "RetryRule",
    "Router",
    "RunReport",
    "Snooze",
    "Worker",
    "WorkerSettings",
]
