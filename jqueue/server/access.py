"""The rights of users: roles, the tokens of a file, and the cookie that stands for a token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from pathlib import Path

from starlette.requests import Request

from jqueue.domain.errors import InvalidJobError


class Role(StrEnum):
    """The rights of a user of the page."""

    VIEWER = "viewer"
    """May look at everything but payloads and results."""
    OPERATOR = "operator"
    """May also see payloads and results, and carry out actions."""


Authorize = Callable[[Request], Role | str | Awaitable[Role | str | None] | None]
"""Returns the role of the user who has sent a request; None refuses the request."""

SHORTEST_TOKEN = 16
"""Minimum number of characters of a token, so that it cannot be guessed."""


class Tokens:
    """Tokens, each with a role. The browser keeps a cookie from which the token cannot be computed.

    Args:
        roles: by token.
        cookie: name of the cookie. Two pages of one host need different names.
    """

    def __init__(self, roles: Mapping[str, Role], cookie: str) -> None:
        self.cookie = cookie
        self._roles = {_digest(token): role for token, role in roles.items()}

    def __repr__(self) -> str:
        return f"Tokens(<{len(self._roles)} tokens>, {self.cookie!r})"

    def session(self, token: str) -> str | None:
        """Return the value of the cookie for a token; None if the token is wrong."""
        value = _digest(token)
        return value if self._role(value) is not None else None

    def __call__(self, request: Request) -> Role | None:
        """Return the role of the user who has sent a request."""
        return self._role(request.cookies.get(self.cookie, ""))

    def _role(self, value: str) -> Role | None:
        found = None
        for digest, role in self._roles.items():
            if hmac.compare_digest(digest.encode(), value.encode()):
                found = role
        return found


def _digest(token: str) -> str:
    return hashlib.sha256(b"jqueue dashboard session\0" + token.encode("utf-8", "surrogatepass")).hexdigest()


def read_tokens(path: Path) -> dict[str, Role]:
    """Return the tokens of a file. Each line has a role and a token; lines that begin with # are comments.

    Raises:
        InvalidJobError: the file is not readable, or a line is wrong. The message shows no token.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        open_to_others = path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJobError(f"the token file cannot be read: {type(error).__name__}") from None
    if open_to_others:
        raise InvalidJobError("other users can read the token file: run chmod 600 on it")
    roles: dict[str, Role] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in list(Role):
            raise InvalidJobError(f"line {number} of the token file is wrong: write 'viewer TOKEN' or 'operator TOKEN'")
        if len(words[1]) < SHORTEST_TOKEN:
            raise InvalidJobError(f"the token in line {number} of the token file is shorter than {SHORTEST_TOKEN}")
        roles[words[1]] = Role(words[0])
    if not roles:
        raise InvalidJobError("the token file has no tokens: write lines such as 'operator TOKEN'")
    return roles
