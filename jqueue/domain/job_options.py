"""The options of a job, each defined once: name, type, default, check, size, field, capability and description.

Each option is one entry of a `TypedDict`, so that type checkers and editors know it wherever options are passed on as
`**options: Unpack[EnqueueOptions]`. The `Option` in its `Annotated` has the rest. The verbs, `Enqueue`, cron entries,
staged jobs, Spark's columns, the fields that older formats lack and the tables in the docs are made from this list,
or a test compares them with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from jqueue.domain.durations import check_time, to_seconds
from jqueue.domain.errors import InvalidJobError, shown
from jqueue.domain.fields import COUNT_MAX, LEAST_WEIGHT, GivenDuration, Moment, Positive, Priority, Weight
from jqueue.domain.job import MOST_PARENTS, Encoding, JobFacts, JobRecord
from jqueue.domain.limits import (
    Limits,
    check_headers,
    check_integer,
    check_name,
    check_priority,
    written_bytes,
)

Function = TypeVar("Function", bound=Callable[..., Any])

Check = Callable[[str, Any, Limits], Any]
"""A check takes the name of an option, the value given and the queue's limits. It returns the value to store."""

OnConflict = Literal["return", "raise", "replace"]
"""The answer of an enqueue whose unique key is taken."""

CONFLICTS = get_args(OnConflict)

if TYPE_CHECKING:
    GivenParents = Sequence[JobFacts | str]
else:
    GivenParents = Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_PARENTS)]  # prepared, and as they travel

OnDead = Literal["cancel", "run"]
"""What becomes of a job if a parent dies or leaves the queue undone."""


def _integer(name: str, value: object, limits: Limits) -> int:
    return check_integer(name, value, 1, COUNT_MAX)


def _seconds(name: str, value: object, limits: Limits) -> float:
    return to_seconds(name, value)


def _time(name: str, value: object, limits: Limits) -> datetime:
    return check_time(name, value)


def _headers(name: str, value: Any, limits: Limits) -> dict[str, str] | None:
    return dict(check_headers(value, limits)) or None


def _headers_bytes(headers: Mapping[str, str]) -> int:
    size = 0
    for name, text in headers.items():
        size += written_bytes(name) + written_bytes(text) + 8
    return size


def _conflict(name: str, value: object, limits: Limits) -> object:
    return check_conflict(value)


def check_conflict(value: object) -> object:
    """Return the value if it is one of `CONFLICTS`.

    Raises:
        InvalidJobError: it is none of them.
    """
    if value not in CONFLICTS:
        raise InvalidJobError(f"on_conflict must be one of {CONFLICTS}, got {shown(value)}")
    return CONFLICTS[CONFLICTS.index(value)]


def _encoding(name: str, value: Any, limits: Limits) -> str:
    encodings = get_args(Encoding)
    if value not in encodings:
        raise InvalidJobError(f"encoding must be one of {encodings} or None, got {shown(value)}")
    return str(encodings[encodings.index(value)])


def _weight(name: str, value: Any, limits: Limits) -> float | None:
    """Return a weight; None for 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST_WEIGHT <= value <= 1:
        raise InvalidJobError(
            f"{name} must be a number from {LEAST_WEIGHT} to 1, got {shown(value)}: to give a key more turns, give the "
            "others less"
        )
    return None if value == 1 else float(value)


def _timeout(name: str, value: object, limits: Limits) -> object:
    """Return a duration above 0 in seconds."""
    seconds = _seconds(name, value, limits)
    if seconds == 0:
        raise InvalidJobError(f"{name} must be more than 0 seconds, or None")
    return seconds


def _priority(name: str, value: object, limits: Limits) -> int:
    return check_priority(value)


def _parents(name: str, value: object, limits: Limits) -> tuple[str, ...]:
    """Return the ids of parents, each once."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidJobError(f"{name} takes a list of jobs or of their ids, got {type(value).__name__}")
    if not all(isinstance(each, str | JobFacts) for each in value):
        raise InvalidJobError(f"{name} takes jobs or their ids, and one of the list is something else")
    ids = (each if isinstance(each, str) else each.id for each in value)
    parents = tuple(dict.fromkeys(check_name(name, each, limits) for each in ids))
    if len(parents) > MOST_PARENTS:
        raise InvalidJobError(f"{name} has {len(parents)} jobs; the limit is {MOST_PARENTS}: use a group for more")
    return parents


