"""The etag of a file is a token and the file's metadata, not a hash of its content

Why: restored content is a new version even if it is equal, and no content has to be hashed

1.0.0: the same content, the same etag: True
2.0.0: the same content, the same etag: False
"""

import asyncio

from jqueue import LocalFileSystemStorage


async def main():
    storage = LocalFileSystemStorage("queue.json")
    first = await storage.write(b"content")
    print("the same content, the same etag:", first == await storage.write(b"content", first))


asyncio.run(main())
