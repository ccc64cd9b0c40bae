"""Payloads and results, by annotation: bytes and text as they are, everything else as JSON that pydantic validates.

An error about a payload never quotes it. Only the handler may see payloads, and errors are read by operators, kept in
the queue, and logged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

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


ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
"""Types whose values are equal only if nothing of them was lost."""

LOSSES = (
    "does not come back equal from JSON. NaN, excluded fields, subclasses and types that no annotation names are lost"
)
"""The end of an error about a value, and its usual causes."""


class PayloadError(JQueueError, ValueError):
    """A payload is not what its handler takes. The message says what is wrong without quoting the payload."""


class ResultError(JQueueError, ValueError):
    """The result of a handler cannot be kept, or cannot be read back."""


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """Converts values of one annotation to bytes and back.

    Attributes:
        parse: converts a payload to a value; raises PayloadError.
        encode: converts a value to a payload; raises InvalidJobError.
    """

    parse: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


def codec_of(annotation: Any, name: str | None) -> Codec:
    """Return the codec of an annotation.

    Args:
        annotation: of the handler's parameter.
        name: of that parameter, for errors; None for the parameters themselves, by name.

    Raises:
        TypeError: pydantic cannot validate the type.
    """
    if annotation is bytes:
        return Codec(lambda payload: payload, _encode_bytes)
    if annotation is str:
        return Codec(_parse_text, lambda value: _encode_text(value, name))
    adapter = adapter_of(annotation)
    validate = adapter.validate_json
    dump = functools.partial(adapter.dump_json, by_alias=True, round_trip=True)

    def parse(payload: bytes) -> Any:
        try:
            return validate(payload)
        except ValidationError as error:
            problem = describe(error, names_of(adapter))
        except Exception as error:
            problem = f"a validator raised {type(error).__name__}"
        raise PayloadError(f"the payload does not fit the handler: {problem}")

    def encode(value: Any) -> bytes:
        try:
            checked = adapter.validate_python(value)
            payload = dump(checked)
            arrived = validate(payload)
            if type(checked) in ATOMS and arrived == checked:
                return payload
            place = _lost(checked, arrived, adapter, lambda: dump(arrived) == payload)
            if place is None:
                return payload
            where = ".".join(place if name is None else (name, *place))
            problem = f"{where} {LOSSES}: give another value, or annotate its type"
            if MASK in payload:
                problem = "it has a secret that pydantic masks in JSON: give the field a serializer"
        except ValidationError as error:
            problem = describe(error, names_of(adapter))
        except PydanticSerializationError:
            problem = "it has a value that JSON cannot hold"
        except Exception as error:
            problem = f"a validator raised {type(error).__name__}"
        raise InvalidJobError(f"the payload does not fit the handler: {problem}")

    return Codec(parse, encode)


def adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """Return the pydantic adapter that validates values of an annotation.

    Raises:
        TypeError: pydantic cannot validate the type.
    """
    try:
        return TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).split("\n", 1)[0]
        raise TypeError(f"pydantic cannot validate {annotation!r}: {reason}") from None


def json_value(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Return a handler's result as a JSON value.

    Raises:
        ResultError: JSON cannot hold it, or would hold another value.
    """
    as_json = functools.partial(adapter.dump_python, mode="json", by_alias=True)
    returned = f"the handler returned a value of type {type(value).__name__}"
    try:
        result = as_json(value, warnings="error")
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        raise ResultError(f"{returned} that JSON cannot hold as annotated") from None
    if type(result) in ATOMS and type(result) is type(value) and result == value:
        return result
    try:
        arrived = adapter.validate_json(to_json(result, inf_nan_mode="null"))
        place = _lost(value, arrived, adapter, lambda: as_json(arrived) == result)
    except Exception:
        place = ()
    if place is None:
        return result
    where = f"; its part {'.'.join(place)}" if place else " that"
    raise ResultError(f"{returned}{where} {LOSSES}: return another value, or annotate the return type")


def parse_result(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Return a JSON value as the type that the handler is annotated to return.

    Raises:
        ResultError: the value does not fit that type.
    """
    try:
        return adapter.validate_json(to_json(value))
    except ValidationError as error:
        problem = describe(error, names_of(adapter))
    raise ResultError(f"the result does not fit the return type of the handler: {problem}")


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
            return (str(key) if kind is not Mapping or key in names_of(adapter) else "…", *place)
    return None if len(parts) == len(others or ()) else ()


def _is_equal(sent: Any, came: Any) -> bool | None:
    """True if two values are equal, or both are NaN. None: their type does not compare values."""
    if type(sent).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        return None
    try:
        return bool(sent == came or (sent != sent and came != came))
    except Exception:
        return None


def _parts(value: Any) -> tuple[type, Mapping[Any, Any] | None]:
    """Return the kind of a value, and its parts by name, key or index; None if it has none."""
    if isinstance(value, BaseModel):
        own = {name: part for name, part in vars(value).items() if name in type(value).model_fields}
        return type(value), {**own, "model_extra": value.model_extra}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return Mapping, value
    return (list, dict(enumerate(value))) if type(value) in (list, tuple) else (type(value), None)


@functools.lru_cache(maxsize=128)
def names_of(adapter: TypeAdapter[Any]) -> frozenset[str]:
    """Return the field names of a type. Only they may be shown in the place of a problem; other keys are payload."""
    return frozenset(_names_in(adapter.core_schema))


def _names_in(schema: Any) -> set[str]:
    """Return the names in a pydantic core schema, at any depth."""
    if not isinstance(schema, Mapping):
        parts = schema if isinstance(schema, list | tuple) else ()
        return set().union(*map(_names_in, parts))
    names = {schema[key] for key in ("name", "alias", "validation_alias") if isinstance(schema.get(key), str)}
    fields = schema.get("fields")
    names.update(fields if isinstance(fields, Mapping) else ())
    return names.union(*map(_names_in, schema.values()))


def describe(error: ValidationError, names: Collection[str] = ()) -> str:
    """Describe the problems and their places, without quoting the input.

    Args:
        error: the error of pydantic, whose own text quotes the input.
        names: the field names that may be shown.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [_described(problem["loc"], problem["type"], problem["msg"], names) for problem in problems]
    more = len(shown) - PROBLEMS_SHOWN
    return "; ".join(shown[:PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _described(place: Sequence[int | str], kind: str, text: str, names: Collection[str]) -> str:
    where = ".".join(str(part) if isinstance(part, int) or part in names else "…" for part in place)
    what = text if kind in PLAIN else f"refused by a validator ({kind})"
    return f"{where}: {what}" if where else what


def _parse_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        place = error.start
    raise PayloadError(f"the payload is not UTF-8 text: byte {place} is invalid")


def _encode_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidJobError(f"the handler takes bytes, got {type(value).__name__}")
    return bytes(value)


def _encode_text(value: Any, name: str | None) -> bytes:
    if not isinstance(value, str):
        raise InvalidJobError(f"the handler takes a str, got {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        place = error.start
    problem = f"{name} has a lone surrogate at index {place}, which UTF-8 cannot write"
    raise InvalidJobError(f"the payload does not fit the handler: {problem}")
