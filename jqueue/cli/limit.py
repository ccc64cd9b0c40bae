"""`jqueue limit URL ENTRYPOINT`: sets the limits of an entrypoint, each for itself; without options, it shows them."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue
from jqueue.cli.pause import Entrypoint
from jqueue.cli.printing import length, refusal, show, show_json
from jqueue.cli.values import duration
from jqueue.domain.errors import ChangedMeanwhileError
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.rules import SetLimits
from jqueue.domain.rules import EntrypointRules


def limit(
    url: URL,
    entrypoint: Entrypoint,
    running: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Most jobs in progress at once.", show_default=False)
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Most claims within any --per.", show_default=False)
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Period of --rate: 60, 90s, 15m, 12h.", show_default=False),
    ] = None,
    no_running: Annotated[bool, typer.Option("--no-running", help="Remove the limit on jobs in progress.")] = False,
    no_rate: Annotated[bool, typer.Option("--no-rate", help="Remove the limit on claims.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Set the limits of an entrypoint; without options, show its limits.

    They hold for all workers of the queue together. A limit that is not named stays as it is. Jobs in progress
    continue.
    """
    try:
        seconds = None if per is None else duration("--per", per)
    except ValueError as error:
        raise refusal(str(error), as_json=as_json) from None
    if (rate is None) != (per is None):
        raise refusal("give --rate and --per together: --rate 100 --per 60 means 100 claims a minute", as_json=as_json)
    if (running is not None and no_running) or (rate is not None and no_rate):
        raise refusal("give a limit, or the option that removes it, not both", as_json=as_json)

    async def change(opened: OpenedQueue) -> tuple[EntrypointRules, bool]:
        opened.queue.capabilities.require("limits")
        while True:
            before = (await opened.queue.view()).header.entrypoints.get(entrypoint, EntrypointRules())
            after = SetLimits(
                entrypoint,
                running=None if no_running else running or before.max_running,
                rate=None if no_rate else rate or before.rate,
                per=None if no_rate else before.per if seconds is None else seconds,
            )
            rules = before.evolve(max_running=after.running, rate=after.rate, per=after.per)
            if rules == before:
                return before, False
            try:
                await certain(opened.queue.apply(Guarded(after, entrypoint=entrypoint, rules=before)))
            except ChangedMeanwhileError:
                continue  # another operator was quicker: look again
            return rules, True

    rules, changed = on_queue(url, change, as_json=as_json)
    if as_json:
        told = {"running": rules.max_running, "rate": rules.rate, "per": rules.per, "paused": rules.paused}
        show_json({"entrypoint": entrypoint, **told, "changed": changed})
    else:
        show(_words(rules))


def _words(rules: EntrypointRules) -> str:
    running = "no limit" if rules.max_running is None else f"at most {rules.max_running}"
    rate = "no limit" if rules.rate is None or rules.per is None else f"at most {rules.rate} in {length(rules.per)}"
    paused = "; this entrypoint is paused" if rules.paused else ""
    return f"in progress: {running}; claims: {rate}{paused}"
