"""A job that cannot be read is set aside and kept, and the other jobs are served

Why: one bad job must not stop all others

1.0.0: ValidationError
2.0.0: served: good
2.0.0: kept: True
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage

BLOB = b"""{"version": 1, "jobs": [
{"id": "a", "entrypoint": "bad", "payload": "not base64!"},
{"id": "b", "entrypoint": "good", "payload": ""}]}"""


async def main():
    storage = InMemoryStorage(BLOB)
    try:
        print("served:", *[job.entrypoint for job in await DirectQueue(storage).dequeue(batch_size=2)])
        print("kept:", b"not base64!" in (await storage.read())[0])
    except Exception as error:
        print(type(error).__name__)


asyncio.run(main())
