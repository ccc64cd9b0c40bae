"""`jqueue enqueue URL ENTRYPOINT [PAYLOAD]`: adds a job, and prints its id."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec.structs import replace

from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, AsJSON, Create, OpenedQueue, on_queue
from jqueue.cli.options import Payload, PayloadFile, payload_of, with_job_flags
from jqueue.cli.parameters import argument
from jqueue.cli.printing import note, show_json
from jqueue.domain.errors import DuplicateJobError, UnknownOutcomeError
from jqueue.domain.job_options import EnqueueOptions, PriorityOption
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.printable import printable


class Flags(PriorityOption, EnqueueOptions, total=False):
    """The options of the job."""


@with_job_flags(Flags)
def enqueue(
    url: URL,
    entrypoint: Annotated[str, argument("ENTRYPOINT", "Name of the handler.")],
    payload: Payload = None,
    file: PayloadFile = None,
    options: dict[str, Any] = {},  # noqa: B006 - replaced by the flags
    create: Create = False,
    as_json: AsJSON = False,
) -> None:
    """Add a job, and print its id.

    Once the id is printed, no crash loses the job. If there is no queue at the URL, the job creates it, and a line says
    so. A missing folder is an error, as the path is probably misspelled; --create makes it.

    A DURATION is in seconds, or has a unit: 60, 90s, 15m, 12h, 30d. A TIME is like 2026-11-23T08:00, in UTC, or has a
    zone at its end.

    If the connection is lost half-way, the job may be there or not: repeat the command with the --job-id that the
    error shows, and the job is added at most once.
    """

    async def add(opened: OpenedQueue) -> tuple[str, str | None]:
        limits, capabilities = opened.queue.options.limits, opened.queue.capabilities
        content = await payload_of(payload, file, limits, capabilities)
        try:
            answer = await _added(opened, Enqueue(entrypoint, content, **options))
        except UnknownOutcomeError as error:
            again = f" --job-id {error.job_ids[0]}" if error.job_ids else ""
            raise RefusedError(
                "the outcome is unknown: the connection failed before it was certain whether the job was added. Repeat "
                f"the command with{again}: the job is then added at most once"
            ) from None
        if opened.view.absent:
            note(f"there was no queue at {opened.name}: this job created it")
        return answer

    job_id, instead = on_queue(url, add, create=create, absent=True)
    if as_json:
        show_json({"id": job_id, "entrypoint": entrypoint, "added": instead is None})
    else:
        typer.echo(printable(job_id))
        if instead is not None:
            note(instead)


async def _added(opened: OpenedQueue, operation: Enqueue) -> tuple[str, str | None]:
    """Add a job. Return its id, and None or the reason why an earlier job with its id or key was left in its place."""
    is_refused = operation.on_conflict != "return"
    try:
        return (await opened.apply(operation if is_refused else replace(operation, on_conflict="raise"))).id, None
    except DuplicateJobError as error:
        if is_refused:
            raise
        return error.job_id, f"no job was added: {error}"
