"""Callers await an answer as they would await a future, and all that are answered in one turn share one callback."""

import asyncio

import pytest

from jqueue import BrokerQueue, InMemoryStorage
from jqueue.core.engine.callers import Awaited, Callers
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time


async def _await(call):
    return await call


def _calls(number):
    callers = Callers(asyncio.get_running_loop())
    calls = [Awaited(callers) for _ in range(number)]
    return calls, [asyncio.ensure_future(_await(call)) for call in calls]


def _answer(call, outcome):
    call.outcome = outcome
    call.end(None)


def _count_callbacks(monkeypatch):
    """Return a list that gets each callback that the event loop is told to run soon."""
    loop, scheduled = asyncio.get_running_loop(), []
    call_soon = loop.call_soon

    def counted(callback, *arguments, **options):
        scheduled.append(callback)
        return call_soon(callback, *arguments, **options)

    monkeypatch.setattr(loop, "call_soon", counted)
    return scheduled


@in_virtual_time
async def test_a_commit_costs_few_callbacks_however_many_calls_it_answers(monkeypatch):
    async with BrokerQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        tasks = [asyncio.ensure_future(queue.enqueue("work", b"payload")) for _ in range(300)]
        await asyncio.sleep(0)
        scheduled = _count_callbacks(monkeypatch)
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        assert len(scheduled) <= 30


@in_virtual_time
async def test_callers_that_are_answered_together_are_woken_in_order_by_one_callback(monkeypatch):
    calls, tasks = _calls(100)
    await asyncio.sleep(0)
    ended: list[object] = []
    for task in tasks:
        task.add_done_callback(ended.append)
    scheduled = _count_callbacks(monkeypatch)
    for number, call in enumerate(calls):
        _answer(call, number)
    assert 1 == len(scheduled)
    assert list(range(100)) == await asyncio.gather(*tasks)
    assert tasks == ended


@in_virtual_time
async def test_an_answer_that_is_there_already_is_returned_at_once():
    [call], [task] = _calls(1)
    _answer(call, "early")
    assert "early" == await task == await call


@in_virtual_time
async def test_an_error_is_raised_to_its_caller_alone():
    calls, tasks = _calls(3)
    await asyncio.sleep(0)
    _answer(calls[0], 0)
    calls[1].end(ValueError("no"))
    _answer(calls[2], 2)
    first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert (0, 2) == (first, third)
    assert isinstance(second, ValueError)


@in_virtual_time
async def test_a_cancelled_caller_no_longer_awaits_an_answer():
    calls, tasks = _calls(2)
    await asyncio.sleep(0)
    tasks[0].cancel("why")
    assert not calls[0].awaited
    assert not calls[0].cancel()
    _answer(calls[1], 1)
    with pytest.raises(asyncio.CancelledError, match="why"):
        await tasks[0]
    assert 1 == await tasks[1]


@in_virtual_time
async def test_a_caller_that_is_cancelled_between_its_answer_and_its_turn_was_answered():
    [call], [task] = _calls(1)
    await asyncio.sleep(0)
    _answer(call, "answer")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ("answer", None) == (call.outcome, call.error)


def test_the_other_callers_are_woken_after_a_keyboard_interrupt():
    loop = asyncio.new_event_loop()

    async def interrupted(call):
        await call
        raise KeyboardInterrupt

    async def begin_interrupted():
        calls, tasks = _calls(2)
        first = Awaited(calls[0]._callers)
        stopped = asyncio.ensure_future(interrupted(first))
        await asyncio.sleep(0)
        return [first, *calls], [stopped, *tasks]

    try:
        calls, tasks = loop.run_until_complete(begin_interrupted())
        for number, call in enumerate(calls):
            _answer(call, number)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(tasks[2])
        assert 1 == loop.run_until_complete(asyncio.wait_for(tasks[1], 5))
        assert 2 == loop.run_until_complete(asyncio.wait_for(tasks[2], 5))
        assert isinstance(tasks[0].exception(), KeyboardInterrupt)
    finally:
        loop.close()


@in_virtual_time
async def test_several_may_wait_for_the_end_of_a_call_and_leave_nothing_behind():
    [call], [task] = _calls(1)
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await call.wait(5)
    assert 5 == loop.time() - began
    waits = [asyncio.ensure_future(call.wait(60)) for _ in range(3)]
    await asyncio.sleep(1)
    waits[0].cancel()
    _answer(call, "answer")
    await asyncio.gather(*waits, return_exceptions=True)
    assert 6 == loop.time() - began
    assert "answer" == await task
    await call.wait(60)
    assert 6 == loop.time() - began
    assert {} == call._callers.others


def test_a_task_of_another_loop_cannot_await_a_call():
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        with pytest.raises(RuntimeError):
            other.run_until_complete(_await(Awaited(Callers(loop))))
    finally:
        loop.close()
        other.close()
