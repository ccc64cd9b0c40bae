"""`jqueue edit URL ID`: a job, a cron entry, limits or settings in the user's editor."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from jqueue.cli.documents import Document, Values
from jqueue.cli.editor import EditedFile
from jqueue.cli.on_jobs import JobID
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, on_queue
from jqueue.cli.parts import read_job, read_limits, read_schedule, read_settings
from jqueue.cli.printing import note, refusal, show, show_json
from jqueue.domain.errors import ChangedMeanwhileError, DuplicateJobError, QueueFullError
from jqueue.domain.printable import counted, printable

Read = Callable[[OpenedQueue], Awaitable[Document]]


def edit(
    url: URL,
    job_id: JobID = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="NAME", help="Edit this cron entry.", show_default=False)
    ] = None,
    limits: Annotated[
        str | None,
        typer.Option("--limits", metavar="ENTRYPOINT", help="Edit the limits of this entrypoint.", show_default=False),
    ] = None,
    settings: Annotated[bool, typer.Option("--settings", help="Edit the settings of the queue.")] = False,
    payload: Annotated[bool, typer.Option("--payload", help="Also show and edit the payload.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Edit a waiting or dead job, a cron entry, limits or settings in your editor.

    $VISUAL or $EDITOR opens them as JSON. When the editor ends, the text is checked, and saved by a single commit, if
    nobody has changed the same thing meanwhile. If somebody has, the difference is shown, and you can edit again on
    top of it. If the text cannot be saved, it is kept in a file whose name is printed.

    No worker sees a half-made change. A dead job stays dead: `jqueue redrive` queues it again.
    """
    if (job_id is not None) + (schedule is not None) + (limits is not None) + settings != 1:
        raise refusal("choose what to edit: a job's ID, --schedule, --limits or --settings", as_json=as_json)

    async def read(opened: OpenedQueue) -> Document:
        if job_id is not None:
            return await read_job(opened, job_id, with_payload=payload)
        if schedule is not None:
            return await read_schedule(opened, schedule, with_payload=payload)
        return await read_settings(opened) if limits is None else await read_limits(opened, limits)

    changed = _Edit(url, read, as_json=as_json).run()
    if as_json:
        show_json({"changed": changed})
    else:
        show(f"{counted(len(changed), 'field was', 'fields were')} changed" if changed else "nothing was changed")


class _Edit:
    """One edit: the text goes to the editor and back until it is saved, or given up."""

    def __init__(self, url: str, read: Read, *, as_json: bool) -> None:
        self._url = url
        self._read = read
        self._as_json = as_json

    def run(self) -> list[str]:
        """Return the names of the fields that were changed.

        Raises:
            typer.Exit: the text could not be saved. Its file is kept.
        """
        document = on_queue(self._url, self._read, as_json=self._as_json)
        file = EditedFile(document.text())
        try:
            changed = self._until_saved(document, file)
        except BaseException:
            if file.edited:
                note(f"the text that you edited is kept in {file.path}")
            else:
                file.remove()
            raise
        file.remove()
        return changed

    def _until_saved(self, document: Document, file: EditedFile) -> list[str]:
        while True:
            try:
                values = document.parse(file.edit())
                changed = [name for name, value in values.items() if value != document.values[name]]
                if not changed or self._saved(document, values):
                    return changed
            except RefusedError as error:
                raise refusal(str(error), as_json=self._as_json) from None
            except (ValueError, DuplicateJobError, QueueFullError) as error:
                self._ask(f"nothing was changed: {error}")
            else:
                document = self._rebased(document, values, file)

    def _saved(self, document: Document, values: Values) -> bool:
        """Save the values. Return False if the part has changed meanwhile.

        Raises:
            ValueError: a value is wrong.
            DuplicateJobError: the unique key is taken.
            QueueFullError: there is no room.
        """

        async def save(opened: OpenedQueue) -> Exception | None:
            try:
                await document.save(opened, values)
            except (ChangedMeanwhileError, ValueError, DuplicateJobError, QueueFullError) as error:
                return error
            return None

        error = on_queue(self._url, save, as_json=self._as_json)
        if error is not None and not isinstance(error, ChangedMeanwhileError):
            raise error
        return error is None

    def _rebased(self, document: Document, values: Values, file: EditedFile) -> Document:
        """Read the part again, show how it differs, and put the edited fields on top of it."""
        now = on_queue(self._url, self._read, as_json=self._as_json)
        file.write(now.text(now.merged(document, values)))
        for line in now.changes_since(document).splitlines():
            typer.echo(printable(line), err=True)
        self._ask("nothing was changed: this has changed meanwhile, as shown above")
        return now

    def _ask(self, problem: str) -> None:
        """Ask whether to edit again.

        Raises:
            typer.Exit: the answer is no, or there is no terminal to ask at.
        """
        if sys.stdin.isatty():
            note(problem)
            if typer.confirm("Edit again?", default=True, err=True):
                return
            raise typer.Exit(1)
        raise refusal(problem, as_json=self._as_json)
