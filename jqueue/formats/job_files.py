"""What the stores of all formats have in common: a path, a journal, and a method for each step of a job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from jqueue.domain.errors import BlobMissingError, StorageError, StorageFatalError
from jqueue.formats.files import result_or_error
from jqueue.formats.journal import Journal, State
from jqueue.formats.port import Change, Outcome, Step


class JobFiles:
    """A queue in files, as a store of jobs.

    Args:
        path: path of the file or folder, which the first job creates. A relative path is resolved now.
        entrypoint: entrypoint of jobs that name none; None means the name of the file or folder.
        settings: further arguments of the store.
    """

    claims_expire_by_clock = False
    _journal: Journal

    def __init__(self, path: str | os.PathLike[str], entrypoint: str | None, **settings: Any) -> None:
        self.path: Path = Path(path).absolute()
        self.name: str = str(self.path)
        self.entrypoint: str = entrypoint or self.path.name
        self._was_there = False
        self._rebuilt = partial(type(self), self.path, entrypoint=entrypoint, **settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._rebuilt, (), {"_was_there": self._was_there}

    def exists(self) -> bool:
        """Return True if the file or folder exists."""
        return self.path.exists()

    def _check_new(self) -> None:
        """Raise BlobMissingError, as the file or folder is missing, unless it was never there."""
        if self._was_there:
            raise BlobMissingError(
                f"{self.name!r} has disappeared: restore it, or create it without content to start an empty queue"
            )


class JobFolder(JobFiles):
    """A queue in a folder, with a file or folder for each job. It has a method for each step: `_claim`, ..."""

    def __init__(self, path: str | os.PathLike[str], entrypoint: str | None, **settings: Any) -> None:
        super().__init__(path, entrypoint, **settings)
        self._removed: dict[str, State] = {}  # the last states of jobs that were removed, by key

    def finished(self) -> dict[str, int]:
        """Return the jobs that any process of jqueue has acked recently, each with its attempt."""
        return self._journal.finished()

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Make each change by itself; new jobs that follow each other together."""
        outcomes: list[Outcome] = []
        for adds, run in groupby(changes, lambda change: change.step is Step.ADD):
            if adds:
                outcomes += self._add(list(run), now)
            else:
                outcomes += [result_or_error(getattr(self, f"_{each.step}"), each, now) for each in run]
        removed, self._removed = self._removed, {}
        with suppress(OSError, StorageError):  # the jobs are removed all the same
            self._journal.write(removed, now)
        return outcomes

    def _add(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        raise NotImplementedError

    def _path(self, name: str) -> str:
        return f"{self.name}/{name}"

    def _names(self) -> list[str]:
        """List the folder.

        Raises:
            BlobMissingError: the folder was there, and is gone.
            StorageFatalError: the path is not a folder.
        """
        try:
            names = os.listdir(self.name)
        except FileNotFoundError:
            self._check_new()
            return []
        except NotADirectoryError:
            raise StorageFatalError(f"{self.name!r} is not a folder, as a queue of this format is") from None
        self._was_there = True
        return names
