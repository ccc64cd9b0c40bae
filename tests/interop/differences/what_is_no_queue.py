"""An object that is not a queue raises InvalidBlobError, not pydantic's ValidationError, and stays unchanged

Why: the message names the fault and the remedy, and shows no payload

1.0.0: read_state: ValidationError
1.0.0: enqueue: ValidationError
1.0.0: decode: ValidationError
2.0.0: read_state: InvalidBlobError
2.0.0: enqueue: InvalidBlobError
2.0.0: decode: InvalidBlobError
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.codec import decode

SOMETHING_ELSE = b'{"jobs": "none"}'


async def attempt(what, call, *arguments):
    try:
        await call(*arguments)
        print(f"{what}: done")
    except Exception as error:
        print(f"{what}: {type(error).__name__}")


async def decoded(data):
    return decode(data)


async def main():
    q = DirectQueue(InMemoryStorage(SOMETHING_ELSE))
    await attempt("read_state", q.read_state)
    await attempt("enqueue", q.enqueue, "task", b"")
    await attempt("decode", decoded, SOMETHING_ELSE)


asyncio.run(main())
