"""The real vsqs 0.3, which gets a line of JSON for each call, and workers of vsqs and jqueue that are killed."""

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
os._exit(0)  # its folder watch would keep the process alive
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
            if time.time() < begun + timeout:  # after the timeout, delete does nothing and raises no error
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
    """The real vsqs in its own process.

    Args:
        interpreter: a Python with vsqs.
        root: the folder of its queues.
        queue: name of the queue.
    """

    def __init__(self, interpreter: Interpreter, root: Path, queue: str = "queue") -> None:
        # Warnings are off, because its threads print one for each event, which would fill the pipe.
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
        """Publish a payload and return its id."""
        return str(self.call("publish", payload.hex()))

    def receive(self, timeout: float = 10, wait: float = 0.001) -> tuple[str, bytes] | None:
        """Receive a job: its id and payload, or None if there is none."""
        answer = self.call("receive", timeout, wait)
        return None if answer is None else (answer[0], bytes.fromhex(answer[1]))

    def delete(self, name: str) -> None:
        """Delete a job, if vsqs still has its claim."""
        self.call("delete", name)

    def size(self) -> int:
        """Number of jobs, including hidden ones."""
        return int(self.call("size"))

    def call(self, *command: Any) -> Any:
        """Make a call and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "vsqs has ended: see its output above"
        return json.dumps("ready") if line == "ready\n" else line


class Worker:
    """A worker of either side, which is restarted after each kill."""

    def __init__(self, interpreter: Interpreter, program: str, folder: Path, name: str, timeout: int) -> None:
        self._interpreter = interpreter
        self._program = program
        self._folder = folder
        self._name = name
        self._timeout = timeout
        self._lives = 0
        self.start()

    def start(self) -> None:
        """Start the process with a new name."""
        self._lives += 1
        name = f"{self._name}{self._lives}"
        arguments = (str(self._folder), "queue", str(self._folder / f"{name}.log"), name, str(self._timeout))
        self.process = subprocess.Popen(
            [str(self._interpreter.python), "-W", "ignore", "-c", self._program, *arguments],
            env=self._interpreter.environment,
        )
        self._started = time.monotonic()

    def kill(self) -> None:
        """Send SIGKILL, and assert that the process was alive."""
        ended = self.process.poll()
        self.process.kill()
        self.process.wait(timeout=60)
        assert ended is None, f"{self._name} ended by itself: see its output above"
