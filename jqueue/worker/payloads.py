"""Payloads and results, by annotation: bytes and text as they are, everything else as JSON that pydantic validates.

An error about a payload never quotes it. Only the handler may see payloads, and errors are read by operators, kept in
the queue, and logged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, from_json, to_json
from typing_extensions import TypedDict

from jqueue.domain.errors import InvalidJobError, JQueueError

PROBLEMS_SHOWN = 5
"""Number of problems of one payload that an error describes."""

_PLAIN = """
json_invalid json_type missing extra_forbidden model_type model_attributes_type dataclass_type named_tuple_type
none_required greater_than greater_than_equal less_than less_than_equal multiple_of finite_number too_short too_long
iterable_type string_type string_unicode string_too_short string_too_long string_pattern_mismatch enum dict_type
list_type tuple_type set_type frozen_set_type set_item_not_hashable bool_type bool_parsing int_type int_parsing
int_parsing_size int_from_float float_type float_parsing bytes_type bytes_too_short bytes_too_long literal_error
date_type date_parsing date_past date_future time_type time_parsing datetime_type datetime_parsing datetime_past
datetime_future timezone_naive timezone_aware time_delta_type time_delta_parsing url_type url_scheme url_too_long
uuid_type uuid_version decimal_type decimal_parsing decimal_max_digits decimal_max_places decimal_whole_digits
union_tag_not_found
"""

MASK = b'"**********"'
"""The text that pydantic writes in place of a secret."""

PLAIN = frozenset(_PLAIN.split())
"""The pydantic problems whose text says what was expected and quotes nothing of the input."""

MISSING: Any = ...
"""Stands for a payload that was not given, and for a default that does not exist."""

LOSSES = (
    "does not come back equal from JSON. NaN, excluded fields, subclasses and types that no annotation names are lost"
)
"""The end of an error about a value, and its usual causes."""


class PayloadError(JQueueError, ValueError):
    """A payload is not what its handler takes. The message says what is wrong without quoting the payload."""


class ResultError(JQueueError, ValueError):
    """A kept result is not what its handler returns."""


class UnkeptResultError(JQueueError):
    """The result of a handler cannot be kept. The message does not quote it."""


class Codec:
    """Converts values of one annotation to bytes and back.

    Args:
        annotation: of the handler's parameter.
        named: the handler, for errors.
        name: of that parameter, for errors; None for the parameters themselves, by name.
        default: value of the parameter if no payload is given.

    Raises:
        TypeError: pydantic cannot validate the type.
    """

    def __init__(self, annotation: Any, named: str, name: str | None, default: Any = MISSING) -> None:
        self.default = default
        self._raw = annotation if annotation is bytes or annotation is str else None
        self.is_raw: bool = self._raw is not None
        self._name = name
        self._adapter = adapter_of(annotation, named if name is None else f"{named}, parameter {name!r}")

    def parse(self, payload: bytes) -> Any:
        """Convert a payload to a value.

        Raises:
            PayloadError: the payload is not what the handler takes.
        """
        try:
            if self._raw is None:
                return _read(self._adapter, payload)
            value = payload if self._raw is bytes else payload.decode()
        except Exception as error:
            problem = _problem_of(error, self._adapter)
        else:
            if self._raw is bytes or object_in(payload) is None:
                return value
            problem = f"it is a JSON object, and the parameter {self._name!r} takes a text"
        raise PayloadError(f"the payload does not fit the handler: {problem}")

    def encode(self, value: Any) -> bytes:
        """Convert a value to a payload.

        Raises:
            InvalidJobError: the value is not what the handler takes, or it would not come back equal.
        """
        if self._raw is not None and not isinstance(value, _RAW[self._raw]):
            raise InvalidJobError(f"the handler takes {self._raw.__name__}, got {type(value).__name__}")
        try:
            if self._raw is not None:
                return bytes(value) if self._raw is bytes else value.encode()
            payload, place = _through_json(self._adapter, self._adapter.validate_python(value, by_name=True))
            if place is None:
                return payload
            where = ".".join(place if self._name is None else (self._name, *place))
            problem = f"{where} {LOSSES}: give another value, or annotate its type"
            if MASK in payload:
                problem = "it has a secret that pydantic masks in JSON: give the field a serializer"
        except UnicodeEncodeError as error:
            problem = f"{self._name} has a lone surrogate at index {error.start}, which UTF-8 cannot write"
        except Exception as error:
            problem = _problem_of(error, self._adapter)
        raise InvalidJobError(f"the payload does not fit the handler: {problem}")


_RAW: dict[Any, Any] = {bytes: bytes | bytearray | memoryview, str: str}
"""The values that are taken for a payload that is no JSON."""


class ArgumentsCodec(Codec):
    """Converts arguments by name to a JSON object and back.

    Args:
        annotations: of the handler's parameters, by name; `NotRequired` for those with a default.
        named: the handler, for errors.
        extra: "forbid" or "ignore", for names that the handler does not know.
    """

    def __init__(self, annotations: Mapping[str, Any], named: str, extra: Literal["forbid", "ignore"]) -> None:
        arguments: Any = cast(Any, TypedDict)("Arguments", annotations)
        arguments.__pydantic_config__ = ConfigDict(extra=extra)
        super().__init__(arguments, named, None)
        self._names = frozenset(annotations)

    def parse(self, payload: bytes, *, named: bool = True) -> dict[str, Any]:
        """Convert a JSON object to arguments. An empty payload, which is no JSON, is one without arguments.

        Args:
            payload: the payload.
            named: False if it may be one value, whose names are not shown.

        Raises:
            PayloadError: the payload is not what the handler takes. The message names the first unknown argument.
        """
        try:
            arguments: dict[str, Any] = _read(self._adapter, payload or b"{}")
            return arguments
        except ValidationError as error:
            problem = _problem_of(error, self._adapter)
            extra = [str(each["loc"][0]) for each in error.errors() if each["type"] == "extra_forbidden"]
            unknown = [name for name in extra if name not in self._names and name.isidentifier() and len(name) <= 100]
            if unknown and (named or self.knows(payload)):
                problem = f'it has no parameter {unknown[0]!r}. Add one, or drop such arguments with extra="ignore"'
        except Exception as error:
            problem = _problem_of(error, self._adapter)
        raise PayloadError(f"the payload does not fit the handler: {problem}")

    def knows(self, payload: bytes) -> bool:
        """True if a payload is a JSON object in which a parameter of the handler has a value."""
        return not self._names.isdisjoint(object_in(payload) or ())


def object_in(payload: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a payload is; None if it is something else."""
    try:
        value = from_json(payload) if payload.lstrip().startswith(b"{") else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class ResultCodec:
    """Converts results of one return type to JSON values and back.

    Args:
        annotation: the return type, or that of one result of a batch.
        named: the handler, for errors.
        short: the same, for errors that stand beside its name.
    """

    def __init__(self, annotation: Any, named: str, short: str = "the handler") -> None:
        self._annotation, self._named, self._short = annotation, named, short
        self._adapter: TypeAdapter[Any] | None = None

    def adapter(self) -> TypeAdapter[Any]:
        """Return the adapter that validates results. It is made when it is first needed: few handlers keep results.

        Raises:
            TypeError: pydantic cannot validate the type.
        """
        if self._adapter is None:
            self._adapter = adapter_of(self._annotation, f"{self._named}, return type")
        return self._adapter

    def encode(self, value: Any) -> Any:
        """Return a result as a JSON value.

        Raises:
            UnkeptResultError: JSON cannot hold it, or would hold another value.
        """
        try:
            adapter = self.adapter()
        except TypeError as error:
            raise UnkeptResultError(str(error)) from None
        returned = f"{self._short} returned a value of type {type(value).__name__}"
        try:
            result, place = _through_json(adapter, value, warnings="error")
            if place is None:
                return from_json(result)
        except Exception:
            raise UnkeptResultError(f"{returned} that JSON cannot hold as annotated") from None
        where = f"; its part {'.'.join(place)}" if place else " that"
        raise UnkeptResultError(f"{returned}{where} {LOSSES}: return another value, or annotate the return type")

    def parse(self, value: Any) -> Any:
        """Return a JSON value as the type that the handler is annotated to return.

        Raises:
            ResultError: the value does not fit that type.
            TypeError: pydantic cannot validate the type.
        """
        adapter = self.adapter()
        try:
            return _read(adapter, to_json(value))
        except Exception as error:
            problem = _problem_of(error, adapter)
        raise ResultError(f"the result does not fit the return type of {self._short}: {problem}")


