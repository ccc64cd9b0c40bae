"""The folder or file of an older queue for a URL, as the store of a `StoreQueue`."""

from __future__ import annotations

from collections.abc import Callable

from jqueue.connect.address import TEXT, YES_OR_NO, Address, check_nobody, wrong
from jqueue.ports.job_store import JobStorePort


def _path(address: Address) -> str:
    """The path in a URL of three slashes."""
    check_nobody(address)
    if address.place not in ("", "localhost"):
        raise wrong(address.scheme, "has two slashes where three belong: its path begins with the third")
    if not address.name.strip("/"):
        raise wrong(address.scheme, "names no folder")
    return f"/{address.name}"


def _vsqs(address: Address) -> JobStorePort:
    path, options = _path(address), address.take(entrypoint=TEXT, fsync=YES_OR_NO)
    from jqueue.adapters.formats.vsqs import VsqsFolder

    return VsqsFolder(path, **options)


FORMATS: dict[str, Callable[[Address], JobStorePort]] = {
    "vsqs": _vsqs,
}
