"""Parameters and return type of a handler's function: read once, when it is decorated, and shown to type checkers."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, Union, Unpack, cast, get_args, get_origin, get_type_hints, overload

from pydantic import TypeAdapter

from jqueue.domain.operations.enqueue import Enqueue
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handler_options import EnqueueArguments, OperationArguments
from jqueue.worker.payloads import Codec, adapter_of, codec_of

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
Added_co = TypeVar("Added_co", covariant=True)

Bind = Callable[[Callable[..., Any], Any, Any], Any]
"""Calls a function with the payload and the context, if and where it takes them."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The payload, context and return type of a handler's function.

    Attributes:
        codec: the codec of its payload, or of each payload of a batch; None if it takes none.
        wants_context: True if it takes the context.
        call: calls the function.
        returns: validates the value that it returns, or each result of a batch.
        default: payload of a job that is enqueued without one; `Parameter.empty` if a payload must be given.
    """

    codec: Codec | None
    wants_context: bool
    call: Bind
    returns: TypeAdapter[Any]
    default: Any = inspect.Parameter.empty


def read_signature(
    function: Callable[..., Any], local_names: Mapping[str, Any] | None = None, *, takes_batch: bool = False
) -> Signature:
    """Return the signature of a handler.

    Args:
        function: the decorated function.
        local_names: names that its annotations may use besides those of its module.
        takes_batch: True if it takes a list of payloads, and returns a list of results or None.

    Raises:
        TypeError: the function takes something that a worker cannot give. The message says what to write.
    """
    named = f"handler {name_of(function)!r}"
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"{named} must be a function")
    if any(check(_decisive(function)) for check in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
        raise TypeError(f"{named} must not be a generator, as nothing would read its values: write it without yield")
    hints = _hints(named, function, local_names)
    parameters = _parameters(named, function)
    kind, other = (BatchContext, Context) if takes_batch else (Context, BatchContext)
    wrong = next((each.name for each in parameters if hints.get(each.name) is other), None)
    if wrong is not None:
        raise TypeError(f"{named}: annotate its parameter {wrong!r} as {kind.__name__}: {_KINDS[takes_batch]}")
    context = next((each.name for each in parameters if hints.get(each.name) is kind), None)
    if context is None:
        context = next((each.name for each in parameters if each.name == "ctx"), None)
    others = [each for each in parameters if each.name != context]
    codec, default = None, inspect.Parameter.empty
    if others:
        payload, *rest = others
        if payload.name not in hints:
            raise TypeError(
                f"{named}: annotate its parameter {payload.name!r} as bytes, str, a pydantic model, or any type that"
                f" pydantic can validate from JSON, as in `{payload.name}: dict[str, int]`"
            )
        needed = [each.name for each in rest if each.default is each.empty]
        if needed:
            raise TypeError(f"{named} gets only a payload and a Context: give {', '.join(needed)} a default")
        annotation = hints[payload.name]
        if takes_batch:
            annotation = _item_of(annotation)
            if annotation is _NO_LIST:
                raise TypeError(
                    f"{named} takes a batch: annotate its parameter {payload.name!r} as a list of payloads, as in"
                    f" `{payload.name}: list[bytes]`"
                )
        codec = codec_of(annotation, payload.name)
        if not takes_batch:
            default = payload.default
            codec = codec if annotation is bytes or annotation is str else _with_default(codec, default)
    returned = hints.get("return", Any)
    if takes_batch:
        returned = _result_of(returned)
        if returned is _NO_LIST:
            raise TypeError(
                f"{named} takes a batch: it must return None, or a list with one result for each job, as in"
                " `-> list[int | Exception]`"
            )
    bind = _bind(parameters, others[:1], context)
    return Signature(codec, context is not None, bind, adapter_of(returned), default)


_KINDS = {
    False: "it takes one job at a time, unless batch=... is given",
    True: "it takes a batch",
}

_NO_LIST: Any = object()
"""Stands for an annotation that is not that of a list."""


def _with_default(codec: Codec, default: Any) -> Codec:
    """Return a codec that reads no bytes, which are no JSON, as the default value of the parameter."""
    if default is inspect.Parameter.empty:
        return codec
    return Codec(lambda payload: codec.parse(payload) if payload else default, codec.encode)


def _item_of(annotation: Any) -> Any:
    """Return the annotation of the items of a list or sequence."""
    if annotation in (Any, list, Sequence):
        return Any
    if get_origin(annotation) in (list, Sequence):
        return get_args(annotation)[0]
    return _NO_LIST


def _result_of(annotation: Any) -> Any:
    """Return the annotation of one result of a batch handler, without the exceptions that may take its place."""
    if annotation is type(None):
        return annotation
    lists = [each for each in _members(annotation) if each is not type(None)]
    if len(lists) != 1:
        return _NO_LIST
    [item] = lists
    item = get_args(item)[0] if get_origin(item) is tuple and get_args(item)[1:] == (...,) else _item_of(item)
    if item is _NO_LIST:
        return item
    results = [each for each in _members(item) if not (inspect.isclass(each) and issubclass(each, BaseException))]
    return functools.reduce(operator.or_, results) if results else type(None)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function. A partial is named after its function, an object after its class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def routine_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the outermost function or method below partials and callable objects."""
    return next((layer for layer in _layers(function) if inspect.isroutine(layer)), function)


