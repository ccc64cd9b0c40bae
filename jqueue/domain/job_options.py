"""The options of a job, each said once: name, type, default, check, size, field, capability, and a line of words.

Each option is one line of a `TypedDict`, so that type checkers and editors know it wherever options are passed on as
`**options: Unpack[EnqueueOptions]`. The `Option` in its `Annotated` says the rest. The verbs, `Enqueue`, cron entries,
staged jobs, Spark's columns, the fields that older formats lack and the tables in the docs are made of this list, or
a test holds them against it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.errors import InvalidJobError, shown
from jqueue.domain.fields import COUNT_MAX, NO_HEADERS
from jqueue.domain.limits import Limits, check_headers, check_integer, check_name, check_priority, written_bytes
from jqueue.domain.option_names import unknown

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])

Check = Callable[[str, Any, Limits], Any]
"""Takes the name of an option, the value given and the queue's limits. Returns the value to store, or raises."""

OnConflict = Literal["return", "raise", "replace"]
"""What an enqueue does when its unique key is taken."""

CONFLICTS = get_args(OnConflict)


def _integer(name: str, value: object, limits: Limits) -> int:
    return check_integer(name, value, 1, COUNT_MAX)


def _seconds(name: str, value: object, limits: Limits) -> float:
    return to_seconds(name, value)


def _time(name: str, value: object, limits: Limits) -> datetime:
    return check_time(name, value).astimezone(UTC)


def _headers(name: str, value: Any, limits: Limits) -> Mapping[str, str]:
    return check_headers(value, limits)


def _headers_bytes(headers: Mapping[str, str]) -> int:
    size = 0
    for name, text in headers.items():
        size += written_bytes(name) + written_bytes(text) + 8
    return size


def _conflict(name: str, value: object, limits: Limits) -> object:
    return check_conflict(value)


def check_conflict(value: object) -> object:
    """One of the three things that an enqueue can do when its unique key is taken.

    Raises:
        InvalidJobError: it is none of them.
    """
    if value not in CONFLICTS:
        raise InvalidJobError(f"on_conflict must be one of {CONFLICTS}, got {shown(value)}")
    return value


def _priority(name: str, value: object, limits: Limits) -> int:
    return check_priority(value)


def _as_given(name: str, value: object, limits: Limits) -> object:
    return value


SAME = "the field of the same name"


@dataclass(frozen=True, slots=True)
class Option:
    """All there is to say of one option.

    Attributes:
        words: what it does, in a line.
        check: checks a value, and makes of it the value to store.
        default: the value if it is not given.
        name: as it is given; filled in from the list that it stands in.
        type: of the values that callers give; filled in as well.
        field: the field of the job, and of its line in the blob, that holds it; None if the job does not keep it.
        unset: the value of that field if the option was not given.
        size: number of bytes that the stored value takes in the blob, if that counts.
        capability: what a queue must be able to do: see `Capabilities`. None: every queue takes it.
        needs: another option, without which it means nothing.
        excludes: another option, which must not be given as well.
        in_bulk: True if jobs that are staged for a bulk enqueue may have it. It is a column of Spark's then.
    """

    words: str
    check: Check = _as_given
    default: Any = None
    name: str = ""
    type: Any = None
    field: str | None = SAME
    unset: Any = None
    size: Callable[[Any], int] | None = None
    capability: str | None = None
    needs: str | None = None
    excludes: str | None = None
    in_bulk: bool = False

    @property
    def kind(self) -> type:
        """The type of its values, without None and without the other forms of a duration: `timedelta` stands for it."""
        kinds = get_args(self.type) or (self.type,)
        return timedelta if timedelta in kinds else get_origin(kinds[0]) or kinds[0]


class PriorityOption(TypedDict, total=False):
    """The priority, where it is given by name."""

    priority: Annotated[
        int,
        Option("lower is served first; 32 bits.", _priority, default=0, unset=0, capability="priority", in_bulk=True),
    ]


