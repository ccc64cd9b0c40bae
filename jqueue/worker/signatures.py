"""What a handler's function takes and returns, read once, when it is decorated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from jqueue.worker.context import Context
from jqueue.worker.payloads import Codec, adapter_of, codec_of

Bind = Callable[[Callable[..., Any], Any, Any], Any]
"""Calls a function with the payload and the context, where it wants them."""


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function is called.

    Attributes:
        codec: of its payload; None if it takes none.
        wants_context: whether it takes the context.
        call: calls it.
        returns: validates what it returns.
    """

    codec: Codec | None
    wants_context: bool
    call: Bind
    returns: TypeAdapter[Any]


def read_signature(function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> Signature:
    """The signature of a handler.

    Args:
        function: what is decorated.
        local_names: what annotations may name besides what its module has.

    Raises:
        TypeError: it takes what a worker cannot give; the message says what to write.
    """
    named = f"handler {getattr(function, '__name__', function)!r}"
    if inspect.isclass(function):
        raise TypeError(f"{named} must be a function")
    hints = _hints(named, function, local_names)
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    context = next((each.name for each in parameters if hints.get(each.name) is Context), None)
    if context is None:
        context = next((each.name for each in parameters if each.name == "ctx"), None)
    others = [each for each in parameters if each.name != context]
    codec = None
    if others:
        payload, *rest = others
        if payload.name not in hints:
            raise TypeError(
                f"{named}: say what its parameter {payload.name!r} is: bytes, str, a pydantic model, or anything that"
                f" pydantic can validate from JSON, as in `{payload.name}: dict[str, int]`"
            )
        needed = [each.name for each in rest if each.default is each.empty]
        if needed:
            raise TypeError(f"{named} takes a payload and a Context; nothing can be given for {', '.join(needed)}")
        codec = codec_of(hints[payload.name])
    return Signature(
        codec, context is not None, _bind(parameters, others[:1], context), adapter_of(hints.get("return", Any))
    )


def _hints(named: str, function: Callable[..., Any], local_names: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return get_type_hints(function, localns=dict(local_names or {}), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{named}: its annotations name {error.name!r}, which is not there when it is decorated: define or import"
            " it before, and not only for type checkers"
        ) from None


def _bind(parameters: list[inspect.Parameter], payload: list[inspect.Parameter], context: str | None) -> Bind:
    """The quickest call that puts each where it is wanted."""
    wanted = [each for each in parameters if each.name == context or each in payload]
    gaps = wanted != parameters[: len(wanted)] or any(each.kind is each.KEYWORD_ONLY for each in wanted)
    if gaps:
        return _bind_by_name(payload[0].name if payload else None, context)
    if not wanted:
        return lambda function, value, ctx: function()
    if len(wanted) == 1:
        if wanted[0].name == context:
            return lambda function, value, ctx: function(ctx)
        return lambda function, value, ctx: function(value)
    if wanted[0].name == context:
        return lambda function, value, ctx: function(ctx, value)
    return lambda function, value, ctx: function(value, ctx)


def _bind_by_name(payload: str | None, context: str | None) -> Bind:
    def call(function: Callable[..., Any], value: Any, ctx: Any) -> Any:
        given = {}
        if payload is not None:
            given[payload] = value
        if context is not None:
            given[context] = ctx
        return function(**given)

    return call
