"""Options that several commands share: filters of jobs, values as people write them, payloads, the options of a job.

An error names the option and a right value. It does not repeat what was typed, which may be a URL with a secret.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, get_args, get_origin

from jqueue.cli.help import RefusedError
from jqueue.cli.parameters import argument, option
from jqueue.domain.durations import parse_duration
from jqueue.domain.job_options import Option, options_of
from jqueue.domain.large_values import PayloadSource
from jqueue.domain.limits import Limits
from jqueue.domain.selection import QUEUED, Phase, Selection
from jqueue.ports.queue import Capabilities
from jqueue.runtime.threads import in_a_thread

STATUSES: Mapping[str, frozenset[Phase]] = {
    **{str(phase): frozenset({phase}) for phase in Phase},
    "queued": QUEUED,
    "running": frozenset({Phase.IN_PROGRESS}),
}
"""The phases by the names that `--status` takes."""

NAMES = "ready, scheduled, waiting, queued (all three), running, dead, completed or expired"


FILTERS: Mapping[str, Any] = {
    "status": Annotated[
        list[str] | None,
        option(
            "STATUS",
            f"Only jobs that are {NAMES}. Several: repeat, or use commas.",
            autocompletion=lambda: list(STATUSES),
        ),
    ],
    "entrypoint": Annotated[list[str] | None, option("NAME", "Only jobs of this entrypoint; may be repeated.")],
    "older_than": Annotated[
        str | None, option("AGE", "Only jobs ready, running, dead or completed for longer: 90s, 15m, 12h, 30d, 2w.")
    ],
    "newer_than": Annotated[str | None, option("AGE", "Only jobs ready, running, dead or completed for less.")],
    "holder": Annotated[str | None, option("TEXT", "Only running jobs whose holder has this text in its name.")],
    "key": Annotated[str | None, option("KEY", "Only jobs with this unique, concurrency or fair key.")],
    "error": Annotated[str | None, option("TEXT", "Only jobs whose last error has this text in it.")],
    "payload": Annotated[
        str | None,
        option(
            "TEXT",
            "Only jobs whose payload has this text in it, as it is or escaped as in JSON. Payloads in objects are not "
            "read.",
        ),
    ],
    "id": Annotated[str | None, option("PREFIX", "Only jobs whose id begins like this.")],
    "group": Annotated[str | None, option("ID", "Only jobs of this group.")],
}
"""The type of each option that chooses jobs, by the name of its parameter. None means that it was not given."""


def expanding(
    parameter: str, types: Mapping[str, Any], read: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a parameter of a command by several options. A wrong value ends the command before it has done anything.

    Args:
        parameter: name of the parameter.
        types: the type of each option, by its name. An option that is not given is None.
        read: returns the value of the parameter, given the options. It raises `RefusedError` if one of them is wrong.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            added = [each.replace(name=name, annotation=kind, default=None) for name, kind in types.items()]
            parameters += added if each.name == parameter else [each]

        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            value = read({name: given.pop(name) for name in types})
            command(**given, **{parameter: value})

        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate


def selecting(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that choose jobs. Its parameter `selection` receives the `Selection`.

    Args:
        without: names of options that this command does not take, such as "status".
    """
    return expanding("selection", {name: FILTERS[name] for name in FILTERS if name not in without}, selection_of)


def selection_of(options: Mapping[str, Any]) -> Selection:
    """Return the selection that the options mean.

    Raises:
        RefusedError: an option has a wrong value. The message names the option, but does not repeat the value.
    """
    for name in ("entrypoint", "holder", "key", "error", "payload", "id", "group"):
        texts = options.get(name)
        if "" in (texts if isinstance(texts, list) else [texts]):
            raise RefusedError(f"--{name} is empty: give a text, or leave it out")
    if any("\ud800" <= char <= "\udfff" for char in options.get("payload") or ""):
        raise RefusedError("--payload takes text in UTF-8")
    words = [word for text in options.get("status") or () for word in text.split(",")]
    statuses = {word.strip().lower().replace("-", "_").replace(" ", "_") for word in words}
    if not statuses <= STATUSES.keys():
        raise RefusedError(f"--status takes {NAMES}")
    return Selection(
        phases=frozenset().union(*map(STATUSES.__getitem__, statuses)),
        entrypoints=frozenset(options.get("entrypoint") or ()),
        older_than=None if options.get("older_than") is None else with_unit("--older-than", options["older_than"]),
        newer_than=None if options.get("newer_than") is None else with_unit("--newer-than", options["newer_than"]),
        id_prefix=options.get("id"),
        **{name: options.get(name) for name in ("holder", "key", "error", "payload", "group")},
    )


