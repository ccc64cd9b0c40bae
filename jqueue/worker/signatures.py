"""Parameters and return type of a handler's function: read once, when it is decorated, and shown to type checkers."""

from __future__ import annotations

import functools
import inspect
import operator
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import (
    Any,
    Concatenate,
    Literal,
    NotRequired,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from pydantic.fields import FieldInfo
from pydantic.warnings import UnsupportedFieldAttributeWarning

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import Encoding
from jqueue.domain.models import Job
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.dependencies import Dependencies, Dependency, Function, Step
from jqueue.worker.payloads import MISSING, ArgumentsCodec, Codec, PayloadError, ResultCodec

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")
Q = ParamSpec("Q")
VARIABLE = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Signature:
    """The payload, context and return type of a handler's function.

    Attributes:
        names: the names of its payload parameters, in their order.
        positional: number of them that can be given by position.
        value: the codec of one value, which goes to the first parameter, or of each payload of a batch; None if others
            have no default.
        arguments: the codec of arguments by name.
        encoding: how its calls are encoded: "named", or None for one value.
        wants_context: True if it takes the context.
        call: calls the function with its payload and the context, if it takes them.
        returns: the codec of the value that it returns, or of each result of a batch.
    """

    names: tuple[str, ...]
    positional: int
    value: Codec | None
    arguments: ArgumentsCodec
    encoding: Encoding | None
    wants_context: bool
    call: Callable[[Any, Any], Any]
    returns: ResultCodec

    def parse(self, job: Job) -> dict[str, Any]:
        """Return the arguments that a job gives to its handler, by name.

        A job without an encoding has one value, for the first parameter. Or it has arguments by name, as versions
        before the field wrote them for several parameters.

        Raises:
            PayloadError: the payload is not what the handler takes, or it was too large to be loaded.
        """
        names, payload = self.names, job.payload
        if not names and (job.encoding is None or job.payload_apart):
            return {}
        if job.payload_object is not None and job.payload_apart:
            raise PayloadError(
                f"the payload has {job.payload_object.size} bytes, too many to load: give the handler only a Context"
                " and read pieces with ctx.open_payload(), or set a larger Limits(payload_bytes=...) on the worker's"
                " queue"
            )
        if job.encoding is not None:
            return self.arguments.parse(payload)
        if len(names) > 1:
            try:
                return self.arguments.parse(payload, named=False)
            except PayloadError:
                if self.value is None or self.arguments.knows(payload):
                    raise
        assert self.value is not None
        if not payload and not self.value.is_raw and self.value.default is not MISSING:
            return {}
        return {names[0]: self.value.parse(payload)}

    def encode(self, named_values: Mapping[str, Any], *, as_value: bool = False) -> tuple[bytes, Encoding | None]:
        """Return the payload of a call with these arguments, and its encoding.

        Args:
            named_values: arguments, by name.
            as_value: True to give no encoding: the payload of one parameter is then its value.

        Raises:
            InvalidJobError: they are not what the handler takes.
        """
        if not self.names:
            return b"", None
        if self.value is None or len(self.names) > 1 or not (as_value or self.encoding is None):
            return self.arguments.encode(named_values), None if as_value else self.encoding
        value = named_values.get(self.names[0], self.value.default)
        if value is MISSING:
            raise InvalidJobError(f"the payload does not fit the handler: {self.names[0]}: Field required")
        return self.value.encode(value), None


def read_signature(
    function: Function,
    local_names: Mapping[str, Any] | None = None,
    *,
    takes_batch: bool = False,
    extra: Literal["forbid", "ignore"] = "forbid",
) -> Signature:
    """Return the signature of a handler.

    Args:
        function: the decorated function.
        local_names: names that its annotations may use besides those of its module.
        takes_batch: True if it takes a list of payloads, and returns a list of results or None.
        extra: "ignore" to drop arguments that it does not know.

    Raises:
        TypeError: the function takes something that a worker cannot give. The message says what to write.
    """
    named = f"handler {name_of(function)!r}"
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"{named} must be a function")
    if any(check(_decisive(function)) for check in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
        raise TypeError(f"{named} must not be a generator, as nothing would read its values: write it without yield")
    step, hints, payload = _read(named, function, local_names, takes_batch)
    for each in inspect.signature(function).parameters.values():
        if each.kind in VARIABLE:
            raise TypeError(
                f"{named}: {each} takes arguments without names: write its parameters. The wrapper of a decorator needs"
                " functools.wraps"
            )
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
    returned = hints.get("return", Any)
    if takes_batch:
        returned = _result_of(returned)
        if returned is None:
            raise TypeError(
                f"{named} takes a batch: it must return None, or a list with one result for each job, as in"
                " `-> list[int | Exception]`"
            )
    step = replace(step, names=tuple(each.name for each in payload))
    steps = steps_of(named, step, lambda named, function: step_of(named, function, local_names, takes_batch))
    return Signature(
        step.names,
        len([each for each in payload if each.kind is not each.KEYWORD_ONLY]),
        *_codecs_of(named, payload, hints, takes_batch, extra),
        step.context is not None or bool(steps),
        Dependencies(step, is_async(function), steps) if steps else step,
        ResultCodec(returned, named),
    )


def _read(
    named: str, function: Function, local_names: Mapping[str, Any] | None, takes_batch: bool
) -> tuple[Step, dict[str, Any], list[inspect.Parameter]]:
    """Return how to call a function, its annotations, and the parameters that get no context and no dependency.

    The first parameter that is annotated as the context gets it, else the one that is called `ctx`.
    """
    parameters, hints = _parameters(named, function), _hints(named, function, local_names)
    needs = {
        each.name: mark.function
        for each in parameters
        for mark in (*getattr(hints.get(each.name), "__metadata__", ()), each.default)
        if isinstance(mark, Dependency)
    }
    kind, other = (BatchContext, Context) if takes_batch else (Context, BatchContext)
    kinds = {
        each.name: get_origin(hint := hints.get(each.name)) or hint for each in parameters if each.name not in needs
    }
    wrong = next((name for name, hint in kinds.items() if hint is other), None)
    if wrong is not None:
        takes = "it takes a batch" if takes_batch else "it takes one job at a time, unless batch=... is given"
        raise TypeError(f"{named}: annotate its parameter {wrong!r} as {kind.__name__}: {takes}")
    context = next((name for name, hint in kinds.items() if hint is kind), "ctx" if "ctx" in kinds else None)
    by_position = [each for each in parameters if each.kind is each.POSITIONAL_ONLY]
    others = [each for each in parameters if each.name != context and each.name not in needs]
    return Step(function, by_position, context, needs), hints, others


def steps_of(named: str, handler: Step, read: Callable[[str, Function], Step]) -> dict[Function, Step]:
    """Return how to make the dependencies of a handler and what they need, each after what it needs itself.

    Args:
        named: the handler, for errors.
        handler: the call of the handler.
        read: returns the step of a function. It gets the name of the dependency, for errors, and the function.

    Raises:
        TypeError: dependencies need each other.
    """
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

    for each in handler.needs.values():
        add(each)
    return steps


def step_of(named: str, function: Function, local_names: Mapping[str, Any] | None, takes_batch: bool) -> Step:
    """Return how to call the function of a dependency, which gets a context and dependencies, and nothing else.

    Raises:
        TypeError: the function takes something else.
    """
    step, _, others = _read(named, function, local_names, takes_batch)
    for each in others:
        if each.default is each.empty:
            raise TypeError(
                f"{named} cannot get its parameter {each.name!r}: annotate it as {'Batch' * takes_batch}Context or as"
                " Annotated[..., Depends(function)], or give it a default"
            )
    return step


def _codecs_of(
    named: str,
    payload: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    takes_batch: bool,
    extra: Literal["forbid", "ignore"],
) -> tuple[Codec | None, ArgumentsCodec, Encoding | None]:
    """Return the codec of one value, that of arguments by name, and the encoding of calls, as in `Signature`.

    A batch takes one value for each job. So does a handler that takes only `bytes`, which JSON cannot hold.
    """
    if not payload:
        return None, ArgumentsCodec({}, named, extra), None
    first, *more = payload
    types, value = {each.name: hints[each.name] for each in payload}, None
    if takes_batch:
        item = _item_of(hints[first.name])
        if item is None or more:
            also = f", and only this one, without {', '.join(each.name for each in more)}" if more else ""
            raise TypeError(
                f"{named} takes a batch: annotate its parameter {first.name!r} as a list of payloads, as in"
                f" `{first.name}: list[bytes]`{also}. A payload of several values is a model, as in `list[Reading]`"
            )
        types[first.name] = item
    defaults = {each.name: each.default for each in payload if each.default is not each.empty and not takes_batch}
    fields = {name: NotRequired[kind] if name in defaults else kind for name, kind in types.items()}
    try:
        arguments = ArgumentsCodec(fields, named, extra)
        with warnings.catch_warnings():  # an alias of a parameter is that of an argument
            warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
            if defaults.keys() >= {each.name for each in payload[1:]}:
                value = Codec(types[first.name], named, first.name, defaults.get(first.name, MISSING))
    except TypeError:
        for name, kind in types.items():
            Codec(kind, named, name)  # raises an error that names the parameter
        raise
    by_value = takes_batch or list(types.values()) == [bytes]
    return value, arguments, None if by_value else "named"


def _item_of(annotation: Any) -> Any:
    """Return the annotation of the items of a list or sequence; None for any other annotation."""
    if annotation in (Any, list, Sequence):
        return Any
    return get_args(annotation)[0] if get_origin(annotation) in (list, Sequence) else None


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


def name_of(function: Function) -> str:
    """Return the name of a function. A partial is named after its function, an object after its class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def routine_of(function: Function) -> Function:
    """Return the outermost function or method below partials and callable objects."""
    return next((layer for layer in _layers(function) if inspect.isroutine(layer)), function)


def is_async(function: Function) -> bool:
    """True if the function is async itself, whatever it wraps."""
    while isinstance(function, functools.partial):
        function = function.func
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def has_async(function: Function) -> bool:
    """True if the function is async, or one that it wraps: decorators of middleware pass the coroutine on."""
    return any(map(is_async, _layers(function)))


def _decisive(function: Function) -> Function:
    """Return the outermost layer that is a coroutine or generator function, or the function itself."""
    kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    return next((layer for layer in _layers(function) if any(is_one(layer) for is_one in kinds)), function)


def _layers(function: Function) -> Iterator[Function]:
    """Yield a function, the function that it wraps, and so on to the innermost, or until one wraps itself."""
    layer: Any = function
    seen: list[Any] = []
    while layer is not None and not any(layer is each for each in seen):
        seen.append(layer)
        yield layer
        if isinstance(layer, functools.partial):
            layer = layer.func
        elif inspect.isroutine(layer) or hasattr(layer, "__wrapped__"):
            layer = getattr(layer, "__wrapped__", None)
        else:
            layer = layer.__call__


def _parameters(named: str, function: Function) -> list[inspect.Parameter]:
    """Return the parameters that a call can fill. Parameters that a partial presets by name are left out."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise TypeError(f"{named}: its parameters cannot be read: wrap it in a Python function") from None
    preset = {name for layer in _layers(function) if isinstance(layer, functools.partial) for name in layer.keywords}
    return [each for each in parameters if each.kind not in VARIABLE and each.name not in preset]


def _hints(named: str, function: Function, local_names: Mapping[str, Any] | None) -> dict[str, Any]:
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


AnyContext = Context[Any]
Batch = BatchContext[Any]


class Unlike:
    """Matches no annotation but `Any` and `object`, so that such a parameter is payload, and not the context."""


class Takes(Protocol[Q, P]):
    """A handler with the parameters `P` that can be called with the arguments `Q`."""

    @property
    def function(self) -> Callable[P, Any]:
        """See `Handler`."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> Any:
        """Call the handler."""


class Verb(Protocol[R_co]):
    """A method with the payload parameters of its handler: all but the context, if it is one of the first three.

    The first overload that fits counts. If the context is not the first parameter, those before it have no names.
    """

    @overload
    def __get__(self, handler: Takes[Concatenate[Unlike, ...], P], owner: Any = ...) -> Callable[P, R_co]: ...
    @overload
    def __get__(self, handler: Callable[Concatenate[AnyContext, P], Any], owner: Any = ...) -> Callable[P, R_co]: ...
    @overload
    def __get__(self, handler: Takes[Concatenate[Any, Unlike, ...], P], owner: Any = ...) -> Callable[P, R_co]: ...
    @overload
    def __get__(
        self, handler: Callable[Concatenate[T, AnyContext, P], Any], owner: Any = ...
    ) -> Callable[Concatenate[T, P], R_co]: ...
    @overload
    def __get__(self, handler: Takes[Concatenate[Any, Any, Unlike, ...], P], owner: Any = ...) -> Callable[P, R_co]: ...
    @overload
    def __get__(
        self, handler: Callable[Concatenate[T, U, AnyContext, P], Any], owner: Any = ...
    ) -> Callable[Concatenate[T, U, P], R_co]: ...
    @overload
    def __get__(self, handler: Callable[P, Any], owner: Any = ...) -> Callable[P, R_co]: ...


class BatchVerb(Protocol[R_co]):
    """The same of a batch handler: a method that takes one payload of its list."""

    @overload
    def __get__(self, handler: Callable[Concatenate[list[T], P], Any], owner: Any = ...) -> Callable[[T], R_co]: ...
    @overload
    def __get__(
        self, handler: Callable[Concatenate[Batch, list[T], P], Any], owner: Any = ...
    ) -> Callable[[T], R_co]: ...
    @overload
    def __get__(self, handler: Callable[[Batch], Any], owner: Any = ...) -> Callable[[], R_co]: ...
    @overload
    def __get__(self, handler: object, owner: Any = ...) -> Callable[..., R_co]: ...


def takes_payload(method: Callable[..., T]) -> Verb[T]:
    """Return the method itself. For type checkers, it has the payload parameters of its handler."""
    return cast(Verb[T], method)
