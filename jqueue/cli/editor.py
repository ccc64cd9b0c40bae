"""The editor of the user: `$VISUAL`, `$EDITOR`, or `vi`, on a file that only the user can read."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from jqueue.cli.on_queue import RefusedError

FALLBACK = "vi"


class EditedFile:
    """A text in a file of its own, until `remove`.

    Args:
        text: the text to begin with.

    Attributes:
        path: of the file.
    """

    def __init__(self, text: str) -> None:
        self._given = text
        handle, name = tempfile.mkstemp(prefix="jqueue-edit-", suffix=".json")
        os.close(handle)
        self.path = Path(name)
        self.write(text)

    def write(self, text: str) -> None:
        """Replace the text by one that has the user's changes in it."""
        self.path.write_text(text, encoding="utf-8")

    def edit(self) -> str:
        """Let the user edit the file, and return its text.

        Raises:
            RefusedError: there is no terminal and no $EDITOR, the editor failed, or its text is not UTF-8.
        """
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if editor is None and not sys.stdin.isatty():
            raise RefusedError("there is no terminal for an editor: set $EDITOR to a command that changes a file")
        editor = editor or FALLBACK
        try:
            status = subprocess.run([*shlex.split(editor), str(self.path)], check=False).returncode
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a command"
            raise RefusedError(f"the editor cannot be run: {why}. Set $EDITOR to the command of one") from None
        if status != 0:
            raise RefusedError(f"the editor ended with status {status}: nothing was changed")
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise RefusedError(f"the edited text cannot be read: {why}") from None

    @property
    def edited(self) -> bool:
        """True if the user has changed the text."""
        try:
            return self.path.read_bytes() != self._given.encode()
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