def with_unit(option: str, text: str) -> float:
    """Return a duration in seconds: a number with a unit.

    Raises:
        RefusedError: the text is not such a number.
    """
    seconds = parse_duration(text)
    if seconds is None:
        raise RefusedError(f"{option} takes a number with a unit: 90s, 15m, 12h, 30d or 2w")
    return seconds


_SIZE = re.compile(r"([0-9]+) ?(?:(|k|m|g)(?:i?b)?)", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def duration(option: str, text: str) -> float:
    """Return a duration in seconds: a number of seconds, or a number with a unit.

    Raises:
        RefusedError: the text is not a duration.
    """
    seconds = parse_duration(text if text.strip()[-1:].isalpha() else f"{text.strip()}s")
    if seconds is None:
        raise RefusedError(f"{option} takes seconds, or a number with a unit: 60, 90s, 15m, 12h, 30d or 2w")
    return seconds


def seconds_apart(option: str, text: str) -> float:
    """Return the seconds from one thing to the next at a rate such as 10/min.

    Raises:
        RefusedError: the text is not a rate.
    """
    number, _, period = text.replace(" ", "").partition("/")
    unit = {"sec": "s", "min": "m", "hour": "h", "day": "d"}.get(period, period)
    seconds = parse_duration(unit if unit[:1].isdecimal() else f"1{unit}")
    if seconds is None or not number.isdecimal() or not int(number):
        raise RefusedError(f"{option} takes a number and a period: 5/s, 10/min, 100/h")
    return seconds / int(number)


def time(option: str, text: str) -> datetime:
    """Return a time. A text without a zone is in UTC, as all times that commands print.

    Raises:
        RefusedError: the text is not a time.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise RefusedError(
            f"{option} takes a time such as 2026-11-23T08:00 (in UTC) or 2026-11-23T08:00+01:00"
        ) from None


def past(option: str, text: str | None, now: datetime) -> datetime | None:
    """Return a time that a person gave as such, or as the time that has passed since: 2h, "2h ago". None stays None.

    Args:
        option: name of the option, for the error.
        text: the text.
        now: the present time.

    Raises:
        RefusedError: the text is not a time, or the time lies ahead.
    """
    if text is None:
        return None
    seconds = parse_duration(text.strip().removesuffix("ago"))
    with suppress(RefusedError, OverflowError):
        moment = time(option, text) if seconds is None else now - timedelta(seconds=seconds)
        if moment <= now:
            return moment
    raise RefusedError(f"{option} takes a time that is over: 2h, 30d, 2026-11-23T08:00 (in UTC) or with +01:00")


def size(option: str, text: str) -> int:
    """Return a number of bytes.

    Raises:
        RefusedError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise RefusedError(f"{option} takes a number of bytes, or one with a unit: 1048576, 512KiB, 64MiB or 2GiB")
    return int(match[1]) << 10 * _POWERS[match[2].lower()]


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return names and texts that were given as NAME=TEXT.

    Raises:
        RefusedError: one of them has no name or no "=".
    """
    texts_by_name = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise RefusedError(f"{option} takes NAME=TEXT, and may be repeated")
        texts_by_name[name] = value
    return texts_by_name


PIECE = 1 << 20
"""Number of bytes to read at once."""

STDIN = "-"

Payload = Annotated[str | None, argument("PAYLOAD", "Payload as text, or - for the standard input. Empty by default.")]
PayloadFile = Annotated[str | None, option("FILE", "Read the payload from a file of any size.", "--file", "-f")]


async def payload_of(text: str | None, file: str | None, limits: Limits, capabilities: Capabilities) -> PayloadSource:
    """Return the payload that the arguments mean: its bytes if it is small, or else a source to read it from.

    Args:
        text: the argument, if given.
        file: path of a file, if given.
        limits: limits of the queue object.
        capabilities: of the queue. If it keeps no objects, a payload must fit into the queue itself.

    Raises:
        RefusedError: both are given, or the file cannot be read.
    """
    if text is not None and file is not None:
        raise RefusedError("give the payload as an argument or with --file, not both")
    if file is None and text != STDIN:
        return (text or "").encode("utf-8", "surrogateescape")  # the bytes that the shell passed
    stdin: BinaryIO = sys.stdin.buffer
    whole = ((capabilities.objects and limits.object_bytes) or limits.most_payload(objects=False)) + 1
    try:
        named = file is not None and file != STDIN
        stream: BinaryIO = await in_a_thread(lambda: Path(str(file)).open("rb")) if named else stdin  # noqa: SIM115
        start = await in_a_thread(lambda: stream.read(whole))
    except OSError as error:
        raise unreadable_payload(str(file), error) from None
    is_large = capabilities.objects and len(start) == whole
    if is_large and (stream is stdin or not stream.seekable()):
        return _pieces(start, stream)  # a pipe cannot be read twice
    if stream is not stdin:
        stream.close()
    return Path(str(file)) if is_large else start


def unreadable_payload(file: str, error: OSError) -> RefusedError:
    """Return the error about the file of a payload."""
    return RefusedError(
        f"the file {file!r} of the payload cannot be read: {error.strerror}. To give the payload itself, write it "
        "to a file, or to the standard input, whose name is -"
    )


async def _pieces(start: bytes, stream: BinaryIO) -> AsyncIterator[bytes]:
    piece = start
    with stream:
        while piece:
            yield piece
            piece = await in_a_thread(lambda: stream.read(PIECE))


_NAMED = re.compile(r"`(\w+)`")


def with_job_flags(listed: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a job as flags. Its parameter `options` receives the given ones.

    A new option of a job becomes a flag by itself: its name, its help and the way to read it follow from its entry in
    the one list in `jqueue.domain.job_options`.

    Args:
        listed: the `TypedDict` that lists the options.
    """
    flags = options_of(listed)

    def read(texts: dict[str, Any]) -> dict[str, Any]:
        values = {name: text for name, text in texts.items() if text not in (None, [])}
        return {name: _KINDS[_kind(flags[name])][1](flag_of(name, flags[name]), text) for name, text in values.items()}

    return expanding("options", {name: _annotation(flag) for name, flag in flags.items()}, read)


def flag_of(name: str, option: Option) -> str:
    """Return the flag of an option. A mapping is given by one flag for each entry, so its name is singular."""
    return f"--{(name.removesuffix('s') if _kind(option) is Mapping else name).replace('_', '-')}"


def _kind(option: Option) -> Any:
    kind = option.kind
    if get_origin(option.type) is tuple:
        return Sequence
    if isinstance(kind, type):
        return Mapping if issubclass(kind, Mapping) else kind
    return str  # a Literal: its values are texts, and the queue checks them


def _annotation(listed: Option) -> Any:
    kind = _kind(listed)
    literals = [each for each in (listed.type, *get_args(listed.type)) if get_origin(each) is Literal]
    metavar = "|".join(get_args(literals[0])) if literals else _KINDS[kind][0]
    taken: Any = (
        kind | None if kind in (int, float) else list[str] | None if kind in (Mapping, Sequence) else str | None
    )
    return Annotated[taken, option(metavar, _help(listed), flag_of(listed.name, listed))]


def _help(option: Option) -> str:
    """Return the description of an option in words of the command line."""
    text = _NAMED.sub(lambda match: f"--{match[1].replace('_', '-')}", option.description.replace("`Worker`", "worker"))
    text = text.replace("; None means ", "; by default ").replace('"raise" DuplicateJobError', '"raise" an error')
    default = "" if option.default in (None, ()) else f" By default {option.default}."
    return text[0].upper() + text[1:] + default


_KINDS: Mapping[Any, tuple[str, Callable[[str, Any], Any]]] = {
    **dict.fromkeys((int, float), ("NUMBER", lambda flag, value: value)),
    str: ("TEXT", lambda flag, value: value),
    timedelta: ("DURATION", duration),
    datetime: ("TIME", time),
    Mapping: ("NAME=TEXT", pairs),
    Sequence: ("ID", lambda flag, value: value),
}
"""The name of the values of each kind of option in the help, and the function that reads one."""
