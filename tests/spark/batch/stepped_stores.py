"""Stores that tell each call before they make it, so that a test can end their process between any two calls.

`stepped:///folder/queue.json` is a file, and `stepped-s3://key:secret@bucket/queue.json?...` an object of S3. A process
knows these URLs once it has imported this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.s3 import S3Storage
from jqueue.connect.parsed_url import ParsedURL
from jqueue.connect.stores import STORES

FILE, S3 = "stepped", "stepped-s3"
"""Schemes of the URLs."""

CALLS = (
    "read",
    "read_if_changed",
    "write",
    "remove",
    "list_beside",
    "create_object",
    "create_object_from",
    "read_object",
    "remove_object",
)
"""Calls that are told."""

Step = Callable[[str], object]
"""Called with the name of a call: that of its method, and of the object."""

_steps: list[Step] = []


def tell(step: Step) -> None:
    """Have this function called before each call of this process and of those that it forks, in place of others."""
    _steps[:] = [step]


def _stepped(kind: Any, object_of: Callable[[Any], str]) -> Any:
    """Return a class of storages that tell their calls, given the class, and the name of the object of a storage."""

    def told(name: str) -> Any:
        method = getattr(kind, name)

        async def call(storage: Any, *arguments: Any, **options: Any) -> Any:
            suffix = arguments[0] if name.endswith(("object", "object_from", "beside")) else ""
            for step in _steps:
                step(f"{name} {object_of(storage)}{suffix}")
            return await method(storage, *arguments, **options)

        return call

    return type(f"Stepped{kind.__name__}", (kind,), {name: told(name) for name in CALLS})


SteppedS3 = _stepped(S3Storage, lambda storage: str(storage.key))


class SteppedFile(_stepped(LocalFileSystemStorage, lambda storage: str(storage.path.name))):  # type: ignore[misc]
    """A file that tells its calls."""

    def beside(self, suffix: str) -> SteppedFile:
        """Return the file beside this one. It tells its calls, too."""
        return SteppedFile(f"{self.path}{suffix}")


def _file(url: ParsedURL) -> Any:
    return SteppedFile(f"/{url.name}")


def _s3(url: ParsedURL) -> Any:
    keys = {"access_key_id": url.user, "secret_access_key": url.secret}
    return SteppedS3(url.host, url.name, **keys, **url.options)


STORES.update({FILE: _file, S3: _s3})