def _parents_bytes(parents: Sequence[str]) -> int:
    return sum(2 * (written_bytes(each) + 4) for each in parents)  # a waiting job has those that are not done twice


def _on_dead(name: str, value: object, limits: Limits) -> object:
    choices = get_args(OnDead)
    if value not in choices:
        raise InvalidJobError(f"on_dead must be one of {choices}, got {shown(value)}")
    return choices[choices.index(value)]


def _as_given(name: str, value: object, limits: Limits) -> object:
    return value


SAME = "the field of the same name"


class Option(msgspec.Struct, frozen=True):
    """The definition of one option.

    Attributes:
        description: its description, one line.
        check: checks a given value, and returns the value to store.
        default: the value if it is not given.
        name: its name as callers give it; taken from the `TypedDict` that defines it.
        type: the type of the values that callers give; taken from there as well.
        field: the field of the job, and of its line in the blob, that holds it; None if the job does not keep it.
        unset: the value of that field if the option was not given.
        size: returns the number of bytes that a stored value takes in the blob; None if it is not counted.
        capability: the capability that a queue needs to take it: see `Capabilities`. None: every queue takes it.
        needs: another option that must be given too.
        excludes: another option that must not be given too.
        in_bulk: True if jobs that are staged for a bulk enqueue may have it. Spark then has a column for it.
    """

    description: str
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
    in_bulk: bool = True

    @property
    def kind(self) -> type:
        """The type of its values, without None. For a duration it is `timedelta`, without the numbers of seconds."""
        kinds = get_args(self.type) or (self.type,)
        return timedelta if timedelta in kinds else get_origin(kinds[0]) or kinds[0]


class PriorityOption(TypedDict, total=False):
    """The priority, for verbs that take it by name."""

    priority: Annotated[
        Priority,
        Option("lower is served first; a signed 32-bit number.", _priority, default=0, unset=0, capability="priority"),
    ]


class OnceOptions(TypedDict, total=False):
    """Options for a single job, which a cron entry does not take."""

    job_id: Annotated[
        str | None,
        Option(
            "the job's id; None means a new UUID. A given id makes the call idempotent: a live or recently finished "
            "job with this id is returned.",
            check_name,
            field="id",
            capability="job_ids",
            in_bulk=False,
        ),
    ]
    delay: Annotated[
        GivenDuration | None,
        Option(
            "time from now before which the job is not claimed; None means none. Not together with `run_at`.",
            _seconds,
            field=None,
            capability="delay",
            excludes="run_at",
        ),
    ]
    run_at: Annotated[
        Moment | None, Option("time before which the job is not claimed; None means now.", _time, capability="delay")
    ]
    expires_at: Annotated[
        Moment | None,
        Option(
            "time at which the job is removed if no worker has claimed it; None means never.",
            _time,
            capability="expiry",
        ),
    ]
    unique_for: Annotated[
        GivenDuration | None,
        Option(
            "time for which the unique key stays taken after the ack; None means not at all.",
            _seconds,
            capability="unique_keys",
            needs="unique_key",
        ),
    ]
    on_conflict: Annotated[
        OnConflict,
        Option(
            'answer if the unique key is taken: "return" the job that has it, "raise" DuplicateJobError, or "replace" '
            'that job if it is queued. "raise" also refuses a job id that is taken.',
            _conflict,
            default="return",
            field=None,
            in_bulk=False,
        ),
    ]
    timeout: Annotated[
        GivenDuration | None,
        Option(
            "time that its handler may take for the job; None means the time of the handler itself. A batch has that "
            "of its handler.",
            _timeout,
            capability="timeouts",
        ),
    ]
    group: Annotated[
        str | None,
        Option(
            "id of the group that the job belongs to; None means no group.",
            check_name,
            size=lambda group: written_bytes(group) + 9,
            capability="groups",
        ),
    ]
    after: Annotated[
        GivenParents,
        Option(
            "jobs, or their ids, that must be done before this one is claimed: its parents, at most 100. They may "
            "wait, run, or have finished lately. By default there are none.",
            _parents,
            default=(),
            unset=(),
            size=_parents_bytes,
            capability="parents",
            in_bulk=False,
        ),
    ]
    on_dead: Annotated[
        OnDead | None,
        Option(
            'what to do if a parent dies, or leaves the queue without being done: "cancel" this job too, or "run" it; '
            "None means to wait until a dead parent is redriven, and to die with one that is gone.",
            _on_dead,
            capability="parents",
            needs="after",
            in_bulk=False,
        ),
    ]


