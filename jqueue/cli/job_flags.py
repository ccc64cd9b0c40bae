"""The options of a job as flags of a command, made from the one list in `jqueue.domain.job_options`.

A new option of a job becomes a flag by itself: its name, its help and the way to read it follow from its entry there.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, get_args

import typer

from jqueue.cli import values
from jqueue.cli.printing import refusal
from jqueue.domain.job_options import Option, options_of

OPTIONS = "options"
"""The parameter of a command that `with_job_flags` replaces by the flags."""

_NAMED = re.compile(r"`(\w+)`")


def with_job_flags(listed: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a job as flags. Its parameter `options` receives the given ones.

    A wrong value ends the command before it has done anything.

    Args:
        listed: the `TypedDict` that lists the options.
    """
    flags = options_of(listed)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            added = [
                each.replace(name=name, annotation=_annotation(flag), default=None) for name, flag in flags.items()
            ]
            parameters += added if each.name == OPTIONS else [each]

        @functools.wraps(command)
        def with_flags(**given: Any) -> None:
            texts = {name: given.pop(name) for name in flags}
            try:
                options = read_options(flags, {name: text for name, text in texts.items() if text not in (None, [])})
            except ValueError as error:
                raise refusal(str(error), as_json=bool(given.get("as_json"))) from None
            command(**given, **{OPTIONS: options})

        with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_flags

    return decorate


def read_options(flags: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job that the values of flags mean.

    Raises:
        ValueError: a value is wrong. The message names the flag, but does not repeat the value.
    """
    return {name: _READERS[_kind(flags[name])](flag_of(name, flags[name]), value) for name, value in given.items()}


def flag_of(name: str, option: Option) -> str:
    """Return the flag of an option. A mapping is given by one flag for each entry, so its name is singular."""
    return f"--{(name.removesuffix('s') if _kind(option) is Mapping else name).replace('_', '-')}"


def _kind(option: Option) -> Any:
    kind = option.kind
    if isinstance(kind, type):
        return Mapping if issubclass(kind, Mapping) else kind
    return str  # a Literal: its values are texts, and the queue checks them


def _annotation(option: Option) -> Any:
    kind = _kind(option)
    choices = get_args(option.type) if not isinstance(option.kind, type) else ()
    metavar = "|".join(choices) if choices else _METAVARS[kind]
    taken: Any = int | None if kind is int else list[str] | None if kind is Mapping else str | None
    return Annotated[
        taken, typer.Option(flag_of(option.name, option), metavar=metavar, help=_help(option), show_default=False)
    ]


def _help(option: Option) -> str:
    """Return the description of an option in words of the command line."""
    text = _NAMED.sub(lambda match: f"--{match[1].replace('_', '-')}", option.description)
    text = text.replace("; None means ", "; by default ").replace('"raise" DuplicateJobError', '"raise" an error')
    return text[0].upper() + text[1:]


_METAVARS: Mapping[Any, str] = {
    int: "NUMBER",
    str: "TEXT",
    timedelta: "DURATION",
    datetime: "TIME",
    Mapping: "NAME=TEXT",
}
_READERS: Mapping[Any, Callable[[str, Any], Any]] = {
    int: lambda flag, value: value,
    str: lambda flag, value: value,
    timedelta: values.duration,
    datetime: values.time,
    Mapping: values.pairs,
}