class OnceOptions(TypedDict, total=False):
    """What is said of one job alone."""

    job_id: Annotated[
        str | None,
        Option(
            "makes the call idempotent: a job with this id, live or recently finished, is returned as it is.",
            check_name,
            field="id",
            capability="job_ids",
        ),
    ]
    delay: Annotated[
        Duration | None,
        Option(
            "not to be claimed before so long from now; not together with `run_at`.",
            _seconds,
            field=None,
            capability="delay",
            excludes="run_at",
            in_bulk=True,
        ),
    ]
    run_at: Annotated[
        datetime | None, Option("not to be claimed before this time.", _time, capability="delay", in_bulk=True)
    ]
    expires_at: Annotated[
        datetime | None, Option("to be removed if nobody has claimed it by this time.", _time, capability="expiry")
    ]
    unique_for: Annotated[
        Duration | None,
        Option(
            "how long the unique key stays taken after the ack.",
            _seconds,
            capability="unique_keys",
            needs="unique_key",
        ),
    ]
    on_conflict: Annotated[
        OnConflict,
        Option(
            'if the unique key is taken, "return" the job that has it, "raise", or "replace" it if it is queued.',
            _conflict,
            default="return",
            field=None,
        ),
    ]


class RepeatedOptions(TypedDict, total=False):
    """What may be said of all jobs of a cron entry, too."""

    unique_key: Annotated[
        str | None,
        Option(
            "no second job with the same key, while one is queued, scheduled or in progress.",
            check_name,
            size=lambda key: written_bytes(key) + 4,
            capability="unique_keys",
            in_bulk=True,
        ),
    ]
    headers: Annotated[
        Mapping[str, str] | None,
        Option(
            "names and texts that travel with it.",
            _headers,
            unset=NO_HEADERS,
            size=_headers_bytes,
            capability="headers",
            in_bulk=True,
        ),
    ]
    max_attempts: Annotated[
        int | None,
        Option(
            "after so many failures it is dead; None means never.", _integer, capability="dead_letters", in_bulk=True
        ),
    ]
    concurrency_key: Annotated[
        str | None,
        Option(
            "jobs that share it, of whatever entrypoint, are not claimed beyond a ceiling.",
            check_name,
            size=lambda key: written_bytes(key) + 24,
            capability="limits",
        ),
    ]
    concurrency_limit: Annotated[
        int | None,
        Option(
            "it is claimed while fewer jobs with the key are in progress. 1 if not given.",
            _integer,
            capability="limits",
            needs="concurrency_key",
        ),
    ]
    keep_result: Annotated[
        Duration | None,
        Option(
            "how long the result is kept after the ack; None means not at all.",
            _seconds,
            capability="results",
            in_bulk=True,
        ),
    ]


class EnqueueOptions(OnceOptions, RepeatedOptions, total=False):
    """What `enqueue` and `Enqueue` take by name besides entrypoint, payload and priority."""


class ScheduleOptions(PriorityOption, RepeatedOptions, total=False):
    """What `schedule` and `SetSchedule` take by name of the jobs of a cron entry."""


def options_of(kind: type) -> dict[str, Option]:
    """The options in a list of them, by name.

    Args:
        kind: one of the `TypedDict`s here, or one made of them.
    """
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        given = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)), None)
        if given is not None:
            stored = name if given.field == SAME else given.field
            found[name] = replace(given, name=name, type=get_args(hint)[0], field=stored)
    return found


OPTIONS: Mapping[str, Option] = options_of(EnqueueOptions)
"""Every option of an enqueue that is given by name."""

ALL_OPTIONS: Mapping[str, Option] = {**options_of(PriorityOption), **OPTIONS}
"""The same, and the priority."""

SCHEDULE_OPTIONS: Mapping[str, Option] = options_of(ScheduleOptions)
"""The options that the jobs of a cron entry may have."""

STORED: Mapping[str, Option] = {each.field: each for each in ALL_OPTIONS.values() if each.field is not None}
"""The options that a job keeps, by its field."""

IN_BULK: Mapping[str, Option] = {name: each for name, each in ALL_OPTIONS.items() if each.in_bulk}
"""The options that jobs of a bulk enqueue may have."""