class RepeatedOptions(TypedDict, total=False):
    """Options for a single job, and for all jobs of a cron entry."""

    unique_key: Annotated[
        str | None,
        Option(
            "key that only one queued, scheduled or running job can have; None means no key.",
            check_name,
            size=lambda key: written_bytes(key) + 4,
            capability="unique_keys",
        ),
    ]
    headers: Annotated[
        Mapping[str, str] | None,
        Option(
            "names and texts that travel with the job; None means no headers.",
            _headers,
            size=_headers_bytes,
            capability="headers",
        ),
    ]
    max_attempts: Annotated[
        Positive | None,
        Option(
            "number of failures after which the job is dead; None means the number of its handler in a `Worker`, which "
            "is 20 unless set. Without a `Worker`, such a job is tried for ever.",
            _integer,
            capability="dead_letters",
        ),
    ]
    concurrency_key: Annotated[
        str | None,
        Option(
            "key of jobs that are limited together, whatever their entrypoints; None means no key.",
            check_name,
            size=lambda key: written_bytes(key) + 24,
            capability="limits",
        ),
    ]
    concurrency_limit: Annotated[
        Positive | None,
        Option(
            "the job is claimed only while fewer than this many jobs with its key are in progress; None means 1.",
            _integer,
            capability="limits",
            needs="concurrency_key",
        ),
    ]
    fair_key: Annotated[
        str | None,
        Option(
            "jobs of one entrypoint and priority are served in turn among these keys, such as customers; None means a "
            "key that all jobs without one share.",
            check_name,
            size=lambda key: written_bytes(key) + 14,
            capability="limits",
            in_bulk=False,
        ),
    ]
    fair_weight: Annotated[
        Weight | None,
        Option(
            "share of turns, from 0.01 to 1: with 0.25, the job's key gets a turn in every fourth round; None means 1.",
            _weight,
            size=lambda weight: 35,
            capability="limits",
            needs="fair_key",
            in_bulk=False,
        ),
    ]
    keep_result: Annotated[
        GivenDuration | None,
        Option(
            "time for which the result is kept after the ack; None means the time of its handler in a `Worker`, if it "
            "has one, and else not at all.",
            _seconds,
            capability="results",
        ),
    ]


class EncodingOption(TypedDict, total=False):
    """How the payload of a job is encoded. Handlers give it to their own calls."""

    encoding: Annotated[
        Encoding | None,
        Option(
            '"named" if the payload is a JSON object with the arguments of the handler by name, "chained" if the first '
            "is the result of its last parent; None means one value.",
            _encoding,
            size=lambda encoding: len(encoding) + 15,
            capability="encodings",
            in_bulk=False,
        ),
    ]


class EnqueueOptions(OnceOptions, RepeatedOptions, EncodingOption, total=False):
    """Keyword options of `enqueue` and `Enqueue` besides entrypoint, payload and priority."""


