"""The folder or file of an older queue for a URL, as the store of a `StoreQueue`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jqueue.connect.address import TEXT, YES_OR_NO, Address, Kind, check_nobody, wrong
from jqueue.ports.job_store import JobStorePort


def _path(address: Address) -> str:
    """The path in a URL of three slashes."""
    check_nobody(address)
    if address.place not in ("", "localhost"):
        raise wrong(address.scheme, "has two slashes where three belong: its path begins with the third")
    if not address.name.strip("/"):
        raise wrong(address.scheme, "names no folder")
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
    path = _path(address)
    options = address.take(
        entrypoint=TEXT,
        unit=Kind("us or ms", partial(_one_of, "us", "ms")),
        capacity=Kind("a number of messages above 0", _count),
        when_full=Kind("refuse or wait", partial(_one_of, "refuse", "wait")),
        fsync=YES_OR_NO,
    )
    from jqueue.adapters.formats.vsqs import VsqsFolder

    return VsqsFolder(path, **options)


FORMATS: dict[str, Callable[[Address], JobStorePort]] = {
    "vsqs": _vsqs,
}