def is_async(function: Callable[..., Any]) -> bool:
    """True if a call of the function gives a coroutine. A decorator is assumed to pass that on."""
    return inspect.iscoroutinefunction(_decisive(function))


def _decisive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the outermost layer that is a coroutine or generator function: it decides what a call gives."""
    kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    return next((layer for layer in _layers(function) if any(is_one(layer) for is_one in kinds)), function)


def _layers(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield a function, the function that it wraps, and so on to the innermost."""
    seen: list[Any] = []
    layer: Any = function
    while layer is not None and not any(layer is each for each in seen):
        yield layer
        seen.append(layer)
        if isinstance(layer, functools.partial):
            layer = layer.func
        elif inspect.isroutine(layer) or hasattr(layer, "__wrapped__"):
            layer = getattr(layer, "__wrapped__", None)
        else:
            layer = layer.__call__


def _parameters(named: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a call can fill. Parameters that a partial presets by name are left out."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise TypeError(f"{named}: its parameters cannot be read: wrap it in a Python function") from None
    preset = function.keywords if isinstance(function, functools.partial) else {}
    return [
        each
        for each in parameters
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.name not in preset
    ]


def _hints(named: str, function: Callable[..., Any], local_names: Mapping[str, Any] | None) -> dict[str, Any]:
    routines = [layer for layer in _layers(function) if inspect.isroutine(layer)]
    annotated = next((each for each in routines if getattr(each, "__annotations__", None)), routines[-1])
    try:
        return get_type_hints(annotated, localns=dict(local_names or {}), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{named}: its annotations name {error.name!r}, which is not defined when it is decorated: define or import"
            " it before, and not only for type checkers"
        ) from None


def _bind(parameters: list[inspect.Parameter], payload: list[inspect.Parameter], context: str | None) -> Bind:
    """Return the quickest call that passes payload and context where the function takes them."""
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


class AddsJobs(Protocol[Added_co]):
    """A queue that adds jobs: `enqueue` of a `SyncQueue` returns the job, that of an async queue an awaitable."""

    def enqueue(self, *arguments: Any, **options: Any) -> Added_co:
        """See `Producer.enqueue`."""


class EnqueueOf(Protocol[T_contra]):
    """`enqueue` of a handler that takes a payload."""

    def __call__(self, queue: AddsJobs[T], payload: T_contra, **options: Unpack[EnqueueArguments]) -> T:
        """See `Handler.enqueue`."""


class EnqueueDefault(Protocol[T_contra]):
    """`enqueue` of a handler whose payload has a default."""

    def __call__(self, queue: AddsJobs[T], payload: T_contra = ..., **options: Unpack[EnqueueArguments]) -> T:
        """See `Handler.enqueue`."""


class EnqueueNothing(Protocol):
    """`enqueue` of a handler that takes no payload."""

    def __call__(self, queue: AddsJobs[T], **options: Unpack[EnqueueArguments]) -> T:
        """See `Handler.enqueue`."""


class EnqueueAnything(Protocol):
    """`enqueue` of a handler whose type says nothing about its payload."""

    def __call__(self, queue: AddsJobs[T], payload: Any = ..., **options: Unpack[EnqueueArguments]) -> T:
        """See `Handler.enqueue`."""


class TakesDefault(Protocol[T_contra]):
    """A handler whose payload has a default."""

    def __call__(self, payload: T_contra = ..., /) -> Any:
        """Call the handler."""


class TakesContextAndDefault(Protocol[T_contra]):
    """A handler that takes a context, and a payload that has a default."""

    def __call__(self, ctx: Context, payload: T_contra = ..., /) -> Any:
        """Call the handler."""


class EnqueueVerb(Protocol):
    """`enqueue`, typed by the parameters of its handler. The first overload that fits counts."""

    @overload
    def __get__(self, handler: TakesContextAndDefault[T], owner: Any = ...) -> EnqueueDefault[T]: ...
    @overload
    def __get__(self, handler: TakesDefault[T], owner: Any = ...) -> EnqueueDefault[T]: ...
    @overload
    def __get__(self, handler: Callable[[object, Context], Any], owner: Any = ...) -> EnqueueOf[object]: ...
    @overload
    def __get__(self, handler: Callable[[T, Context], Any], owner: Any = ...) -> EnqueueOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[Context, T], Any], owner: Any = ...) -> EnqueueOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[object], Any], owner: Any = ...) -> EnqueueOf[object]: ...
    @overload
    def __get__(self, handler: Callable[[Context], Any], owner: Any = ...) -> EnqueueNothing: ...
    @overload
    def __get__(self, handler: Callable[[T], Any], owner: Any = ...) -> EnqueueOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[], Any], owner: Any = ...) -> EnqueueNothing: ...
    @overload
    def __get__(self, handler: object, owner: Any = ...) -> EnqueueAnything: ...


