"""Fan-out: several queues, each in its own file, used at once."""

import asyncio

from jqueue import BrokerQueue, LocalFileSystemStorage


async def main():
    email_queue = BrokerQueue(LocalFileSystemStorage("queues/email.json"))
    sms_queue = BrokerQueue(LocalFileSystemStorage("queues/sms.json"))
    async with email_queue, sms_queue:
        await asyncio.gather(email_queue.enqueue("send", b"letter"), sms_queue.enqueue("send", b"text"))
        for q in (email_queue, sms_queue):
            for job in await q.dequeue("send", batch_size=10):
                print(job.entrypoint, job.payload)
                await q.ack(job.id)
    print(len((await email_queue.read_state()).jobs), len((await sms_queue.read_state()).jobs))


asyncio.run(main())
