"""Wildcards in the names of queues, files and objects alike: `*`, `?` and `[…]` within a name, `**` across folders.

The lock of a queue and the objects staged beside it match no wildcard. A name that begins with a dot only matches if
the dot is written out.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote

_WILDCARDS = re.compile(r"[*?\[]")
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
LOCK, STAGED = ".lock", ".staged-"


def has_wildcards(name: str) -> bool:
    """Return True if a name has wildcards."""
    return _WILDCARDS.search(name) is not None


@dataclass(frozen=True)
class Pattern:
    """A name with wildcards.

    Attributes:
        text: the pattern, in the syntax of `glob` of the standard library.
    """

    text: str

    @classmethod
    def of_path(cls, path: str) -> Pattern:
        """Return the pattern for the path of a file, taken as it is."""
        return cls(path)

    @classmethod
    def of_url(cls, name: str) -> Pattern:
        """Return the pattern for the path of a URL. Characters escaped with % are no wildcards."""
        return cls(_ESCAPES.sub(lambda found: glob.escape(unquote(found[0], errors="surrogateescape")), name))

    def fixed_part(self) -> tuple[str, str]:
        """Split the text before the first wildcard in two: the name of an object to look beside, and the rest.

        The rest is not empty. The name is empty if the text is too short for both.
        """
        found = _WILDCARDS.search(self.text)
        fixed = self.text[: found.start()] if found else self.text
        before = fixed[:-1].rstrip("/")
        return before, fixed[len(before) :]

    def fits(self, name: str) -> bool:
        """Return True if the name of an object matches."""
        return not self.is_ours(name) and _fit(name.split("/"), self.text.split("/"))

    @staticmethod
    def is_ours(name: str) -> bool:
        """Return True for the lock of a queue, and an object staged beside it."""
        last = name.rpartition("/")[2]
        return last.endswith(LOCK) or STAGED in last


def _fit(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fit(parts[skipped:], pattern[1:]) for skipped in range(len(parts)) if not _hidden(parts[:skipped]))
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(parts[0], pattern[0]) and _fit(parts[1:], pattern[1:])


def _hidden(parts: list[str]) -> bool:
    return any(part.startswith(".") for part in parts)