_KNOWN = ("entrypoint", "payload", *ALL_OPTIONS, "deadline")
_CHECKS = {name: (each.check, each.default) for name, each in OPTIONS.items()}
_TIMES = frozenset(name for name, each in OPTIONS.items() if datetime in get_args(each.type))
_SIZED = tuple((name, each.size) for name, each in STORED.items() if each.size is not None)
_NEEDY = tuple(
    (name, each.unset, each.capability)
    for name, each in STORED.items()
    if name != "id" and each.capability is not None and each.needs is None
)
_BOUND = {
    name: (each.needs, each.excludes) for name, each in OPTIONS.items() if each.needs is not None or each.excludes
}


def check_options(options: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The values to store of the options that say something, by name.

    Raises:
        InvalidJobError: a value is wrong, or an option lacks another one, or excludes it.
        TypeError: there is no such option; the message says which one was meant.
    """
    checked = {}
    for name, value in options.items():
        if name not in _CHECKS:
            raise unknown("enqueue", name, _KNOWN)
        check, default = _CHECKS[name]
        if value is not default:
            checked[name] = check(name, value, limits)
    for name in () if _BOUND.keys().isdisjoint(checked) else checked.keys() & _BOUND:
        needed, excluded = _BOUND[name]
        if needed is not None and needed not in checked:
            raise InvalidJobError(f"{name} needs a {needed}")
        if excluded in checked:
            raise InvalidJobError(f"give either {name} or {excluded}, not both")
    return checked


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say something as JSON values, which `options_of_plain` reads. They must have been checked."""
    return {name: _plain(value) for name, value in options.items() if value != OPTIONS[name].default}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(value) if isinstance(value, Mapping) else value


def options_of_plain(said: Mapping[str, Any]) -> dict[str, Any]:
    """Options from JSON values that `plain_options` made, and whatever stands beside them."""
    return {name: datetime.fromisoformat(value) if name in _TIMES else value for name, value in said.items()}


def options_bytes(values: Mapping[str, Any]) -> int:
    """About how many bytes the options among the fields of a job take in the blob."""
    size = 0
    for name, size_of in _SIZED:
        value = values[name]
        if value:
            size += size_of(value)
    return size


def options_needed(values: Mapping[str, Any]) -> Iterator[str]:
    """The capabilities without which a queue cannot keep the options among the fields of a new job, its id apart."""
    for name, unset, capability in _NEEDY:
        if values[name] != unset:
            yield capability


def with_options(listed: type) -> Callable[[type[Made]], type[Made]]:
    """Class decorator, below `@dataclass`: a field, by name only, for each option in a list, told in the docstring.

    A type checker cannot see these fields. The class tells it by an `__init__` and a `__getattr__` of its own, both
    within `if TYPE_CHECKING`.

    Args:
        listed: the `TypedDict` that lists them.
    """

    def add(kind: type[Made]) -> type[Made]:
        options = options_of(listed)
        kind.__annotations__ = {**kind.__annotations__, **{name: each.type for name, each in options.items()}}
        for name, option in options.items():
            setattr(kind, name, field(default=option.default, repr=name != "headers", kw_only=True))
        kind.__doc__ = _told(kind.__doc__, "Attributes:", options.values())
        return kind

    return add


def takes_options(listed: type) -> Callable[[Function], Function]:
    """Decorator of a function that ends in `**options`: its signature and its docstring show each option in a list.

    The function itself is returned: this costs its calls nothing.

    Args:
        listed: the `TypedDict` that lists them.
    """

    def show(function: Function) -> Function:
        options = options_of(listed)
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
            for name, option in options.items()
        ]
        own = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
        first = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        last = [each for each in own if each.kind is each.KEYWORD_ONLY]
        returned = inspect.signature(function).return_annotation
        signature = inspect.Signature([*first, *named, *last], return_annotation=returned)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__doc__ = _told(function.__doc__, "Args:", options.values())
        return function

    return show


def _told(text: str | None, section: str, options: Iterable[Option]) -> str | None:
    """A docstring with a line for each option at the end of a section; as it is if it has no such section."""
    if text is None or section not in text:  # python -OO drops docstrings
        return text
    before, head, rest = inspect.cleandoc(text).partition(section)
    listed, gap, after = rest.partition("\n\n")
    lines = "".join(f"\n    {option.name}: {option.words}" for option in options)
    return f"{before}{head}{listed}{lines}{gap}{after}"
