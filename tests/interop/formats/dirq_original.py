"""The real dirq in its own process, which gets its commands for a folder line by line."""

import base64
import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.interop.environments import Interpreter

SCHEMA = {"body": "binary", "header": "table?"}

PROGRAM = r'''
import base64, json, sys
from dirq.QueueSimple import QueueSimple
from dirq.queue import Queue

path, schema, options = json.loads(sys.argv[1])
if schema is None:
    queue = QueueSimple(path, **options)
else:
    queue = Queue(path, schema=schema, **options)

def text_of(value):
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, dict):
        return {"table": {key: text_of(piece) for key, piece in value.items()}}
    return value

def value_of(text):
    if isinstance(text, dict) and "bytes" in text:
        return base64.b64decode(text["bytes"])
    if isinstance(text, dict):
        return {key: value_of(piece) for key, piece in text["table"].items()}
    return text

def names():
    found, name = [], queue.first()
    while name:
        found.append(name)
        name = queue.next()
    return found

def take(most):
    """Lock and remove up to `most` elements. Returns their names and contents."""
    taken = []
    for name in names():
        if len(taken) < most and queue.lock(name):
            taken.append([name, text_of(queue.get(name))])
            queue.remove(name)
    return taken

for line in sys.stdin:
    verb, *arguments = json.loads(line)
    try:
        call = {"names": names, "take": take}.get(verb) or getattr(queue, verb)
        answer = {"result": text_of(call(*map(value_of, arguments)))}
    except Exception as error:
        answer = {"error": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(answer), flush=True)
'''


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
    if isinstance(text, list):
        return [_value_of(piece) for piece in text]
    return text


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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


class Dirq(ByLine):
    """A queue of dirq. It has the methods of `QueueSimple`, or with a schema those of `Queue`.

    Args:
        interpreter: a Python with dirq.
        path: path of the folder.
        schema: schema of the elements, for `Queue`.
        options: options of the queue: umask, maxelts, granularity and rndhex.
    """

    def __init__(
        self, interpreter: Interpreter, path: Path, schema: dict[str, str] | None = None, **options: Any
    ) -> None:
        command = [str(interpreter.python), "-c", PROGRAM, json.dumps([str(path), schema, options])]
        super().__init__(command, interpreter.environment)