def adapter_of(annotation: Any, place: str) -> TypeAdapter[Any]:
    """Return the pydantic adapter that validates values of an annotation, which stands at this place.

    Raises:
        TypeError: pydantic cannot validate the type.
    """
    try:
        return TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).split("\n", 1)[0]
        raise TypeError(f"{place}: pydantic cannot validate {annotation!r}: {reason}") from None


def _read(adapter: TypeAdapter[Any], content: bytes) -> Any:
    """Return the value of a JSON text, whose fields have their aliases or their names."""
    return adapter.validate_json(content, by_name=True)


def _through_json(adapter: TypeAdapter[Any], value: Any, **options: Any) -> tuple[bytes, tuple[str, ...] | None]:
    """Return the JSON of a value, and the place of the first part of it that does not come back."""
    dump = functools.partial(adapter.dump_json, by_alias=_reads_aliases(adapter), round_trip=True, **options)
    content = dump(value)
    arrived = _read(adapter, content)
    return content, _lost(value, arrived, adapter, lambda: dump(arrived) == content)


@functools.lru_cache(maxsize=1024)
def _reads_aliases(adapter: TypeAdapter[Any]) -> bool:
    """True if each alias that a type writes is one that it reads. If not, its fields are written by name."""
    return all(map(_reads_its_alias, _schemas_in(adapter.core_schema)))


