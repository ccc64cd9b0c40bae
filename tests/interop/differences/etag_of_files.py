"""The etag of a file is a token and what the system says of the file, not a hash of the content

Why: a content that comes back, as after a restore, is another version; and nothing has to be hashed

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
