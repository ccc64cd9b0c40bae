"""The worker: handlers for jobs, and the loop that claims, runs, retries and finishes them, on any queue."""

from jqueue.worker.context import Context
from jqueue.worker.handlers import Handler
from jqueue.worker.options import Rate
from jqueue.worker.report import RunReport
from jqueue.worker.retries import Discard, Exponential, Retry, Snooze
from jqueue.worker.worker import Worker

__all__ = ["Context", "Discard", "Exponential", "Handler", "Rate", "Retry", "RunReport", "Snooze", "Worker"]
