"""Handlers of every kind, which the worker on Windows, or on its imitation, calls."""

from jqueue.worker import Router

handlers = Router()


@handlers.handler("in_a_coroutine", keep_result=60)
async def in_a_coroutine(number: int) -> int:
    return 2 * number


@handlers.handler("in_a_thread", keep_result=60)
def in_a_thread(number: int) -> int:
    return 2 * number


@handlers.handler("in_a_process", process=True, keep_result=60)
def in_a_process(number: int) -> int:
    return 2 * number
