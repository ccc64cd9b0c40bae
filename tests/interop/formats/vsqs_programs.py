"""What the real vsqs 0.3 is told to do, by a line of JSON for each call; and workers of both that are killed."""

import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.environments import Interpreter

THEIRS = """
import json, os, sys
from vsqs.queue import QueueManager

queue = QueueManager(sys.argv[1]).get_queue(sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    command, *arguments = json.loads(line)
    if command == "publish":
        answer = queue.publish(bytes.fromhex(arguments[0]))
    elif command == "receive":
        name, payload = queue.receive(visibility_timeout=arguments[0], timeout=arguments[1])
        answer = None if name is None else [name, payload.hex()]
    elif command == "delete":
        answer = queue.delete(arguments[0])
    elif command == "size":
        answer = queue.size()
    print(json.dumps(answer), flush=True)
os._exit(0)  # its watch would keep it alive
"""

_LOG = """
import os, sys, time

log = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def say(what, name, moment):
    os.write(log, f"{what} {name} {moment} {time.time()}\\n".encode())
"""

THEIR_WORKER = (
    _LOG
    + """
from vsqs.queue import QueueManager

queue = QueueManager(sys.argv[1]).get_queue(sys.argv[2])
number, timeout = 0, int(sys.argv[5])
while True:
    payload = f"{sys.argv[4]}-{number}"
    number += 1
    begun = time.time()
    queue.publish(payload.encode())
    say("added", payload, begun)
    begun = time.time()
    name, payload = queue.receive(visibility_timeout=timeout, timeout=0.001)
    if name is not None:
        say("taken", payload.decode(), begun)
        if number % 5:
            queue.delete(name)
            if time.time() < begun + timeout:  # later, it is silent, and does nothing
                say("ended", payload.decode(), begun)
            else:
                say("late", payload.decode(), begun)
"""
)

OUR_WORKER = (
    _LOG
    + """
import asyncio
from jqueue.connect import connect
from jqueue import ClaimLostError

async def main():
    number, timeout = 0, int(sys.argv[5])
    queue = connect(f"vsqs://{sys.argv[1]}/{sys.argv[2]}?fsync=false")
    while True:
        payload = f"{sys.argv[4]}-{number}"
        number += 1
        begun = time.time()
        await queue.enqueue("work", payload.encode())
        say("added", payload, begun)
        begun = time.time()
        for job in await queue.dequeue(claim_timeout=timeout):
            say("taken", job.payload.decode(), begun)
            try:
                if number % 5 == 1:
                    await queue.nack(job)
                    say("given", job.payload.decode(), begun)
                elif number % 5:
                    await queue.ack(job)
                    say("ended", job.payload.decode(), begun)
            except ClaimLostError:
                pass

asyncio.run(main())
"""
)


class Theirs:
    """The real vsqs in a process of its own.

    Args:
        interpreter: that has it.
        root: of its queues.
        queue: which one.
    """

    def __init__(self, interpreter: Interpreter, root: Path, queue: str = "queue") -> None:
        # Not with every warning shown: its threads have one for each event, and nobody reads them.
        command = [str(interpreter.python), "-W", "ignore", "-c", THEIRS, str(root), queue]
        self._process = subprocess.Popen(
            command, env=interpreter.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def publish(self, payload: bytes) -> str:
        """Returns the id."""
        return str(self.call("publish", payload.hex()))

    def receive(self, timeout: float = 10, wait: float = 0.001) -> tuple[str, bytes] | None:
        """The id and the payload; None if there is nothing."""
        answer = self.call("receive", timeout, wait)
        return None if answer is None else (answer[0], bytes.fromhex(answer[1]))

    def delete(self, name: str) -> None:
        """Acknowledge, as far as it remembers."""
        self.call("delete", name)

    def size(self) -> int:
        """How many there are, hidden ones too."""
        return int(self.call("size"))

    def call(self, *command: Any) -> Any:
        """One call, and its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "vsqs has ended: what it said is above"
        return json.dumps("ready") if line == "ready\n" else line


class Worker:
    """A worker of either side, started again as often as it is killed."""

    def __init__(self, interpreter: Interpreter, program: str, folder: Path, name: str, timeout: int) -> None:
        self._interpreter = interpreter
        self._program = program
        self._folder = folder
        self._name = name
        self._timeout = timeout
        self._lives = 0
        self.start()

    def start(self) -> None:
        """Begin another life, with names of its own."""
        self._lives += 1
        name = f"{self._name}{self._lives}"
        arguments = (str(self._folder), "queue", str(self._folder / f"{name}.log"), name, str(self._timeout))
        self.process = subprocess.Popen(
            [str(self._interpreter.python), "-W", "ignore", "-c", self._program, *arguments],
            env=self._interpreter.environment,
        )
        self._started = time.monotonic()

    def kill(self) -> None:
        """With SIGKILL; it must have been alive."""
        ended = self.process.poll()
        self.process.kill()
        self.process.wait(timeout=60)
        assert ended is None, f"{self._name} ended by itself: what it said is above"
