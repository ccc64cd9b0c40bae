"""The rights of users: the table of what each role may do and see, the tokens, and the cookie that stands for a token.

The page and the broker take the same file, with the hashes of tokens: a `TokenFile`, which may change while they serve.
Without it, they have one token, which was just drawn.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from starlette.requests import Request

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.operations import lookups
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import TRAVELLING, AllOrNothing, ClientBatch, Guarded
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import Ack, HandBack, HandBackCalls, Heartbeat, Nack, RecordStep
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.groups import AwaitGroup, CloseGroup, LookAtGroup, OpenGroup
from jqueue.domain.operations.leases import ClaimBatch, ClaimLease, EndLease
from jqueue.domain.operations.operator import Attend, EmptyCommit
from jqueue.domain.operations.rules import SetSchedule
from jqueue.ports.sharing import client_name
from jqueue.runtime.posix_files import closing
from jqueue.runtime.system import SystemEntropy
from jqueue.server.problems import Problem


class Role(StrEnum):
    """The rights of a user of the page or of the broker."""

    PRODUCER = "producer"
    """May enqueue, and look at a job by its id. Not for the page."""
    WORKER = "worker"
    """May also claim jobs and end the claims. Not for the page."""
    VIEWER = "viewer"
    """May look at everything but payloads, headers and results."""
    OPERATOR = "operator"
    """May do everything."""


OF_THE_PAGE = frozenset((Role.VIEWER, Role.OPERATOR))
"""The roles of users of the page."""

_ALL, _OPERATORS = frozenset(Role), frozenset((Role.OPERATOR,))
_ADDING = frozenset((Role.PRODUCER, Role.WORKER, Role.OPERATOR))
_WORKING = frozenset((Role.WORKER, Role.OPERATOR))
_LOOKING = frozenset((Role.WORKER, Role.VIEWER, Role.OPERATOR))

ACCESS: Mapping[str | type[Operation], frozenset[Role]] = {
    "POST /v1/jobs": _ADDING,
    "GET /v1/jobs/{id}": _ALL,
    "POST /v1/claims": _WORKING,
    "POST /v1/claims/{id}/{attempt}/ack": _WORKING,
    "POST /v1/claims/{id}/{attempt}/nack": _WORKING,
    "POST /v1/claims/{id}/{attempt}/heartbeat": _WORKING,
    "GET /v1/stats": _LOOKING,
    "GET /v1/history": _LOOKING,
    "GET /v1/object": _LOOKING,
    "GET /v1/openapi.json": _ALL,
    "POST /v1/calls": _ADDING,
    **dict.fromkeys(TRAVELLING, _OPERATORS),
    **dict.fromkeys((Enqueue, AllOrNothing), _ADDING),
    **dict.fromkeys((Dequeue, Ack, Nack, Heartbeat, RecordStep, HandBack, HandBackCalls), _WORKING),
    **dict.fromkeys((ClaimLease, EndLease, ClaimBatch, Guarded, Attend, EmptyCommit, *lookups.TRAVELLING), _WORKING),
    **dict.fromkeys((OpenGroup, CloseGroup, LookAtGroup, AwaitGroup), _ADDING),
    SetSchedule: _WORKING,  # a worker sets the cron entries of its handlers when it starts
    ClientBatch: frozenset(),  # the broker makes it of a batch: a client that sends one could speak for another
    "GET /api/overview": OF_THE_PAGE,
    "GET /api/job": OF_THE_PAGE,
    "GET /api/job/events": OF_THE_PAGE,
    "GET /api/job/payload": _OPERATORS,
    "GET /api/job/result": _OPERATORS,
    "GET /api/jobs": OF_THE_PAGE,
    "POST /api/jobs": _OPERATORS,
    "GET /api/dead": OF_THE_PAGE,
    "GET /api/timeline": OF_THE_PAGE,
    "POST /api/actions/{name}": _OPERATORS,
}
"""The roles for each request, and for each operation within the requests `POST /v1/calls`.

The checks, OpenAPI, the table in the docs and the test of every pair are made of it, of `HIDDEN` and of `REPLACING`.
"""

HIDDEN: Mapping[Role, frozenset[str]] = {
    Role.PRODUCER: frozenset(("payload", "text", "headers")),
    Role.WORKER: frozenset(),
    Role.VIEWER: frozenset(("payload", "text", "headers", "result")),
    Role.OPERATOR: frozenset(),
}
"""The fields of a job that a role does not see; `text` is its payload, too."""


REPLACING = _WORKING
"""The roles whose enqueue may replace the job that has its unique key: it may be another program's."""


def check(role: Role, what: str | type[Operation]) -> None:
    """Check that a role may send a request or an operation.

    Raises:
        Problem: it may not.
    """
    if role not in ACCESS[what]:
        raise not_allowed(f"a {role} may not do {what if isinstance(what, str) else what.__name__}")


def check_operation(role: Role, operation: Operation) -> None:
    """Check that a role may do an operation itself. The operations within it are not looked at.

    Raises:
        Problem: it may not.
    """
    check(role, type(operation))
    if isinstance(operation, SetSchedule) and operation.by == "operator" and role is not Role.OPERATOR:
        raise not_allowed(f"a {role} may not do SetSchedule as an operator")
    if isinstance(operation, Enqueue) and operation.on_conflict == "replace" and role not in REPLACING:
        raise not_allowed(f"a {role} may not do Enqueue with on_conflict='replace': the job may be another program's")


def not_allowed(detail: str) -> Problem:
    """Return the problem of a request that its sender may not send."""
    return Problem(403, "NotAllowed", detail)


