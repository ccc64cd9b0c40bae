"""The original programs of each format, as processes that get their calls line by line, and as workers to be killed."""

import base64
import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.interop.environments import Interpreter

DIRQ = r"""
import re
from dirq.QueueSimple import QueueSimple
from dirq.queue import Queue

schema, options = settings
queue = Queue(place, schema=schema, **options) if schema else QueueSimple(place, **options)
STUMBLES = r"^cannot rmdir\(.*\): .*Directory not empty: '.*/((temporary|obsolete)/[0-9a-f]{14}|[0-9a-f]{8})'$"

def names():
    found, name = [], queue.first()
    while name:
        found.append(name)
        name = queue.next()
    return found

def add(payload):
    return queue.add({"body": payload} if schema and isinstance(payload, bytes) else payload)

def claim(most):
    locked = []
    for name in names():
        if len(locked) < most and queue.lock(name):
            locked.append([name, queue.get(name)])
    return locked

def finish(name):
    queue.remove(name)

def give_back(name):
    queue.unlock(name)

def tidy():
    try:
        queue.purge()
    except OSError as error:  # raised for elements that others add, remove or left half done
        if not re.search(STUMBLES, str(error)):
            raise
"""

VSQS = """
from vsqs.queue import QueueManager

root, _, name = place.rpartition("/")
queue = QueueManager(root).get_queue(name)
add, finish = queue.publish, queue.delete

def receive(timeout):
    return queue.receive(visibility_timeout=timeout, timeout=0.001)

def claim(most):
    received = (receive(3600) for _ in range(most))
    return [pair for pair in received if pair[0] is not None]

def give_back(name):
    pass  # it has no such call

def tidy():
    assert queue.size() >= 0
"""

TEXTQUEUE = """
import warnings
from textqueue import TextQueue
warnings.simplefilter("ignore", ResourceWarning)  # 1.0 has no way to close a file

queue, open_messages = TextQueue(), {}
queue.add_input(place)

def add(payload):
    with open(place, "ab") as file:
        file.write(b"-" + payload + b"\\n")

def claim(most):
    messages = (queue.get_next() for _ in range(most))
    read = [(str(id(message)), message) for message in messages if message is not None]
    open_messages.update(read)
    return [[name, message.value.encode()] for name, message in read]

def finish(name):
    open_messages[name].mark_as_cleared()

def give_back(name):
    pass  # it takes no lock

def tidy():
    open_messages.clear()

def read_all(path):
    queue, texts, errors = TextQueue(), [], 0
    queue.add_input(path)
    while True:
        try:
            message = queue.get_next()
        except ValueError:
            errors += 1
            continue
        if message is None:
            return [texts, errors]
        texts.append(message.value)
"""

_BEGIN = """
import base64, json, os, random, sys
(place, settings), seed = json.loads(sys.argv[1]), sys.argv[-1]
"""

_BY_LINE = r"""
def text_of(value):
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, dict):
        return {"table": {key: text_of(piece) for key, piece in value.items()}}
    return list(map(text_of, value)) if isinstance(value, (list, tuple)) else value

def value_of(text):
    if isinstance(text, dict) and "bytes" in text:
        return base64.b64decode(text["bytes"])
    if isinstance(text, dict):
        return {key: value_of(piece) for key, piece in text["table"].items()}
    return text

def take(most):
    taken = claim(most)
    for name, _ in taken:
        finish(name)
    return taken

for line in sys.stdin:
    verb, *arguments = json.loads(line)
    try:
        answer = {"result": text_of((globals().get(verb) or getattr(queue, verb))(*map(value_of, arguments)))}
    except Exception as error:
        answer = {"error": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(answer), flush=True)
os._exit(0)  # the folder watch of vsqs would keep the process alive
"""

_ENDLESSLY = r"""
chance = random.Random(seed)

def note(what, payload):
    os.write(1, b"%s %s\n" % (what.encode(), payload))

def payload_of(content):
    return content["body"] if isinstance(content, dict) else content

while True:
    for _ in range(chance.randrange(1, 4)):
        payload = b"%s-%d" % (seed.encode(), chance.randrange(1 << 60))
        note("try", payload)
        add(payload)
        note("added", payload)
    for name, content in claim(chance.randrange(1, 4)):
        if chance.random() < 0.2:
            give_back(name)
            continue
        note("finish", payload_of(content))
        finish(name)
        note("done", payload_of(content))
    tidy()
"""

PROGRAMS = {"dirq": DIRQ, "vsqs": VSQS, "textq": TEXTQUEUE}
SCHEMA = {"body": "binary", "header": "table?"}


def worker(name: str, interpreter: Interpreter, place: Path, settings: Any = None) -> list[str]:
    """The command of an original that adds and finishes payloads until it is killed. Its seed is to be appended."""
    return _command(interpreter, f"{_BEGIN}{PROGRAMS[name]}{_ENDLESSLY}", place, settings)


class OriginalError(Exception):
    """An error that the original raised."""


class ByLine:
    """A queue of another program, with the methods of that program.

    Args:
        command: command of a program that reads a call from each line and writes a line with its result.
        environment: environment variables of the program.
    """

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __getattr__(self, verb: str) -> Any:
        def call(*arguments: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([verb, *map(_text_of, arguments)]) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            if "error" in answer:
                raise OriginalError(answer["error"])
            return _value_of(answer["result"])

        return call

    def __enter__(self) -> "ByLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)


class Original(ByLine):
    """The original of a format, with its own methods, and `add`, `claim`, `finish`, `take` and `give_back`.

    Args:
        name: "dirq", "vsqs" or "textq".
        interpreter: a Python with the original.
        place: its folder or its file.
        settings: for dirq, the schema, or None for the kind `simple`, and the options.
    """

    def __init__(self, name: str, interpreter: Interpreter, place: Path, settings: Any = None) -> None:
        program = f"{_BEGIN}{PROGRAMS[name]}{_BY_LINE}"
        super().__init__(_command(interpreter, program, place, settings), interpreter.environment)


def _command(interpreter: Interpreter, program: str, place: Path, settings: Any) -> list[str]:
    # Warnings are off, because threads of vsqs print one for each event.
    return [str(interpreter.python), "-W", "ignore", "-c", program, json.dumps([str(place), settings])]


def _text_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {"table": {key: _text_of(piece) for key, piece in value.items()}}
    return value


def _value_of(text: Any) -> Any:
    if isinstance(text, dict) and "bytes" in text:
        return base64.b64decode(text["bytes"])
    if isinstance(text, dict):
        return {key: _value_of(piece) for key, piece in text["table"].items()}
    return [_value_of(piece) for piece in text] if isinstance(text, list) else text
