"""`jqueue configure URL`: changes the settings of a queue as a whole; without options, it shows them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue
from jqueue.cli.printing import length, refusal, show, show_json, size
from jqueue.cli.values import duration
from jqueue.cli.values import size as size_of
from jqueue.domain.rules import SETTINGS, QueueSettings


def _setting(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, show_default=False)


def configure(
    url: URL,
    history: Annotated[str | None, _setting("DURATION", "Keep the events of jobs for this time.")] = None,
    no_history: Annotated[bool, typer.Option("--no-history", help="Keep no events.")] = False,
    history_bytes: Annotated[
        str | None, _setting("SIZE", "Remove the oldest events above this size: 512MiB, 2GiB.")
    ] = None,
    no_history_bytes: Annotated[bool, typer.Option("--no-history-bytes", help="No limit on that size.")] = False,
    history_payloads: Annotated[
        bool | None,
        typer.Option(
            "--history-payloads/--no-history-payloads", help="Keep payloads with the events.", show_default=False
        ),
    ] = None,
    dead_retention: Annotated[str | None, _setting("DURATION", "Remove dead jobs after this time.")] = None,
    no_dead_retention: Annotated[
        bool, typer.Option("--no-dead-retention", help="Keep dead jobs until they are purged.")
    ] = False,
    blob_bytes: Annotated[
        str | None, _setting("SIZE", "Size limit of the queue's object, for every program: 64MiB.")
    ] = None,
    no_blob_bytes: Annotated[
        bool, typer.Option("--no-blob-bytes", help="Each program uses its own size limit.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Change the settings of a queue; without options, show them.

    A setting that is not named stays as it is. A DURATION is in seconds, or has a unit: 60, 90s, 15m, 12h, 30d.

    Once a history was kept, versions of jqueue that know no history refuse the queue.
    """
    texts = {"history": history, "dead_retention": dead_retention}
    sizes = {"history_bytes": history_bytes, "blob_bytes": blob_bytes}
    unset = {
        "history": no_history,
        "history_bytes": no_history_bytes,
        "dead_retention": no_dead_retention,
        "blob_bytes": no_blob_bytes,
    }
    try:
        changes: dict[str, Any] = {
            name: duration(_flag(name), text) for name, text in texts.items() if text is not None
        }
        changes |= {name: size_of(_flag(name), text) for name, text in sizes.items() if text is not None}
    except ValueError as error:
        raise refusal(str(error), as_json=as_json) from None
    for name, wanted in unset.items():
        if wanted and name in changes:
            raise refusal(f"give {_flag(name)} or --no-{_flag(name)[2:]}, not both", as_json=as_json)
        changes |= {name: None} if wanted else {}
    if history_payloads is not None:
        changes["history_payloads"] = history_payloads

    async def change(opened: OpenedQueue) -> QueueSettings:
        settings: QueueSettings = await certain(opened.queue.configure(**changes))
        return settings

    settings = on_queue(url, change, as_json=as_json)
    if as_json:
        show_json({name: getattr(settings, name) for name in SETTINGS})
    else:
        show(*_lines(settings))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _lines(settings: QueueSettings) -> list[str]:
    """Return the settings, a line for each."""

    def lasting(seconds: float | None, otherwise: str) -> str:
        return otherwise if seconds is None else length(seconds)

    def sized(number: int | None, otherwise: str) -> str:
        return otherwise if number is None else size(number)

    shown = {
        "history": lasting(settings.history, "not kept"),
        "history-bytes": sized(settings.history_bytes, "no limit"),
        "history-payloads": "kept" if settings.history_payloads else "not kept",
        "dead-retention": lasting(settings.dead_retention, "until they are purged"),
        "blob-bytes": sized(settings.blob_bytes, "each program uses its own limit"),
    }
    return [f"{name:17} {text}" for name, text in shown.items()]
