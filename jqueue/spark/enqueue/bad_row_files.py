"""The files of `badRowsPath`: tasks write them, and the end of a write removes those of attempts that do not count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from jqueue.domain.errors import JQueueError
from jqueue.ports.log import logger_of
from jqueue.spark.enqueue.bad_rows import BadRowCollector, BadRows
from jqueue.spark.globs import BAD_ROWS
from jqueue.spark.staging import Staging

logger = logger_of("jqueue")


def bad_prefix(app_id: str, version: int | None) -> str:
    """Return the start of the names of all files of a transaction, in every run, after that of the queue there."""
    return f"{BAD_ROWS}{hashlib.sha256(app_id.encode()).hexdigest()[:16]}-{0 if version is None else version}-"


class BadRowFiles:
    """The files of one attempt of a task.

    Args:
        place: where they are; None: no files are written.
        prefix: see `bad_prefix`.
        partition: the number of the task.
        attempt: a number that no other attempt of the application has.

    Attributes:
        told: the part of the report, after the last file.
    """

    def __init__(self, place: Staging | None, prefix: str, partition: int, attempt: int) -> None:
        self.told = BadRows()
        self._place = place
        self._start = f"{prefix}{partition}-{attempt}-"
        self._names: list[str] = []

    async def write(self, bad: BadRowCollector | None, *, last: bool = False) -> None:
        """Write the bad rows to the next file, if it is complete.

        Args:
            bad: the bad rows; None: there are none.
            last: True if no more rows follow.

        Raises:
            StorageError: the store failed until the deadline.
        """
        if bad is None:
            return
        content = bad.file(last=last)
        if content is not None and self._place is not None:
            name = f"{self._start}{self._place.entropy.new_id()[:8]}.json"
            async with self._place.opened() as staged:
                await staged.create(name, content)
            self._names.append(name)
        if last:
            self.told = bad.told(self._names)


async def settle(place: Staging, unwanted: Iterable[str], prefix: str = "", kept: Iterable[str] = ()) -> None:
    """Remove files that do not count. A file that cannot be removed stays, with a warning.

    Args:
        place: where they are.
        unwanted: known names of such files.
        prefix: start of the names of more of them; empty: there are no others.
        kept: names that are kept.
    """
    try:
        async with place.opened() as staged:
            found = await staged.names_with(prefix) if prefix else []
            await staged.remove_created({*unwanted, *found} - {*kept})
    except JQueueError as error:
        logger.warning("Files of bad rows that do not count could not be removed: %s", error)
