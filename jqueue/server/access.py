"""The rights of users: roles, the tokens of a file, and the cookie that stands for a token.

The page has tokens of its own, in a file that `read_tokens` reads, or one that was just drawn. The broker has a file
with the hashes of tokens, a `TokenFile`, which may change while it serves.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from starlette.requests import Request

from jqueue.domain.errors import InvalidJobError


class Role(StrEnum):
    """The rights of a user of the page or of the broker."""

    PRODUCER = "producer"
    """May enqueue, and look at a job by its id. Not for the page."""
    WORKER = "worker"
    """May also claim jobs and end the claims. Not for the page."""
    VIEWER = "viewer"
    """May look at everything but payloads and results."""
    OPERATOR = "operator"
    """May do everything."""


OF_THE_PAGE = (Role.VIEWER, Role.OPERATOR)
"""The roles of users of the page."""


Authorize = Callable[[Request], Role | str | Awaitable[Role | str | None] | None]
"""Returns the role of the user who has sent a request; None refuses the request."""

SHORTEST_TOKEN = 16
"""Minimum number of characters of a token, so that it cannot be guessed."""


class Tokens:
    """Tokens, each with a role, for users of the page. The browser keeps a cookie from which no token can be computed.

    Args:
        roles: by token; or the tokens of the broker.
        cookie: name of the cookie. Two pages of one host need different names.
        secret: makes the value of a cookie, so that it cannot be computed from the hashes in a file of the broker.
    """

    def __init__(
        self, roles: Mapping[str, Role] | TokenFile, cookie: str, secret: bytes = b"jqueue dashboard session"
    ) -> None:
        self.cookie = cookie
        self._secret = secret
        self._file = roles if isinstance(roles, TokenFile) else None
        self._roles = [] if isinstance(roles, TokenFile) else [(_hash(token), role) for token, role in roles.items()]

    def __repr__(self) -> str:
        return f"Tokens({self._file or f'<{len(self._roles)} tokens>'}, {self.cookie!r})"

    def session(self, token: str) -> str | None:
        """Return the value of the cookie for a token; None if the token is wrong."""
        value = self._value(_hash(token))
        return value if self._role(value) is not None else None

    def __call__(self, request: Request) -> Role | None:
        """Return the role of the user who has sent a request."""
        return self._role(request.cookies.get(self.cookie, ""))

    def _role(self, value: str) -> Role | None:
        found = None
        for known, role in self._roles if self._file is None else self._file.roles():  # all, so that time tells nothing
            if hmac.compare_digest(self._value(known).encode(), value.encode()) and role in OF_THE_PAGE:
                found = role
        return found

    def _value(self, known: str) -> str:
        return hmac.digest(self._secret, known.encode(), "sha256").hex()


Version = tuple[int, ...]
"""What tells one content of a file from another."""


def _lines_of(path: Path, known: Version | None = None) -> tuple[Version, list[tuple[int, list[str]]]]:
    """Return the version of a token file, and the words of each line, with its number. Comments are left out.

    Args:
        path: of the file. Other users must not be able to read it.
        known: a version that was read before. Of that one, no lines are returned.

    Raises:
        InvalidJobError: the file cannot be read. The message shows none of it.
    """
    try:
        about = path.stat()
        version = about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
        lines = [] if version == known else path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJobError(f"the token file cannot be read: {type(error).__name__}") from None
    if about.st_mode & 0o077:
        raise InvalidJobError("other users can read the token file: run chmod 600 on it")
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1)]
    return version, [(number, words) for number, words in numbered if words and not words[0].startswith("#")]


def read_tokens(path: Path) -> dict[str, Role]:
    """Return the tokens of a file. Each line has a role and a token; lines that begin with # are comments.

    Raises:
        InvalidJobError: the file is not readable, or a line is wrong. The message shows no token.
    """
    roles: dict[str, Role] = {}
    for number, words in _lines_of(path)[1]:
        if len(words) != 2 or words[0] not in OF_THE_PAGE:
            raise InvalidJobError(f"line {number} of the token file is wrong: write 'viewer TOKEN' or 'operator TOKEN'")
        if len(words[1]) < SHORTEST_TOKEN:
            raise InvalidJobError(f"the token in line {number} of the token file is shorter than {SHORTEST_TOKEN}")
        roles[words[1]] = Role(words[0])
    if not roles:
        raise InvalidJobError("the token file has no tokens: write lines such as 'operator TOKEN'")
    return roles


@dataclass(frozen=True)
class Caller:
    """The sender of a request to the broker.

    Attributes:
        role: its role.
        name: name of its token; the address of a caller that needs no token.
    """

    role: Role
    name: str


class TokenFile:
    """The tokens of the broker: lines of a role, the SHA-256 of a token in hexadecimal, and a name.

    The file is read again when it changes. While it cannot be read, nobody gets in.

    Args:
        path: of the file. Other users must not be able to read it.

    Raises:
        InvalidJobError: the file cannot be read, or a line is wrong. The message shows no hash.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_as: tuple[int, ...] | None = None
        self._callers: list[tuple[str, Caller]] = []
        self.read()

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def read(self) -> None:
        """Read the file if it has changed."""
        version, lines = _lines_of(self._path, self._read_as)
        if version == self._read_as:
            return
        callers = []
        for number, words in lines:
            if len(words) != 3 or words[0] not in list(Role) or not _HASH.fullmatch(words[1]):
                raise InvalidJobError(
                    f"line {number} of the token file is wrong: it needs a role, the SHA-256 of a token and a name. "
                    "`jqueue serve --token-file FILE --new-token ROLE` adds such a line"
                )
            callers.append((words[1], Caller(Role(words[0]), words[2])))
        if not callers:
            raise InvalidJobError("the token file has no tokens: `jqueue serve --token-file FILE --new-token ROLE`")
        self._callers, self._read_as = callers, version

    def caller(self, token: str) -> Caller | None:
        """Return the caller with a token; None if the token is wrong.

        Raises:
            InvalidJobError: the file cannot be read now.
        """
        self.read()
        value, found = _hash(token), None
        for known, caller in self._callers:  # all of them, so that the time tells nothing
            if hmac.compare_digest(known, value):
                found = caller
        return found

    def roles(self) -> list[tuple[str, Role]]:
        """Return the hash of each token with its role.

        Raises:
            InvalidJobError: the file cannot be read now.
        """
        self.read()
        return [(known, caller.role) for known, caller in self._callers]

    @staticmethod
    def add(path: Path, role: Role, name: str, token: str) -> None:
        """Append the hash of a token to a file, which is made if it does not exist.

        Raises:
            OSError: it cannot be written.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{role} {_hash(token)} {name}\n".encode())
        finally:
            os.close(descriptor)


_HASH = re.compile("[0-9a-f]{64}")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
