"""A payload must be bytes-like

Why: 1.0.0 decoded a text as base64 and stored different bytes

1.0.0: b'i\\xb7\\x1d'
2.0.0: InvalidJobError, a ValueError: True
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage


async def main():
    try:
        job = await DirectQueue(InMemoryStorage()).enqueue("task", "abcd")  # type: ignore[arg-type]
        print(job.payload)
    except Exception as error:
        print(f"{type(error).__name__}, a ValueError: {isinstance(error, ValueError)}")


asyncio.run(main())