def not_signed_in() -> Problem:
    """Return the problem of a request without a right token."""
    return Problem(
        401,
        "NotSignedIn",
        "the request needs the header Authorization: Bearer TOKEN, with a token of this broker",
        {"WWW-Authenticate": "Bearer"},
    )


def without_hidden(role: Role, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job, or a page of jobs, for a user, with None in place of the fields that its role does not see."""
    shown = {name: None if name in HIDDEN[role] else value for name, value in values.items()}
    if isinstance(jobs := shown.get("jobs"), list):
        shown["jobs"] = [without_hidden(role, job) for job in jobs]
    return shown


Authorize = Callable[[Request], Role | str | Awaitable[Role | str | None] | None]
"""Returns the role of the user who has sent a request; None refuses the request."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request to the broker.

    Attributes:
        role: its role.
        name: name of its token; the address of a caller that needs no token.
        token_hash: SHA-256 of its token in hexadecimal; empty if it needs none.
        known: the tokens in which its token was found; None if it needs none.
    """

    role: Role
    name: str
    token_hash: str = field(default="", repr=False)
    known: KnownTokens | None = field(default=None, repr=False, compare=False)

    def is_known(self) -> bool:
        """Return True if its token still has its role: the request may have waited since it was let in."""
        try:
            return self.known is None or self in self.known.callers()
        except InvalidJobError:  # the file cannot be read
            return False

    def check_client(self, name: str) -> None:
        """Check that a client has its name from this caller's token.

        Raises:
            Problem: it may be the name of another caller's client.
        """
        if self.token_hash and client_name(name, self.token_hash) != name:
            raise not_allowed("the name of a client, also in that of a call, must be made with its own token")


class KnownTokens:
    """Tokens, of which only the hashes are kept.

    Args:
        roles: by token.
    """

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._callers = [Caller(role, role, hash_of(token), self) for token, role in roles.items()]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{len(self._callers)} tokens>)"

    def callers(self) -> list[Caller]:
        """Return the caller with each token.

        Raises:
            InvalidJobError: the file of the tokens cannot be read now.
        """
        return self._callers

    def caller(self, value: str, value_of: Callable[[str], str] = str) -> Caller | None:
        """Return the caller with a value; None if the value is wrong.

        Args:
            value: the hash of a token, or a value that is made of it.
            value_of: makes the value of a hash.

        Raises:
            InvalidJobError: the file of the tokens cannot be read now.
        """
        owner = None
        for caller in self.callers():  # all of them, so that the time tells nothing
            if hmac.compare_digest(value_of(caller.token_hash).encode(), value.encode()):
                owner = caller
        return owner


class TokenFile(KnownTokens):
    """The tokens of a file: lines of a role, the SHA-256 of a token in hexadecimal, and a name.

    The file is read again when it changes. While it cannot be read, nobody gets in.

    Args:
        path: of the file. Other users must not be able to read it.

    Raises:
        InvalidJobError: the file cannot be read, or a line is wrong. The message shows no hash.
    """

    def __init__(self, path: Path) -> None:
        super().__init__({})
        self._path = path
        self._read_as: tuple[int, ...] | None = None
        self.callers()

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def callers(self) -> list[Caller]:
        """Return the caller with each token: see `KnownTokens`. The file is read if it has changed."""
        try:
            about = self._path.stat()
            version = about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
            lines = [] if version == self._read_as else self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidJobError(f"the token file cannot be read: {type(error).__name__}") from None
        if about.st_mode & 0o077:
            raise InvalidJobError("other users can read the token file: run chmod 600 on it")
        if version == self._read_as:
            return self._callers
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
            callers.append(Caller(Role(words[0]), words[2], words[1], self))
        if not callers:
            raise InvalidJobError("the token file has no tokens: `jqueue serve --token-file FILE --new-token ROLE`")
        self._callers, self._read_as = callers, version
        return callers

    @staticmethod
    def add(path: Path, role: Role, name: str, token: str) -> None:
        """Append the hash of a token to a file, which is made if it does not exist.

        Raises:
            OSError: it cannot be written.
        """
        with closing(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)) as descriptor:
            os.write(descriptor, f"{role} {hash_of(token)} {name}\n".encode())


class Tokens:
    """Tokens, each with a role, for users of the page. The browser keeps a cookie from which no token can be computed.

    Args:
        known: the tokens.
        cookie: name of the cookie. Two pages of one host need different names.
        secret: makes the value of a cookie, so that it cannot be computed from the hashes in the file.
    """

    def __init__(self, tokens: KnownTokens, cookie: str, secret: str) -> None:
        self.cookie = cookie
        self._secret = secret.encode()
        self._known = tokens

    def __repr__(self) -> str:
        return f"Tokens({self._known}, {self.cookie!r})"

    def session(self, token: str) -> str | None:
        """Return the value of the cookie for a token; None if the token is wrong."""
        value = self._value(hash_of(token))
        return None if self._user(value) is None else value

    def __call__(self, request: Request) -> Role | None:
        """Return the role of the user who has sent a request."""
        user = self.user(request)
        return None if user is None else user.role

    def user(self, request: Request) -> Caller | None:
        """Return the user who has sent a request, with the name of the token."""
        return self._user(request.cookies.get(self.cookie, ""))

    def _user(self, value: str) -> Caller | None:
        caller = self._known.caller(value, self._value)
        return None if caller is None or caller.role not in OF_THE_PAGE else caller

    def _value(self, token_hash: str) -> str:
        return hmac.digest(self._secret, token_hash.encode(), "sha256").hex()


def random_text() -> str:
    """Return a text of 64 characters that cannot be guessed, for a token or a secret."""
    entropy = SystemEntropy()
    return f"{entropy.new_id()}{entropy.new_id()}".replace("-", "")


_HASH = re.compile("[0-9a-f]{64}")


def hash_of(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
