"""The one place that turns a URL into a storage or a queue.

    queue = connect("queue.json")
    queue = connect("s3://bucket/queue.json", DirectQueue)
    storage = open_storage("s3://bucket/queue.json?endpoint_url=http://127.0.0.1:9000")

No error, log line or repr shows the secrets of a URL, nor anything else that its user wrote there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from jqueue.connect.parsed_url import EXAMPLES, parse_url, url_error
from jqueue.connect.stores import FORMATS, STORES, bare_path
from jqueue.domain.errors import InvalidURLError

if TYPE_CHECKING:
    from jqueue.core.broker import BrokerQueue
    from jqueue.ports.storage import ObjectStoragePort

Queue = TypeVar("Queue")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_ALIASES = {
    "s3a": "s3", "s3n": "s3",
    "gcs": "gs", "gcs+https": "gs",
    "azure": "az", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az",
    "mem": "memory",
}  # fmt: skip


@overload
def connect(
    url: str | os.PathLike[str],
    *,
    create: bool = False,
    token: str | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
    **settings: Any,
) -> BrokerQueue: ...
@overload
def connect(
    url: str | os.PathLike[str],
    kind: Callable[..., Queue],
    *,
    create: bool = False,
    token: str | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
    **settings: Any,
) -> Queue: ...


def connect(
    url: str | os.PathLike[str],
    kind: Callable[..., Any] | None = None,
    *,
    create: bool = False,
    token: str | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
    **settings: Any,
) -> Any:
    """Return a queue for a URL. Nothing is sent before it is used.

    Args:
        url: `s3://bucket/key`, `gs://bucket/object`, `az://account@container/blob`, `file:///path` or `memory://`, with
            options of the storage after it as `?name=value&name=value`; or a bare path, which is used as it is. A
            process that cannot reach the store names its broker: `jqueue+https://host:8470/queue`. The folder or file
            of an older program is `vsqs:///folder`, `dirq:///folder` or `textq:///file`.
        kind: the class of the queue, such as `DirectQueue`; `BrokerQueue` by default. For the URL of an older program
            it is `StoreQueue`, also by default; type checkers know that only if it is given.
        create: True if the folder of a file or of an older queue may be missing: the first job creates it.
        token: for the broker that the URL names; on a store that several machines use, the address of the broker with
            its token, `https://host:8470/#token=TOKEN`. It is sent to no other host. None: what `JQUEUE_TOKEN` has.
        ca_file: file with the certificates to trust of the broker, in PEM; None: those of the system.
        insecure: True to reach a broker on another machine without TLS.
        settings: settings of the queue.

    Raises:
        MissingFolderError: the folder of the file, or of the older queue, does not exist.
        InvalidURLError: the URL is wrong. The message shows a right one. Or it names a queue of an older program, and
            `kind` is another class than `StoreQueue`.
        ImportError: the extra for that store is not installed. The message names it.
        TypeError: the URL is neither text nor a path.
    """
    place, is_older = _found(url, create=create, token=token, ca_file=ca_file, insecure=insecure)
    if is_older:
        from jqueue.formats.queue import StoreQueue

        if isinstance(kind, type) and not issubclass(kind, StoreQueue):
            raise InvalidURLError(
                "this URL names a queue of an older program, which the given class cannot open: leave the class out, "
                "or give jqueue.formats.queue.StoreQueue"
            )
        return (kind or StoreQueue)(place, **settings)
    if kind is None:
        from jqueue.core.broker import BrokerQueue

        kind = BrokerQueue
    return kind(place, **settings)


def open_storage(
    url: str | os.PathLike[str],
    *,
    create: bool = False,
    token: str | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
) -> ObjectStoragePort:
    """Return the storage for a URL, which holds a whole queue in one object. Nothing is sent before it is used.

    Args:
        url: see `connect`.
        create: see `connect`.
        token: see `connect`.
        ca_file: see `connect`.
        insecure: see `connect`.

    Raises:
        MissingFolderError: the folder of the file does not exist.
        InvalidURLError: the URL is wrong, or it names a queue of an older program.
        ImportError: the extra for that store is not installed. The message names it.
        TypeError: the URL is neither text nor a path.
    """
    place, is_older = _found(url, create=create, token=token, ca_file=ca_file, insecure=insecure)
    if is_older:
        raise InvalidURLError(
            "this URL names a queue of an older program, but only a queue in one object of a store can be used here: "
            f"it should look like {EXAMPLES['s3']}, or be a path"
        )
    storage: ObjectStoragePort = place
    return storage


def _found(url: str | os.PathLike[str], **access: Any) -> tuple[Any, bool]:
    """Return a storage and False; or the store of an older queue and True."""
    match = _SCHEME.match(url) if isinstance(url, str) else None
    if match is None:
        return bare_path(url, create=access["create"]), False
    scheme = match[1].lower()
    if scheme in _ALIASES:
        raise InvalidURLError(f"no store is called {scheme}: try {EXAMPLES[_ALIASES[scheme]]}")
    build = STORES.get(scheme) or FORMATS.get(scheme)
    if build is None:
        urls = ", ".join(EXAMPLES.values())
        raise InvalidURLError(
            f"the scheme of this URL is unknown: it should look like one of {urls}, or be a path (./a:b with a colon)"
        )
    if match[2] is None:
        raise url_error(scheme, "has no // after its scheme")
    parsed = replace(parse_url(scheme, match.string, match.end()), **access)
    return build(parsed), scheme in FORMATS