class BatchEnqueueVerb(Protocol):
    """`enqueue` of a batch handler, which takes one payload of its list. The first overload that fits counts."""

    @overload
    def __get__(self, handler: Callable[[list[T], BatchContext], Any], owner: Any = ...) -> EnqueueOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[BatchContext, list[T]], Any], owner: Any = ...) -> EnqueueOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[BatchContext], Any], owner: Any = ...) -> EnqueueNothing: ...
    @overload
    def __get__(self, handler: Callable[[list[T]], Any], owner: Any = ...) -> EnqueueOf[T]: ...
    @overload
    def __get__(self, handler: object, owner: Any = ...) -> EnqueueAnything: ...


class OperationOf(Protocol[T_contra]):
    """`operation` of a handler that takes a payload."""

    def __call__(self, payload: T_contra, **options: Unpack[OperationArguments]) -> Enqueue:
        """See `Handler.operation`."""


class OperationDefault(Protocol[T_contra]):
    """`operation` of a handler whose payload has a default."""

    def __call__(self, payload: T_contra = ..., **options: Unpack[OperationArguments]) -> Enqueue:
        """See `Handler.operation`."""


class OperationNothing(Protocol):
    """`operation` of a handler that takes no payload."""

    def __call__(self, **options: Unpack[OperationArguments]) -> Enqueue:
        """See `Handler.operation`."""


class OperationAnything(Protocol):
    """`operation` of a handler whose type says nothing about its payload."""

    def __call__(self, payload: Any = ..., **options: Unpack[OperationArguments]) -> Enqueue:
        """See `Handler.operation`."""


class OperationVerb(Protocol):
    """`operation`, typed by the parameters of its handler. The first overload that fits counts."""

    @overload
    def __get__(self, handler: TakesContextAndDefault[T], owner: Any = ...) -> OperationDefault[T]: ...
    @overload
    def __get__(self, handler: TakesDefault[T], owner: Any = ...) -> OperationDefault[T]: ...
    @overload
    def __get__(self, handler: Callable[[object, Context], Any], owner: Any = ...) -> OperationOf[object]: ...
    @overload
    def __get__(self, handler: Callable[[T, Context], Any], owner: Any = ...) -> OperationOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[Context, T], Any], owner: Any = ...) -> OperationOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[object], Any], owner: Any = ...) -> OperationOf[object]: ...
    @overload
    def __get__(self, handler: Callable[[Context], Any], owner: Any = ...) -> OperationNothing: ...
    @overload
    def __get__(self, handler: Callable[[T], Any], owner: Any = ...) -> OperationOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[], Any], owner: Any = ...) -> OperationNothing: ...
    @overload
    def __get__(self, handler: object, owner: Any = ...) -> OperationAnything: ...


class BatchOperationVerb(Protocol):
    """`operation` of a batch handler, which takes one payload of its list. The first overload that fits counts."""

    @overload
    def __get__(self, handler: Callable[[list[T], BatchContext], Any], owner: Any = ...) -> OperationOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[BatchContext, list[T]], Any], owner: Any = ...) -> OperationOf[T]: ...
    @overload
    def __get__(self, handler: Callable[[BatchContext], Any], owner: Any = ...) -> OperationNothing: ...
    @overload
    def __get__(self, handler: Callable[[list[T]], Any], owner: Any = ...) -> OperationOf[T]: ...
    @overload
    def __get__(self, handler: object, owner: Any = ...) -> OperationAnything: ...


def enqueue_by_payload(method: Callable[..., Any]) -> EnqueueVerb:
    """Return the method itself. For type checkers, its payload has the type of the handler's."""
    return cast(EnqueueVerb, method)


def operation_by_payload(method: Callable[..., Enqueue]) -> OperationVerb:
    """Return the method itself. For type checkers, its payload has the type of the handler's."""
    return cast(OperationVerb, method)
