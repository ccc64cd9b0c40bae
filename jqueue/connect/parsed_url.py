"""Parsing of URLs: their parts, the values of their options, and errors about them that show no secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from jqueue.domain.durations import LONGEST
from jqueue.domain.errors import InvalidURLError, MissingFolderError

Given = TypeVar("Given")
Value = TypeVar("Value")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

EXAMPLES = {
    "s3": "s3://bucket/queue.json",
    "gs": "gs://bucket/queue.json",
    "az": "az://account@container/queue.json",
    "file": "file:///var/lib/app/queue.json",
    "memory": "memory://",
    "jqueue+https": "jqueue+https://host:8470/queue",
    "jqueue+http": "jqueue+http://127.0.0.1:8470/queue",
    "vsqs": "vsqs:///var/spool/app/queue",
    "dirq": "dirq:///var/spool/app/messages",
    "textq": "textq:///var/lib/app/queue.tq",
}


class OptionType(NamedTuple):
    """The kind of value that an option takes: its description, and the conversion of its text; None for a wrong one."""

    description: str
    convert: Callable[[str], Any]


def matching(description: str, pattern: str, convert: Callable[[str], Any] = str) -> OptionType:
    """Return the kind of value whose text matches a pattern."""
    return OptionType(description, lambda text: convert(text) if re.fullmatch(pattern, text) else None)


@dataclass(frozen=True, repr=False)
class ParsedURL:
    """The parts of a URL.

    Attributes:
        scheme: name of the store.
        user, secret: the login before the @.
        host: the part before the path: a bucket or container.
        name: the object in it. Bytes that are not UTF-8 are surrogates, as in file names.
        options: the options after the question mark, by name.
        fragment: the part after # of the URL of a broker.
        create: True if a missing folder may be created.
        token, ca_file, insecure: how a broker of the queue is reached: see `connect`.
    """

    scheme: str
    host: str
    name: str
    options: Mapping[str, str]
    user: str | None = None
    secret: str | None = None
    fragment: str = ""
    create: bool = False
    token: str | None = None
    ca_file: str | None = None
    insecure: bool = False

    def option_values(self, **known: OptionType) -> dict[str, Any]:
        """Return the values of the options.

        Args:
            known: the options that the store has.

        Raises:
            InvalidURLError: the URL has another option, or an option has an invalid value.
        """
        taken = {}
        for option, text in self.options.items():
            if option not in known:
                known_ones = ", ".join(known) or "none"
                raise url_error(self.scheme, f"has an unknown option (known: {known_ones}; write & in a value as %26)")
            taken[option] = known[option].convert(text)
            if taken[option] is None:
                raise url_error(self.scheme, f"has a wrong value for {option}, which takes {known[option].description}")
        return taken

    def check_object(self, what: str) -> None:
        """Check that the URL names a bucket and an object in it."""
        if not self.host:
            raise url_error(self.scheme, f"names no {what}")
        if ":" in self.host:
            right = "give an endpoint as an option, and write / ? # in a key as %2F %3F %23"
            raise url_error(self.scheme, f"has a colon in the name of its {what} ({right})")
        if not _NAME.fullmatch(self.host):
            raise url_error(self.scheme, f"has a name that no {what} can have")
        if not self.name or self.name.endswith("/"):
            raise url_error(self.scheme, f"names a {what}, but no object in it")
        if or_none(str.encode, self.name) is None:
            raise url_error(self.scheme, "names an object by bytes that are not UTF-8")

    def check_no_user(self) -> None:
        """Check that the URL names no user, for a store that takes none."""
        if self.user is not None:
            raise url_error(self.scheme, "names a user, which this store does not take from a URL")

    def path(self) -> str:
        """Return the path that the URL names: all after its second slash."""
        self.check_no_user()
        if self.host not in ("", "localhost"):
            raise url_error(self.scheme, "has two slashes where three belong: its path begins with the third")
        return f"/{self.name}"


def check_folder(path: str | os.PathLike[str], *, create: bool) -> None:
    """Refuse the path of a queue in a folder that does not exist: such a path is misspelled more often than new.

    Raises:
        MissingFolderError: the folder does not exist, and `create` is False.
    """
    folder = os.path.dirname(os.path.abspath(os.fspath(path)))
    if not create and not os.path.exists(folder):  # the store itself refuses a file in its place
        raise MissingFolderError(folder)


def parse_url(scheme: str, url: str, begin: int) -> ParsedURL:
    """Parse the part of a URL after its scheme.

    `urlsplit` will not do: its errors quote the URL, it deletes line breaks, and it looks for hosts and ports.
    """
    if not url.isprintable() or url != url.strip():
        raise url_error(scheme, "has a line break or another character that must be escaped with %")
    whole, _, fragment = url[begin:].partition("#") if scheme.startswith("jqueue+") else (url[begin:], "", "")
    path, _, query = whole.partition("?")
    authority, _, name = path.partition("/")
    login, at, host = authority.rpartition("@")
    user, colon, secret = (_unescape(scheme, part) for part in login.partition(":"))
    if at and (not user or (colon and not secret)):
        raise url_error(scheme, "lacks a name or a secret before its @")
    name, options = unquote(name, errors="surrogateescape"), _options(scheme, query)
    return ParsedURL(scheme, host, name, options, user if at else None, secret if colon else None, fragment)


def _options(scheme: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for field in query.split("&") if query else ():
        option, _, text = field.partition("=")
        if not text:
            raise url_error(
                scheme, "has an option without a value (write name=value&name=value, and ? in a key as %3F)"
            )
        if option in options:
            raise url_error(scheme, "has an option twice")
        options[option] = _unescape(scheme, text)
    return options


def _unescape(scheme: str, text: str) -> str:
    """Return the text that was escaped with %. A plus stays a plus: the keys of Azure have many."""
    plain = or_none(partial(unquote, errors="strict"), text)
    if plain is None:
        raise url_error(scheme, "has escaped bytes that are not UTF-8")
    return plain


def url_error(scheme: str, what: str) -> InvalidURLError:
    """Return the error that says what is wrong with a URL and shows a right one."""
    return InvalidURLError(f"the {scheme}:// URL {what}: it should look like {EXAMPLES[scheme]}")


def or_none(convert: Callable[[Given], Value], argument: Given, refusal: type[Exception] = ValueError) -> Value | None:
    """Return the result of a function, or None if it finds its argument wrong.

    The caller can then raise its own error outside of the function's error, which may show the argument.
    """
    try:
        return convert(argument)
    except refusal:
        return None


def _endpoint(text: str) -> str | None:
    """Return the URL of an endpoint, if it is one. It must hold no secrets, as errors of the clients show it."""
    from jqueue.runtime.addresses import host_of

    return None if host_of(text) is None else text


def _seconds(text: str) -> float | None:
    seconds = or_none(float, text)
    return seconds if seconds is not None and 0 < seconds <= LONGEST else None


TEXT = OptionType("printable text", lambda text: text if text.isprintable() else None)
ENDPOINT = OptionType("the URL of an http or https server, without user, ? and #", _endpoint)
BOOLEAN = matching("true or false", "true|false", "true".__eq__)
DURATION = OptionType("a number of seconds above 0", _seconds)
COUNT = matching("a whole number above 0", "(?=0*[1-9])[0-9]{1,9}", int)