class ScheduleOptions(PriorityOption, RepeatedOptions, EncodingOption, total=False):
    """Keyword options of `schedule` and `SetSchedule` for the jobs of a cron entry."""


@cache
def options_of(kind: type) -> Mapping[str, Option]:
    """Return the options that a `TypedDict` defines, by name.

    Args:
        kind: one of the `TypedDict`s here, or a `TypedDict` that inherits from them.
    """
    options, types = {}, get_type_hints(kind)
    for name, hint in get_type_hints(kind, include_extras=True).items():
        option = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)), None)
        if option is not None:
            stored = name if option.field == SAME else option.field
            options[name] = msgspec.structs.replace(option, name=name, type=types[name], field=stored)
    return options


OPTIONS: Mapping[str, Option] = options_of(EnqueueOptions)
"""Every keyword option of an enqueue."""

ALL_OPTIONS: Mapping[str, Option] = {**options_of(PriorityOption), **OPTIONS}
"""`OPTIONS` and the priority."""

SCHEDULE_OPTIONS: Mapping[str, Option] = options_of(ScheduleOptions)
"""The options that the jobs of a cron entry may have."""

STORED: Mapping[str, Option] = {each.field: each for each in ALL_OPTIONS.values() if each.field is not None}
"""The options that a job keeps, by the field that holds them."""

IN_BULK: Mapping[str, Option] = {name: each for name, each in ALL_OPTIONS.items() if each.in_bulk}
"""The options that jobs of a bulk enqueue may have."""

_CHECKS = {name: (each.check, each.default) for name, each in OPTIONS.items()}
_SIZED = tuple((name, each.size) for name, each in STORED.items() if each.size is not None)
_NEEDY = tuple(
    (name, each.unset, each.capability)
    for name, each in STORED.items()
    if name != "id" and each.capability is not None and each.needs is None
)
_BOUND = {
    name: (each.needs, each.excludes) for name, each in OPTIONS.items() if each.needs is not None or each.excludes
}


def check_names(verb: str, names: Iterable[str], option_names: Iterable[str]) -> None:
    """Check that all given options of a verb are known.

    Raises:
        TypeError: one is not. The message names it.
    """
    for name in names:
        if name not in option_names:
            raise TypeError(f"{verb}: there is no option {name!r} (the options are {', '.join(option_names)})")


def check_options(options: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the values to store, by name, of the options that differ from their defaults.

    Raises:
        InvalidJobError: a value is wrong, an option needs another one, or two exclude each other.
        TypeError: there is no such option.
    """
    check_names("enqueue", options, _CHECKS)
    checked = {}
    for name, value in options.items():
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


def options_bytes(job: JobRecord) -> int:
    """Return about how many bytes the options of a job take in the blob."""
    size = 0
    for name, size_of in _SIZED:
        value = getattr(job, name)
        if value:
            size += size_of(value)
    return size


def options_needed(job: Any) -> Iterator[str]:
    """Yield the capabilities that a queue needs to keep a new job's options. Its id is left out.

    Args:
        job: the job, or its enqueue.
    """
    for name, unset, capability in _NEEDY:
        if getattr(job, name) != unset:
            yield capability


def takes_options(listed: type) -> Callable[[Function], Function]:
    """Decorate a function that ends in `**options`: show each option in its signature and its docstring.

    The function itself is returned, so its calls cost nothing more.

    Args:
        listed: the `TypedDict` that lists the options.
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
    """Return a docstring with a line for each option at the end of a section; unchanged if it has no such section."""
    if text is None or section not in text:  # python -OO drops docstrings
        return text
    before, head, rest = inspect.cleandoc(text).partition(section)
    listed, gap, after = rest.partition("\n\n")
    lines = "".join(f"\n    {option.name}: {option.description}" for option in options)
    return f"{before}{head}{listed}{lines}{gap}{after}"
