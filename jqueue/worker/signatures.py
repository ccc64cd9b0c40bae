"""Parameters and return type of a handler's function: read once, when it is decorated, and shown to type checkers."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import (
    Any,
    Concatenate,
    Never,
    NotRequired,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from pydantic import ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict

from jqueue.domain.models import Job
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.dependencies import Dependencies, Dependency, Function, Step
from jqueue.worker.handler_options import EnqueueArguments
from jqueue.worker.payloads import Codec, PayloadError, adapter_of, codec_of

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")
T_contra = TypeVar("T_contra", contravariant=True)
U_contra = TypeVar("U_contra", contravariant=True)
Added_co = TypeVar("Added_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)

Bind = Callable[[Function, Any, Any], Any]
"""Calls a function with the payload and the context, if and where it takes them."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The payload, context and return type of a handler's function.

    Attributes:
        names: the names of its payload parameters, in their order.
        positional: number of them that can be given by position.
        codec: the codec of its payload, or of each payload of a batch; None if it takes none. The value of several
            payload parameters is a dictionary by their names.
        wants_context: True if it takes the context.
        call: calls the function.
        returns: validates the value that it returns, or each result of a batch.
        default: payload of a job that is enqueued without one; `Parameter.empty` if a payload must be given.
    """

    names: tuple[str, ...]
    positional: int
    codec: Codec | None
    wants_context: bool
    call: Bind
    returns: TypeAdapter[Any]
    default: Any = inspect.Parameter.empty

    def parse(self, job: Job) -> Any:
        """Return the payload of a job as its handler takes it; None if it takes none.

        Raises:
            PayloadError: the payload is not what the handler takes, or it was too large to be loaded.
        """
        if self.codec is None:
            return None
        if job.payload_object is not None and job.payload_apart:
            raise PayloadError(
                f"the payload has {job.payload_object.size} bytes, too many to load: give the handler only a Context"
                " and read pieces with ctx.open_payload(), or set a larger Limits(payload_bytes=...) on the worker's"
                " queue"
            )
        return self.codec.parse(job.payload)


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
    hints, parameters, context, needs = _read(named, function, local_names, takes_batch)
    payload = [each for each in parameters if each.name != context and each.name not in needs]
    for each in payload:
        if each.name not in hints:
            raise TypeError(
                f"{named}: annotate its parameter {each.name!r} as bytes, str, a pydantic model, or any type that"
                f" pydantic can validate from JSON, as in `{each.name}: dict[str, int]`"
            )
        if isinstance(each.default, FieldInfo):  # a call of the function would get it as the value
            raise TypeError(
                f"{named}: write the Field of its parameter {each.name!r} in the annotation, and the default alone"
                f" behind it, as in `{each.name}: Annotated[int, Field(gt=0)] = 3`"
            )
    codec, default = None, inspect.Parameter.empty
    if takes_batch and payload:
        codec = _batch_codec(named, payload, hints)
    elif len(payload) > 1:
        codec = _arguments_codec(payload, hints)
    elif payload:
        [parameter] = payload
        annotation, default = hints[parameter.name], parameter.default
        codec = codec_of(annotation, parameter.name)
        codec = codec if annotation is bytes or annotation is str else _with_default(codec, default)
    returned = hints.get("return", Any)
    if takes_batch:
        returned = _result_of(returned)
        if returned is None:
            raise TypeError(
                f"{named} takes a batch: it must return None, or a list with one result for each job, as in"
                " `-> list[int | Exception]`"
            )
    by_position = [each.name for each in payload if each.kind is not each.KEYWORD_ONLY]
    call = _bind(named, parameters, [each.name for each in payload], context)
    if needs:
        steps = _steps_of(named, needs, lambda named, function: _step_of(named, function, local_names, takes_batch))
        call = Dependencies(call, is_async(function), needs, steps)
    return Signature(
        tuple(each.name for each in payload),
        len(by_position),
        codec,
        context is not None or bool(needs),
        call,
        adapter_of(returned),
        default,
    )


def with_overrides(
    signature: Signature, named: str, overrides: Mapping[Function, Function], takes_batch: bool
) -> Signature:
    """Return a signature whose dependencies are made by other functions.

    Args:
        signature: the signature of a handler.
        named: the handler, for errors.
        overrides: the function to call in place of each of these.
        takes_batch: as for `read_signature`.

    Raises:
        TypeError: a function takes something that a dependency cannot get.
    """
    call = signature.call
    if not isinstance(call, Dependencies) or overrides.keys().isdisjoint(call.steps):
        return signature

    def read(named: str, function: Function) -> Step:
        if function not in overrides and function in call.steps:
            return call.steps[function]
        return _step_of(named, overrides.get(function, function), None, takes_batch)

    return replace(signature, call=replace(call, steps=_steps_of(named, call.needs, read)))


def _read(
    named: str, function: Function, local_names: Mapping[str, Any] | None, takes_batch: bool
) -> tuple[dict[str, Any], list[inspect.Parameter], str | None, dict[str, Function]]:
    """Return the annotations of a function, its parameters, the one for the context, and its dependencies by parameter.

    The first parameter that is annotated as the context gets it, else the one that is called `ctx`.
    """
    hints, parameters, needs = _hints(named, function, local_names), _parameters(named, function), {}
    for each in parameters:
        for mark in (*getattr(hints.get(each.name), "__metadata__", ()), each.default):
            if isinstance(mark, Dependency):
                needs[each.name] = mark.function
    kind, other = (BatchContext, Context) if takes_batch else (Context, BatchContext)
    kinds = {
        each.name: get_origin(hint := hints.get(each.name)) or hint for each in parameters if each.name not in needs
    }
    wrong = next((name for name, hint in kinds.items() if hint is other), None)
    if wrong is not None:
        raise TypeError(f"{named}: annotate its parameter {wrong!r} as {kind.__name__}: {_KINDS[takes_batch]}")
    context = next((name for name, hint in kinds.items() if hint is kind), "ctx" if "ctx" in kinds else None)
    return hints, parameters, context, needs


def _steps_of(named: str, needs: Mapping[str, Function], read: Callable[[str, Function], Step]) -> dict[Function, Step]:
    """Return how to make dependencies and what they need, each after what it needs itself."""
    steps: dict[Function, Step] = {}
    above: list[Function] = []

    def add(function: Function) -> None:
        if function in steps:
            return
        if function in above:
            circle = " -> ".join(map(name_of, (*above[above.index(function) :], function)))
            raise TypeError(f"{named} has dependencies that need each other: {circle}")
        above.append(function)
        step = read(f"dependency {name_of(function)!r} of {named}", function)
        for each in step.needs.values():
            add(each)
        above.pop()
        steps[function] = step

    for each in needs.values():
        add(each)
    return steps


def _step_of(named: str, function: Function, local_names: Mapping[str, Any] | None, takes_batch: bool) -> Step:
    """Return how to call the function of a dependency, which gets a context and dependencies, and nothing else."""
    _, parameters, context, needs = _read(named, function, local_names, takes_batch)
    for each in parameters:
        if each.name != context and each.name not in needs and each.default is each.empty:
            raise TypeError(
                f"{named} cannot get its parameter {each.name!r}: annotate it as {'Batch' * takes_batch}Context or as"
                " Annotated[..., Depends(function)], or give it a default"
            )
    _check_names(named, parameters)
    return Step(function, context, needs)


def _arguments_codec(payload: list[inspect.Parameter], hints: Mapping[str, Any]) -> Codec:
    """Return the codec of several parameters: their JSON is an object by name, and its value a dictionary."""
    fields = {
        each.name: hints[each.name] if each.default is each.empty else NotRequired[hints[each.name]] for each in payload
    }
    arguments = cast(Any, TypedDict)("Arguments", fields)
    # an unknown name is an error, as in a call
    arguments.__pydantic_config__ = ConfigDict(extra="forbid", populate_by_name=True)
    codec = codec_of(arguments, None)
    return codec if arguments.__required_keys__ else _with_default(codec, {})


def _batch_codec(named: str, payload: list[inspect.Parameter], hints: Mapping[str, Any]) -> Codec:
    """Return the codec of one payload of a batch handler."""
    first, *more = payload
    item = _item_of(hints[first.name])
    if item is None or more:
        also = f", and only this one, without {', '.join(each.name for each in more)}" if more else ""
        raise TypeError(
            f"{named} takes a batch: annotate its parameter {first.name!r} as a list of payloads, as in"
            f" `{first.name}: list[bytes]`{also}. A payload of several values is a model, as in `list[Reading]`"
        )
    return codec_of(item, first.name)


_KINDS = {
    False: "it takes one job at a time, unless batch=... is given",
    True: "it takes a batch",
}


def _with_default(codec: Codec, default: Any) -> Codec:
    """Return a codec that reads no bytes, which are no JSON, as the default value of the parameter."""
    if default is inspect.Parameter.empty:
        return codec
    return Codec(lambda payload: codec.parse(payload) if payload else default, codec.encode)


def _item_of(annotation: Any) -> Any:
    """Return the annotation of the items of a list or sequence; None for any other annotation."""
    if annotation in (Any, list, Sequence):
        return Any
    if get_origin(annotation) in (list, Sequence):
        return get_args(annotation)[0]
    return None


def _result_of(annotation: Any) -> Any:
    """Return the annotation of one result of a batch handler, without exceptions; None if it returns something else."""
    if annotation is type(None):
        return annotation
    item, *more = [each for each in _members(annotation) if each is not type(None)]
    item = get_args(item)[0] if get_origin(item) is tuple and get_args(item)[1:] == (...,) else _item_of(item)
    if item is None or more:
        return None
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
    preset = {name for layer in _layers(function) if isinstance(layer, functools.partial) for name in layer.keywords}
    return [
        each
        for each in parameters
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.name not in preset
    ]


def _hints(named: str, function: Callable[..., Any], local_names: Mapping[str, Any] | None) -> dict[str, Any]:
    layers = _layers(function.__init__ if inspect.isclass(function) else function)
    routines = [layer for layer in layers if inspect.isroutine(layer)]
    annotated = next((each for each in routines if getattr(each, "__annotations__", None)), routines[-1])
    try:
        return get_type_hints(annotated, localns=dict(local_names or {}), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{named}: its annotations name {error.name!r}, which is not defined when it is decorated: define or import"
            " it before, and not only for type checkers"
        ) from None


def _check_names(named: str, parameters: list[inspect.Parameter]) -> None:
    if any(each.kind is each.POSITIONAL_ONLY for each in parameters):
        raise TypeError(f"{named} is called with its arguments by name: remove the `/` from its parameters")


def _bind(named: str, parameters: list[inspect.Parameter], payload: list[str], context: str | None) -> Bind:
    """Return the quickest call that passes payload and context where the function takes them."""
    order = "".join("c" if each.name == context else "p" if each.name in payload else "d" for each in parameters)
    if order in _BY_POSITION and all(each.kind is not each.KEYWORD_ONLY for each in parameters):
        return _BY_POSITION[order]
    _check_names(named, parameters)
    single = payload[0] if len(payload) == 1 else None

    def call(function: Function, value: Any, ctx: Any, made: Mapping[str, Any] = _NOTHING) -> Any:
        given = dict(made)
        if context is not None:
            given[context] = ctx
        if single is not None:
            given[single] = value
        elif payload:
            given.update(value)
        return function(**given)

    return call


_BY_POSITION: dict[str, Bind] = {
    "": lambda function, value, ctx: function(),
    "c": lambda function, value, ctx: function(ctx),
    "p": lambda function, value, ctx: function(value),
    "cp": lambda function, value, ctx: function(ctx, value),
    "pc": lambda function, value, ctx: function(value, ctx),
}
"""The calls with the payload, the context or both, by their order."""

_NOTHING: Mapping[str, Any] = {}


AnyContext = Context[Any]
Batch = BatchContext[Any]


class AddsJobs(Protocol[Added_co]):
    """A queue that adds jobs: `enqueue` of a `SyncQueue` returns the job, that of an async queue an awaitable."""

    def enqueue(self, *arguments: Any, **options: Any) -> Added_co:
        """See `Producer.enqueue`."""


class Of(Protocol[P]):
    """A handler of a function with these parameters."""

    @property
    def function(self) -> Callable[P, Any]:
        """See `Handler`."""


class Nothing(Of[P], Protocol[P]):
    """A handler that can be called without arguments."""

    def __call__(self) -> Any:
        """Call the handler."""


class Defaulted(Of[P], Protocol[T_contra, P]):
    """A handler that can be called without a payload, and with one."""

    def __call__(self, payload: T_contra = ..., /) -> Any:
        """Call the handler."""


class DefaultedInContext(Of[Concatenate[AnyContext, P]], Protocol[T_contra, P]):
    """A handler that can be called with a context alone, and with a payload behind it."""

    def __call__(self, ctx: AnyContext, payload: T_contra = ..., /) -> Any:
        """Call the handler."""


class One(Of[P], Protocol[T_contra, P]):
    """A handler that can be called with one payload."""

    def __call__(self, payload: T_contra, /) -> Any:
        """Call the handler."""


class OneInContext(Of[Concatenate[AnyContext, P]], Protocol[T_contra, P]):
    """A handler that can be called with a context and a payload behind it."""

    def __call__(self, ctx: AnyContext, payload: T_contra, /) -> Any:
        """Call the handler."""


class AddsOne(Protocol[R_co, T_contra, P]):
    """`enqueue` or `operation` of a handler that must get one payload: with options, or with all of its arguments."""

    @overload
    def __call__(self, queue: AddsJobs[T], payload: T_contra, /, **options: Unpack[EnqueueArguments]) -> T: ...
    @overload
    def __call__(self, queue: AddsJobs[T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def __call__(self, payload: T_contra, /, **options: Unpack[EnqueueArguments]) -> R_co: ...
    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class AddsDefault(Protocol[R_co, T_contra, P]):
    """The same of a handler that can be called without a payload."""

    @overload
    def __call__(self, queue: AddsJobs[T], payload: T_contra = ..., /, **options: Unpack[EnqueueArguments]) -> T: ...
    @overload
    def __call__(self, queue: AddsJobs[T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def __call__(self, payload: T_contra = ..., /, **options: Unpack[EnqueueArguments]) -> R_co: ...
    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class AddsSome(Protocol[R_co, T_contra, U_contra]):
    """The same of a handler that must get several arguments, of which some may be dependencies."""

    @overload
    def __call__(self, queue: AddsJobs[T], one: T_contra = ..., two: U_contra = ..., /, *_: Any, **__: Any) -> T: ...
    @overload
    def __call__(self, one: T_contra = ..., two: U_contra = ..., /, *_: Any, **__: Any) -> R_co: ...


class Verb(Protocol[R_co]):
    """`enqueue` or `operation`, typed by the parameters of its handler. The first overload that fits counts."""

    @overload
    def __get__(self, handler: DefaultedInContext[T, P], owner: Any = ...) -> AddsDefault[R_co, T, P]: ...
    @overload
    def __get__(self, handler: Defaulted[T, P], owner: Any = ...) -> AddsDefault[R_co, T, P]: ...
    @overload
    def __get__(self, handler: Callable[[T, AnyContext, U], Any], owner: Any = ...) -> AddsSome[R_co, T, U]: ...
    @overload
    def __get__(self, handler: Callable[[T, AnyContext], Any], owner: Any = ...) -> AddsOne[R_co, T, [T]]: ...
    @overload
    def __get__(self, handler: OneInContext[T, P], owner: Any = ...) -> AddsOne[R_co, T, P]: ...
    @overload
    def __get__(self, handler: Callable[[AnyContext], Any], owner: Any = ...) -> AddsDefault[R_co, Never, []]: ...
    @overload
    def __get__(self, handler: One[T, P], owner: Any = ...) -> AddsOne[R_co, T, P]: ...
    @overload
    def __get__(self, handler: Nothing[P], owner: Any = ...) -> AddsDefault[R_co, Never, P]: ...
    @overload
    def __get__(
        self, handler: Callable[Concatenate[AnyContext, T, U, P], Any], owner: Any = ...
    ) -> AddsSome[R_co, T, U]: ...
    @overload
    def __get__(
        self, handler: Callable[Concatenate[AnyContext, T, P], Any], owner: Any = ...
    ) -> AddsSome[R_co, T, Any]: ...
    @overload
    def __get__(self, handler: Callable[Concatenate[T, U, P], Any], owner: Any = ...) -> AddsSome[R_co, T, U]: ...
    @overload
    def __get__(self, handler: Callable[Concatenate[T, P], Any], owner: Any = ...) -> AddsSome[R_co, T, Any]: ...
    @overload
    def __get__(self, handler: object, owner: Any = ...) -> AddsSome[R_co, Any, Any]: ...


class BatchVerb(Protocol[R_co]):
    """The same of a batch handler, which takes one payload of its list."""

    @overload
    def __get__(self, handler: Callable[[list[T], Batch], Any], owner: Any = ...) -> AddsOne[R_co, T, [T]]: ...
    @overload
    def __get__(self, handler: Callable[[Batch, list[T]], Any], owner: Any = ...) -> AddsOne[R_co, T, [T]]: ...
    @overload
    def __get__(self, handler: Callable[[Batch], Any], owner: Any = ...) -> AddsDefault[R_co, Never, []]: ...
    @overload
    def __get__(self, handler: Callable[[list[T]], Any], owner: Any = ...) -> AddsOne[R_co, T, [T]]: ...
    @overload
    def __get__(self, handler: object, owner: Any = ...) -> AddsSome[R_co, Any, Any]: ...


def enqueue_by_payload(method: Callable[..., Any]) -> Verb[Any]:
    """Return the method itself. For type checkers, its payload has the type of the handler's."""
    return cast(Verb[Any], method)


def operation_by_payload(method: Callable[..., Enqueue]) -> Verb[Enqueue]:
    """Return the method itself. For type checkers, its payload has the type of the handler's."""
    return cast(Verb[Enqueue], method)
