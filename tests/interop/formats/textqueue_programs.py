"""Programs for textqueue 1.0 and 1.1, a program that appends lines, and a program for jqueue, as text."""

READ_ALL = """
import json, sys, warnings
from textqueue import TextQueue
warnings.simplefilter("ignore", ResourceWarning)  # 1.0 has no way to close a file
for path in sys.argv[1:]:
    queue, found, errors = TextQueue(), [], 0
    queue.add_input(path)
    while True:
        try:
            message = queue.get_next()
        except ValueError:
            errors += 1
            continue
        if message is None:
            break
        found.append(message.value)
    print(json.dumps([found, errors]))
"""
"""Prints the queued messages of each file, and the number of lines that could not be read."""

READER = """
import json, sys, warnings
from textqueue import TextQueue
warnings.simplefilter("ignore", ResourceWarning)  # 1.0 has no way to close a file
queue = TextQueue()
queue.add_input(sys.argv[1])
for line in sys.stdin:
    found = []
    for _ in range(int(line)):
        message = queue.get_next()
        if message is None:
            break
        found.append(message.value)
        message.mark_as_cleared()
    print(json.dumps(found), flush=True)
"""
"""Reads and finishes the number of messages given by each line of its input."""

ENDLESS_READER = """
import json, sys, time
from textqueue import TextQueue
queue = TextQueue()
queue.add_input(sys.argv[1])
print(json.dumps(["begun", sys.argv[2]]), flush=True)
while True:
    message = queue.get_next()
    if message is None:
        time.sleep(0.01)
        continue
    print(json.dumps(["read", message.value]), flush=True)
    message.mark_as_cleared()
    print(json.dumps(["marked", message.value]), flush=True)
    time.sleep(0.005)
"""
"""Prints that it has begun, then reads and finishes messages until it is killed."""

APPENDER = """
import json, os, sys, time
number = 0
print(json.dumps(["begun", sys.argv[2]]), flush=True)
while True:
    number += 1
    text = sys.argv[2] + "-" + str(number)
    with open(sys.argv[1], "a") as file:
        file.write("-" + text + "\\n")
    print(json.dumps(["added", text]), flush=True)
    time.sleep(0.003)
"""
"""Appends lines until it is killed, like a user's script."""

OURS = """
import asyncio, json, os, random, sys
from jqueue import JQueueError
from jqueue.connect import connect

def say(*what):
    os.write(1, json.dumps(what).encode() + b"\\n")

async def main(url, role, name):
    dice = random.Random(name)
    async with connect(url, stale_timeout=1) as queue:
        number = 0
        say("begun", name)
        while True:
            if role == "producer":
                texts = [f"{name}-{number + more}" for more in range(dice.randint(1, 4))]
                number += len(texts)
                await asyncio.gather(*(queue.enqueue("work", text.encode()) for text in texts))
                for text in texts:
                    say("added", text)
                await asyncio.sleep(0.01)
                continue
            jobs = await queue.dequeue(batch_size=dice.randint(1, 4), wait=0.2)
            for job in jobs:
                text = job.payload.decode()
                say("read", text)
                try:
                    if dice.random() < 0.1:
                        await queue.nack(job)
                    else:
                        await queue.ack(job)
                        say("marked", text)
                except JQueueError as error:
                    say("lost", text, type(error).__name__)

asyncio.run(main(*sys.argv[1:]))
"""
"""A producer or a consumer of jqueue that runs until it is killed."""
