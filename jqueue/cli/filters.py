"""The options by which commands choose jobs: `--status`, `--entrypoint`, `--older-than` and so on, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from jqueue.cli.printing import refusal
from jqueue.domain.durations import parse_duration
from jqueue.domain.selection import QUEUED, Phase, Selection

AGE = "takes a number with a unit: 90s, 15m, 12h, 30d or 2w"
SELECTION = "selection"
"""The parameter of a command that `selecting` replaces by the options."""

STATUSES: Mapping[str, frozenset[Phase]] = {
    **{str(phase): frozenset({phase}) for phase in Phase},
    "queued": QUEUED,
    "running": frozenset({Phase.IN_PROGRESS}),
}
"""The phases by the names that `--status` takes."""


def _option(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, show_default=False)


OPTIONS: Mapping[str, Any] = {
    "status": Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help="Only jobs that are ready, scheduled, running, dead or completed. Several: repeat, or use commas.",
            show_default=False,
            autocompletion=lambda: list(STATUSES),
        ),
    ],
    "entrypoint": Annotated[list[str] | None, _option("NAME", "Only jobs of this entrypoint; may be repeated.")],
    "older_than": Annotated[
        str | None, _option("AGE", "Only jobs ready, running, dead or completed for longer: 90s, 15m, 12h, 30d, 2w.")
    ],
    "newer_than": Annotated[str | None, _option("AGE", "Only jobs ready, running, dead or completed for less.")],
    "holder": Annotated[str | None, _option("TEXT", "Only running jobs whose holder has this text in its name.")],
    "key": Annotated[str | None, _option("KEY", "Only jobs with this unique key or concurrency key.")],
    "error": Annotated[str | None, _option("TEXT", "Only jobs whose last error has this text in it.")],
    "id": Annotated[str | None, _option("PREFIX", "Only jobs whose id begins like this.")],
}
"""The type of each option, by the name of its parameter. None means that it was not given."""


def selecting(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that choose jobs. Its parameter `selection` receives the `Selection`.

    A wrong value ends the command before it has done anything.

    Args:
        without: names of options that this command does not take, such as "status".
    """
    names = [name for name in OPTIONS if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            added = [each.replace(name=name, annotation=OPTIONS[name], default=None) for name in names]
            parameters += added if each.name == SELECTION else [each]

        @functools.wraps(command)
        def with_options(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            try:
                selection = selection_of(**given)
            except ValueError as error:
                raise refusal(str(error), as_json=bool(values.get("as_json"))) from None
            command(**values, **{SELECTION: selection})

        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate


def selection_of(
    *,
    status: Sequence[str] | None = None,
    entrypoint: Sequence[str] | None = None,
    older_than: str | None = None,
    newer_than: str | None = None,
    holder: str | None = None,
    key: str | None = None,
    error: str | None = None,
    id: str | None = None,
) -> Selection:
    """Return the selection that the options mean.

    Raises:
        ValueError: an option has a wrong value. The message names the option, but does not repeat the value.
    """
    for name, texts in (("entrypoint", entrypoint or ()), ("holder", [holder]), ("key", [key]), ("error", [error])):
        if "" in texts:
            raise ValueError(f"--{name} is empty: give a text, or leave it out")
    if id == "":
        raise ValueError("--id is empty: give the beginning of an id, or leave it out")
    return Selection(
        phases=_phases(status or ()),
        entrypoints=frozenset(entrypoint or ()),
        older_than=_age("--older-than", older_than),
        newer_than=_age("--newer-than", newer_than),
        holder=holder,
        key=key,
        error=error,
        id_prefix=id,
    )


def _phases(status: Sequence[str]) -> frozenset[Phase]:
    found: set[Phase] = set()
    for word in ",".join(status).split(",") if status else ():
        name = word.strip().lower().replace("-", "_").replace(" ", "_")
        if name not in STATUSES:
            raise ValueError("--status takes ready, scheduled, queued (both), running, dead, completed or expired")
        found |= STATUSES[name]
    return frozenset(found)


def _age(option: str, text: str | None) -> float | None:
    seconds = None if text is None else parse_duration(text)
    if text is not None and seconds is None:
        raise ValueError(f"{option} {AGE}")
    return seconds
