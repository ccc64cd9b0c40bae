"""The store of a `StoreQueue` for the URL of an older queue: its folder or file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from jqueue.connect.parsed_url import (
    BOOLEAN,
    DURATION,
    TEXT,
    OptionType,
    ParsedURL,
    check_folder,
    check_no_user,
    or_none,
    url_error,
)

if TYPE_CHECKING:
    from jqueue.formats.port import JobStorePort


def _path_and_options(url: ParsedURL, **known: OptionType) -> tuple[str, dict[str, Any]]:
    """Return the path and the options of a URL with three slashes. The folder of the path exists or may be created."""
    path = _path(url)
    options = url.option_values(**known, create=BOOLEAN)
    check_folder(path.rstrip("/"), create=options.pop("create", url.create))
    return path, options


def _path(url: ParsedURL) -> str:
    check_no_user(url)
    if url.host not in ("", "localhost"):
        raise url_error(url.scheme, "has two slashes where three belong: its path begins with the third")
    if not url.name.strip("/") or "\0" in url.name:
        raise url_error(url.scheme, "names no path that a file system can have")
    return f"/{url.name}"


def _one_of(*texts: str) -> str:
    *known, text = texts
    if text not in known:
        raise ValueError("another word")
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text)):
        raise ValueError("not a count")
    return int(text)


def _vsqs(url: ParsedURL) -> JobStorePort:
    path, options = _path_and_options(
        url,
        entrypoint=TEXT,
        unit=OptionType("us or ms", partial(_one_of, "us", "ms")),
        capacity=OptionType("a number of messages above 0", _count),
        when_full=OptionType("refuse or wait", partial(_one_of, "refuse", "wait")),
        fsync=BOOLEAN,
    )
    from jqueue.formats.vsqs.store import VsqsFolder

    return VsqsFolder(path, **options)


def _umask(text: str) -> int:
    umask = int(text, 8)
    if not 0 <= umask <= 0o777:
        raise ValueError("not a umask")
    return umask


def _age(text: str) -> float:
    if not text.isascii() or not text.isdecimal():
        raise ValueError("not an age")
    return float(text)


_COUNT = OptionType("a whole number above 0", _count)
_AGE = OptionType("a whole number of seconds, where 0 means never", _age)

_DIRQ_OF_SIMPLE = {"granularity": _COUNT}
_DIRQ_OF_QUEUE = {"schema": TEXT, "payload": TEXT, "headers": TEXT, "maxelts": _COUNT}


def _dirq(url: ParsedURL) -> JobStorePort:
    path, options = _path_and_options(
        url,
        kind=OptionType("simple or queue", partial(_one_of, "simple", "queue")),
        entrypoint=TEXT,
        umask=OptionType("a umask in octal, such as 077", _umask),
        maxtemp=_AGE,
        maxlock=_AGE,
        fsync=BOOLEAN,
        **_DIRQ_OF_SIMPLE,
        **_DIRQ_OF_QUEUE,
    )
    from jqueue.formats.dirq.elements import DirqElements
    from jqueue.formats.dirq.names import Schema
    from jqueue.formats.dirq.simple import DirqSimple

    folders = any(os.path.isdir(f"{path}/{name}") for name in ("temporary", "obsolete"))
    kind = options.pop("kind", "queue" if folders or options.keys() & _DIRQ_OF_QUEUE.keys() else "simple")
    others = _DIRQ_OF_SIMPLE if kind == "queue" else _DIRQ_OF_QUEUE
    if misplaced := sorted(options.keys() & others.keys()):
        raise url_error("dirq", f"has {', '.join(misplaced)}, which kind={kind} does not take")
    if kind == "simple":
        return DirqSimple(path, **options)
    text, payload = options.pop("schema", "body:binary,header:table?"), options.pop("payload", "body")
    headers = options.pop("headers", None)
    schema = or_none(lambda given: Schema.parse(given, payload, headers), text)
    if schema is None:
        words = "a binary or string for the payload, a table for headers, and a ? after each other kind"
        raise url_error("dirq", f"has a schema that cannot hold jobs: write name:kind,name:kind with {words}")
    return DirqElements(path, schema=schema, **options)


def _textq(url: ParsedURL) -> JobStorePort:
    path, options = _path_and_options(
        url,
        entrypoint=TEXT,
        fsync=BOOLEAN,
        hide=BOOLEAN,
        lines=OptionType("single or many", partial(_one_of, "single", "many")),
        settle=DURATION,
    )
    if path.endswith("/"):
        raise url_error(url.scheme, "names a folder instead of a file")
    from jqueue.formats.textqueue.store import TextQueueFile

    return TextQueueFile(path, single_lines=options.pop("lines", "many") == "single", **options)


FORMATS: dict[str, Callable[[ParsedURL], JobStorePort]] = {
    "vsqs": _vsqs,
    "dirq": _dirq,
    "textq": _textq,
}
