"""An adapter must give every content an etag, and a missing object none: `(b"", None)`

Why: compare-and-set needs an etag, and an empty object may be a queue that was cut short

1.0.0: an etag for nothing: done
1.0.0: content without an etag: done
2.0.0: an etag for nothing: InvalidBlobError
2.0.0: content without an etag: StorageFatalError
"""

import asyncio

from jqueue import DirectQueue, JQueueError


class Adapter:
    def __init__(self, content, etag):
        self.content = content
        self.etag = etag

    async def read(self):
        return self.content, self.etag

    async def write(self, content, if_match=None):
        self.content = content
        return "another"


async def attempt(what, adapter):
    try:
        await DirectQueue(adapter).enqueue("task", b"")
        print(f"{what}: done")
    except JQueueError as error:
        print(f"{what}: {type(error).__name__}")


async def main():
    await attempt("an etag for nothing", Adapter(b"", "0"))
    await attempt("content without an etag", Adapter(b'{"version": 0, "jobs": []}', None))


asyncio.run(main())
