"""Tests without infrastructure: the store in memory, empty or filled in advance."""

# mypy: ignore-errors

import asyncio

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage

processed = []


async def process_email(job):
    processed.append(job.payload)


async def test_email_worker():
    async with BrokerQueue(InMemoryStorage()) as q:
        await q.enqueue("send_email", b'{"to": "test@example.com"}')
        [job] = await q.dequeue("send_email")
        await process_email(job)
        await q.ack(job.id)
        state = await q.read_state()
        assert len(state.jobs) == 0


async def test_it_begins_with_what_it_is_given():
    storage = InMemoryStorage(initial_content=b'{"version":0,"jobs":[]}')
    q = DirectQueue(storage)
    print((await q.read_state()).version, (await q.read_state()).jobs)
    await q.enqueue("send_email", b"1")
    print((await q.read_state()).version, len((await q.read_state()).jobs))


async def test_the_store_itself():
    storage = InMemoryStorage()
    print(await storage.read())
    etag = await storage.write(b"one")
    print(await storage.read() == (b"one", etag))
    newer = await storage.write(b"two", if_match=etag)
    print(newer != etag, (await storage.read())[0])


asyncio.run(test_email_worker())
asyncio.run(test_it_begins_with_what_it_is_given())
asyncio.run(test_the_store_itself())
print(processed)
