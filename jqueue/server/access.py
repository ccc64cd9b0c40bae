"""The rights of users: roles, the tokens of a file, and the cookie that stands for a token.

The page and the broker take the same file, with the hashes of tokens: a `TokenFile`, which may change while they serve.
Without it, the page has one token, which was just drawn.
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
from jqueue.runtime.system import SystemEntropy


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


class Tokens:
    """Tokens, each with a role, for users of the page. The browser keeps a cookie from which no token can be computed.

    Args:
        roles: by token; or a file of tokens.
        cookie: name of the cookie. Two pages of one host need different names.
        secret: makes the value of a cookie, so that it cannot be computed from the hashes in the file.
    """

    def __init__(self, roles: Mapping[str, Role] | TokenFile, cookie: str, secret: str) -> None:
        self.cookie = cookie
        self._secret = secret.encode()
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
    """The tokens of a file: lines of a role, the SHA-256 of a token in hexadecimal, and a name.

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
        try:
            about = self._path.stat()
            version = about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
            lines = [] if version == self._read_as else self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidJobError(f"the token file cannot be read: {type(error).__name__}") from None
        if about.st_mode & 0o077:
            raise InvalidJobError("other users can read the token file: run chmod 600 on it")
        if version == self._read_as:
            return
        callers = []
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
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


def random_text() -> str:
    """Return a text of 64 characters that cannot be guessed, for a token or a secret."""
    entropy = SystemEntropy()
    return f"{entropy.new_id()}{entropy.new_id()}".replace("-", "")


_HASH = re.compile("[0-9a-f]{64}")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
