"""The store of a `StoreQueue` for the URL of an older queue: its folder or file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from jqueue.connect.address import DURATION, TEXT, YES_OR_NO, Address, Kind, check_folder, check_nobody, or_none, wrong
from jqueue.formats.port import JobStorePort


def _taken(address: Address, **known: Kind) -> tuple[str, dict[str, Any]]:
    """Return the path and the options of a URL with three slashes. The folder of the path exists or may be created."""
    path = _path(address)
    options = address.take(**known, create=YES_OR_NO)
    check_folder(path.rstrip("/"), create=options.pop("create", address.create))
    return path, options


def _path(address: Address) -> str:
    check_nobody(address)
    if address.place not in ("", "localhost"):
        raise wrong(address.scheme, "has two slashes where three belong: its path begins with the third")
    if not address.name.strip("/") or "\0" in address.name:
        raise wrong(address.scheme, "names nothing that there can be in a file system")
    return f"/{address.name}"


def _one_of(*texts: str) -> str:
    *known, text = texts
    if text not in known:
        raise ValueError("another word")
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text)):
        raise ValueError("not a count")
    return int(text)


def _vsqs(address: Address) -> JobStorePort:
    path, options = _taken(
        address,
        entrypoint=TEXT,
        unit=Kind("us or ms", partial(_one_of, "us", "ms")),
        capacity=Kind("a number of messages above 0", _count),
        when_full=Kind("refuse or wait", partial(_one_of, "refuse", "wait")),
        fsync=YES_OR_NO,
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


_COUNT = Kind("a whole number above 0", _count)
_AGE = Kind("a whole number of seconds, where 0 means never", _age)

_DIRQ_OF_SIMPLE = {"granularity": _COUNT}
_DIRQ_OF_QUEUE = {"schema": TEXT, "payload": TEXT, "headers": TEXT, "maxelts": _COUNT}


def _dirq(address: Address) -> JobStorePort:
    path, options = _taken(
        address,
        kind=Kind("simple or queue", partial(_one_of, "simple", "queue")),
        entrypoint=TEXT,
        umask=Kind("a umask in octal, such as 077", _umask),
        maxtemp=_AGE,
        maxlock=_AGE,
        fsync=YES_OR_NO,
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
        raise wrong("dirq", f"has {', '.join(misplaced)}, which queues of kind={kind} do not have")
    if kind == "simple":
        return DirqSimple(path, **options)
    text, payload = options.pop("schema", "body:binary,header:table?"), options.pop("payload", "body")
    headers = options.pop("headers", None)
    schema = or_none(lambda given: Schema.parse(given, payload, headers), text)
    if schema is None:
        words = "a binary or string for the payload, a table for headers, and else nothing without ?"
        raise wrong("dirq", f"has a schema that jobs do not fit into: it takes name:kind,name:kind with {words}")
    return DirqElements(path, schema=schema, **options)


def _textq(address: Address) -> JobStorePort:
    path, options = _taken(
        address,
        entrypoint=TEXT,
        fsync=YES_OR_NO,
        hide=YES_OR_NO,
        lines=Kind("single or many", partial(_one_of, "single", "many")),
        settle=DURATION,
    )
    if path.endswith("/"):
        raise wrong(address.scheme, "names a folder, where a file belongs")
    from jqueue.formats.textqueue.store import TextQueueFile

    return TextQueueFile(path, single_lines=options.pop("lines", "many") == "single", **options)


FORMATS: dict[str, Callable[[Address], JobStorePort]] = {
    "vsqs": _vsqs,
    "dirq": _dirq,
    "textq": _textq,
}
