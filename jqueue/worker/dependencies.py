"""`Depends`: values that a handler needs and that other functions make, once for each call of the handler.

They are made where the handler runs: on the event loop, in its thread or in its process. Only what must be awaited for
a handler without `async` runs elsewhere: on the event loop of the worker, or on one in the process.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Function = Callable[..., Any]
Wait = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits something where it can be awaited."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """The mark of a parameter that gets what a function returns or yields."""

    function: Function


def Depends(function: Function) -> Any:
    """Mark a parameter of a handler as a dependency, as in FastAPI.

        @worker.handler
        async def mail(to: str, *, db: Annotated[Pool, Depends(pool)]) -> None: ...

    The function is called before the handler, once for each call of it, and its value is the argument. It may be
    `async`. What follows its `yield`, if it has one, runs after the handler, whose error or cancellation is raised at
    the `yield`. It may take a `Context`, and dependencies of its own.

    Raises:
        TypeError: the argument cannot be called.
    """
    if not callable(function):
        raise TypeError(f"Depends takes a function, got {type(function).__name__}: write Depends(pool), not its value")
    return Dependency(function)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a function: that of a handler, or of a dependency.

    Attributes:
        function: the function to call.
        by_position: its parameters that cannot be given by name.
        context: the name of its parameter for the context, if it takes it.
        needs: its dependencies, by parameter.
        names: the names of its payload parameters. Their value is a dictionary by these names, or a list of such
            dictionaries for a batch.
    """

    function: Function
    by_position: Sequence[inspect.Parameter]
    context: str | None
    needs: Mapping[str, Function]
    names: tuple[str, ...] = ()

    def __call__(self, value: Any, ctx: Any, made: Mapping[Function, Any] = MappingProxyType({})) -> Any:
        """Call the function with its payload, the context, and dependencies that are made."""
        arguments = {name: made[need] for name, need in self.needs.items()} if self.needs else {}
        if self.context is not None:
            arguments[self.context] = ctx
        if self.names:
            arguments.update(
                {name: [each[name] for each in value] for name in self.names} if isinstance(value, list) else value
            )
        places = [arguments.pop(each.name, each.default) for each in self.by_position] if self.by_position else ()
        return self.function(*places, **arguments)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The call of a handler with its dependencies: they are made before it, and ended after it in reverse order.

    Attributes:
        handler: the call of the handler itself.
        on_loop: True if the handler is `async`.
        steps: how each dependency is made, in an order in which this is possible.
    """

    handler: Step
    on_loop: bool
    steps: Mapping[Function, Step]

    def __call__(self, value: Any, ctx: Any) -> Any:
        """Call the handler, on the event loop or in a thread or process."""
        if self.on_loop:
            return self._call(value, ctx, here)
        with closing(asyncio.Runner()) as runner:  # it has no event loop before it runs something

            async def wait(awaitable: Awaitable[Any]) -> Any:
                if ctx.loop is None:
                    return runner.run(here(awaitable))
                value, error = asyncio.run_coroutine_threadsafe(end_of(awaitable), ctx.loop).result()
                if error is not None:
                    raise error
                return value

            return without_loop(self._call(value, ctx, wait))

    async def _call(self, value: Any, ctx: Any, wait: Wait) -> Any:
        """Make the dependencies and call the handler. Nothing here waits for an event loop but `wait`."""
        made: dict[Function, Any] = {}
        async with AsyncExitStack() as stack:
            for key, step in self.steps.items():
                made[key] = await _made(step(None, ctx, made), stack, wait)
            if ctx.is_cancelled:  # the job is out of time or goes to another worker: its work must not begin
                raise asyncio.CancelledError
            result = self.handler(value, ctx, made)
            if self.on_loop:
                return await result
            return await wait(_until_stopped(result, ctx)) if inspect.isawaitable(result) else result
        raise AssertionError("no end of a dependency hides an error: see `_made`")


async def here(awaitable: Awaitable[Any]) -> Any:
    """Await something."""
    return await awaitable


def without_loop(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for no event loop, in any thread, and return its result."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a call without an event loop has waited for one")


async def _until_stopped(awaitable: Awaitable[Any], ctx: Any) -> Any:
    """Await what a handler without async returned, and cancel it when the handler must stop."""
    task, stop = asyncio.create_task(end_of(awaitable)), asyncio.create_task(ctx.cancelled.wait())
    await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
    if ctx.is_cancelled:
        task.cancel()
    stop.cancel()
    value, error = await task
    if error is not None:
        raise error
    return value


async def end_of(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return a value and an error, one of them None. A task that raises SystemExit would end the event loop."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


async def _made(value: Any, stack: AsyncExitStack, wait: Wait) -> Any:
    """Return what a dependency's function gives, and have the stack run what follows its `yield`.

    An error that it does not raise again is raised nevertheless: a job whose handler failed has failed.
    """
    if inspect.isgenerator(value):
        manager = contextmanager(lambda: value)()
        made = manager.__enter__()
        stack.push(lambda *error: manager.__exit__(*error) and None)
    elif inspect.isasyncgen(value):
        async_manager = asynccontextmanager(lambda: value)()
        made = await wait(async_manager.__aenter__())

        async def end(*error: Any) -> None:
            await wait(async_manager.__aexit__(*error))

        stack.push_async_exit(end)
    else:
        return await wait(value) if inspect.isawaitable(value) else value
    return made