def _reads_its_alias(schema: Mapping[str, Any]) -> bool:
    written, read = schema.get("serialization_alias"), schema.get("validation_alias")
    return written is None or read in (written, [written]) or (isinstance(read, list) and [written] in read)


def _schemas_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings in a pydantic core schema, at any depth."""
    parts: Iterable[Any] = schema if isinstance(schema, list | tuple) else ()
    if isinstance(schema, Mapping):
        yield schema
        parts = schema.values()
    for part in parts:
        yield from _schemas_in(part)


def _lost(sent: Any, came: Any, adapter: TypeAdapter[Any], encodes_alike: Callable[[], bool]) -> tuple[str, ...] | None:
    """Return the place of the first part of a value that did not come back from JSON. None: it came back equal.

    A tuple may come back as a list. Private attributes are no part of a value.

    Args:
        sent: the value.
        came: the value that was read from its JSON.
        adapter: has the names that the place may show; other keys belong to the payload.
        encodes_alike: decides about parts that Python cannot compare: True if `came` has the same JSON.
    """
    equal = _is_equal(sent, came)
    if equal:
        return None
    (kind, parts), (others_kind, others) = _parts(sent), _parts(came)
    if kind is not others_kind:
        return ()
    if parts is None:
        return None if equal is None and encodes_alike() else ()
    for key, part in parts.items():
        place = _lost(part, others[key], adapter, encodes_alike) if others and key in others else ()
        if place is not None:
            return (str(key) if kind not in KEYED_BY_CONTENT or key in names_of(adapter) else "…", *place)
    return None if len(parts) == len(others or ()) else ()


def _is_equal(sent: Any, came: Any) -> bool | None:
    """True if two values are equal, or both are NaN. None: their type does not compare values."""
    sent, came = _instant(sent), _instant(came)
    if type(sent).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        return sent is came or None
    try:
        return bool(sent == came or (sent != sent and came != came))
    except Exception:
        return None


def _instant(value: Any) -> Any:
    """Return a time with a zone in UTC: `==` is False for times of two zones in an hour that one of them has twice."""
    try:
        return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
    except OverflowError:  # it is near the first or the last time that Python has
        return value


KEYED_BY_CONTENT = (Mapping, set, frozenset)
"""The kinds of values whose keys, by which their parts are compared, are content."""


def _parts(value: Any) -> tuple[type, Mapping[Any, Any] | None]:
    """Return the kind of a value, and its parts by name, key or index; None if it has none."""
    if isinstance(value, BaseModel):
        own = {name: part for name, part in vars(value).items() if name in type(value).model_fields}
        return type(value), {**own, "model_extra": value.model_extra}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return Mapping, {_key_of(key): part for key, part in value.items()}
    if type(value) in (set, frozenset):
        return type(value), {_key_of(item): item for item in value}
    if type(value) in (list, tuple):
        return list, dict(enumerate(value))
    is_list = type(value) is deque or (isinstance(value, tuple) and hasattr(value, "_fields"))
    return type(value), dict(enumerate(value)) if is_list else None


def _key_of(value: Any) -> Any:
    """Return a key that is equal for equal items of a set, or keys, whatever the zones of the times in them."""
    kind, parts = _parts(value)
    return _instant(value) if parts is None else (kind, frozenset((key, _key_of(each)) for key, each in parts.items()))


@functools.lru_cache(maxsize=128)
def names_of(adapter: TypeAdapter[Any]) -> frozenset[str]:
    """Return the field names of a type. Only they may be shown in the place of a problem; other keys are payload."""
    names = set[str]()
    for schema in _schemas_in(adapter.core_schema):
        names.update(schema[key] for key in _NAMES if isinstance(schema.get(key), str))
        names.update(schema["fields"] if isinstance(schema.get("fields"), Mapping) else ())
    return frozenset(names)


_NAMES = ("name", "alias", "validation_alias")
"""The keys of a pydantic core schema with names of a field."""


def _problem_of(error: Exception, adapter: TypeAdapter[Any]) -> str:
    """Describe an error of reading or writing a value, without quoting the value."""
    if isinstance(error, ValidationError):
        return describe(error, names_of(adapter))
    if isinstance(error, PydanticSerializationError):
        return "it has a value that JSON cannot hold"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8 text"
    return f"a validator raised {type(error).__name__}"


def describe(error: ValidationError, names: Collection[str] = ()) -> str:
    """Describe the problems and their places, without quoting the input.

    Args:
        error: the error of pydantic, whose own text quotes the input.
        names: the field names that may be shown.
    """
    shown = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        kind, text = problem["type"], problem["msg"]
        where = ".".join(str(part) if isinstance(part, int) or part in names else "…" for part in problem["loc"])
        what = text if kind in PLAIN else f"refused by a validator ({kind})"
        shown.append(f"{where}: {what}" if where else what)
    more = len(shown) - PROBLEMS_SHOWN
    return "; ".join(shown[:PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
