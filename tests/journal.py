"""The journal of a process that may be killed at any moment, and its comparison with the plain model.

A process notes each call and its answer, the operations that it has applied for its calls, and each object that it is
about to write. The reader follows the commit ids from the last version of the queue back to the first. So it knows the
writes that landed, and hands them, as the evidence of a seed, to the auditors of the simulation.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from pydantic_core import from_json

from jqueue.domain.errors import JQueueError
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import TRAVELLING, decode_operation, encode_operation
from jqueue.ports.observer import AppliedCall, AppliedCalls
from jqueue.ports.storage import SupportsObjects
from tests.simulation.answers_audit import AnswersAudit
from tests.simulation.chain import NOTHING, read_chain
from tests.simulation.history import Call, Calls, Evidence, History, Record, Recorder, SentCalls, Violation
from tests.simulation.model_audit import ModelAudit
from tests.simulation.network import Landing

PREFIX = 8
"""Number of bytes before each entry, with its length."""

LONGEST_PAYLOAD = 600
FOLDERS = (".segments/", ".payloads/", ".results/")


class Journal:
    """Writes the journal of a process. An entry is one write, so a killed process leaves at most its last one cut.

    Args:
        process: name of the process.
        write: appends bytes to a place that outlives the process.
    """

    def __init__(self, process: str, write: Callable[[bytes], object]) -> None:
        self.process = process
        self.recorder = Recorder(process, self, self)  # type: ignore[arg-type] # it appends, and sets items
        self._write = write
        self._history = History()
        self._numbers: dict[Call, int] = {}
        self._known: dict[int, Any] = {}  # so that the ids of operations stay theirs

    def note(self, *entry: Any) -> None:
        """Write an entry."""
        buffer = BytesIO()
        _Pickler(buffer).dump(entry)
        data = buffer.getvalue()
        self._write(len(data).to_bytes(PREFIX) + data)

    async def record(self, call: Call, work: Awaitable[Any]) -> Any:
        """Make a call, and note it and its answer. Return its result, or the error of the queue."""
        number = self._numbers[call] = len(self._numbers)
        self.note("call", number, call)
        result = await self._history.record(call, work)
        self.answer(call)
        return result

    def answer(self, call: Call) -> None:
        """Note the answer of a call."""
        self.note("call", self._numbers[call], call)

    def append(self, record: Record) -> None:
        """Note what was applied for calls: see `Recorder`."""
        applied, calls = record.applied, list[Any]()
        for each, call in zip(applied.calls, record.calls, strict=True):
            token, encoded, number = self._entry(each.operations, call)
            calls.append((token, encoded, each.outcome, number))
        self.note("applied", record.at, applied._replace(calls=calls))

    def __setitem__(self, name: str, calls: Sequence[tuple[Sequence[Operation], Call | None]]) -> None:
        """Note what is sent to a broker: see `Recorder`."""
        self.note("sent", name, [self._entry(*each) for each in calls])

    def _entry(self, operations: Sequence[Operation], call: Call | None) -> tuple[int, tuple[Any, ...], int | None]:
        """Return a token of the operations, their encoded form, and the number of the call."""
        self._known[id(operations)] = operations
        return id(operations), tuple(map(_encoded, operations)), None if call is None else self._numbers[call]

    def of(self, storage: Any) -> Any:
        """Return the storage, which now notes each object before it is written or created."""
        journal, kind = self, type(storage)

        class Journalled(kind):  # type: ignore[misc, valid-type]
            """Notes what it writes."""

            async def write(self, content: bytes, *arguments: Any, **options: Any) -> Any:
                journal.note("write", content)
                return await super().write(content, *arguments, **options)

            async def create_object(self, suffix: str, content: bytes, *arguments: Any, **options: Any) -> Any:
                journal.note("object", suffix, bytes(content))
                return await super().create_object(suffix, content, *arguments, **options)

        storage.__class__ = Journalled
        return storage


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, JQueueError):
            return NotImplemented
        said = {name: each for name, each in vars(value).items() if name != "cause" and not name.startswith("_")}
        return _restored, (type(value), str(value), said)


def _restored(kind: type[JQueueError], message: str, said: dict[str, Any]) -> JQueueError:
    """Return an error without its cause and its resolver, which stay in the process."""
    error = kind.__new__(kind, message)
    vars(error).update(said)
    return error


def _encoded(operation: Operation) -> Any:
    return encode_operation(operation) if isinstance(operation, TRAVELLING) else operation


def _decoded(encoded: Any) -> Operation:
    return decode_operation(encoded) if isinstance(encoded, bytes) else encoded


def read_entries(data: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the entries of a journal, without the last one if it is cut."""
    place = 0
    while place + PREFIX <= len(data):
        end = place + PREFIX + int.from_bytes(data[place : place + PREFIX])
        if end == place + PREFIX or end > len(data):
            return
        yield pickle.loads(data[place + PREFIX : end])
        place = end


class Journals:
    """The journals of all processes that have worked on a queue.

    Args:
        journals: the bytes of each journal, by the name of its process.
        objects: the objects beside the queue that were there before, by suffix.

    Attributes:
        calls: the calls of all processes, with their answers.
        broken: what the processes have noticed themselves.
        landed: number of commits that landed.
        last: the last version.
        writes: number of writes that the processes were about to make.
        seen: number of times that something happened, by name, once the journals were compared with the model.
    """

    def __init__(self, journals: Mapping[str, Any], objects: Mapping[str, bytes] | None = None) -> None:
        self.calls: list[Call] = []
        self.broken: list[str] = []
        self.landed = 0
        self.last = NOTHING
        self.writes = 0
        self.seen: Counter[str] = Counter()
        self._objects = {suffix: (0.0, content) for suffix, content in (objects or {}).items()}
        self._records: list[Record] = []
        self._sent: SentCalls = {}
        self._writes: dict[tuple[int, str, str], tuple[str, bytes]] = {}
        for process, data in journals.items():
            self._read(process, read_entries(data))

    def _read(self, process: str, entries: Iterable[tuple[Any, ...]]) -> None:
        calls: dict[int, Call] = {}
        known: dict[int, tuple[Operation, ...]] = {}

        def operations_of(token: int, encoded: Iterable[Any]) -> tuple[Operation, ...]:
            if token not in known:
                known[token] = tuple(map(_decoded, encoded))
            return known[token]

        for kind, *rest in entries:
            if kind == "call":
                number, call = rest
                if (there := calls.get(number)) is None:
                    calls[number] = call
                else:
                    for name in ("result", "error", "ended"):
                        setattr(there, name, getattr(call, name))
            elif kind == "applied":
                at, applied = rest
                made = [
                    AppliedCall(operations_of(token, encoded), outcome, None)
                    for token, encoded, outcome, _ in applied.calls
                ]
                whose = tuple(None if number is None else calls[number] for *_, number in applied.calls)
                self._records.append(Record(process, at, AppliedCalls(*applied)._replace(calls=made), whose))
            elif kind == "sent":
                name, entries_of_calls = rest
                self._sent[name] = [
                    (operations_of(token, encoded), None if number is None else calls[number])
                    for token, encoded, number in entries_of_calls
                ]
            elif kind == "write":
                version, commit, _ = _commits_of(rest[0])
                if commit is not None:
                    self._writes[version, *commit] = process, rest[0]
                    self.writes += 1
            elif kind == "object":
                self._objects[rest[0]] = 0.0, rest[1]
            else:
                self.broken.append(f"{process}: {rest[0]}")
        self.calls += calls.values()

    def check(self, last: bytes | None, first: bytes | None = None) -> None:
        """Compare the writes that landed with the model, and every answer with what was applied for it.

        Args:
            last: the object of the queue as it is now; None if there is none.
            first: the object before the processes began.

        Raises:
            Violation: a promise was not kept.
        """
        landings = self._landings(last, 0 if first is None else _commits_of(first)[0])
        self.landed = len(landings)
        if first is not None:
            landings.insert(0, Landing(0.0, first, None))
        versions = read_chain(landings, self._objects)
        self.last = next(reversed(versions), NOTHING)
        evidence = Evidence(versions, Calls(self.calls), self._records, self._objects, sent=self._sent)
        audit = ModelAudit(evidence)
        self.seen = audit.seen
        audit.check()
        AnswersAudit(evidence, audit, timed=False).check()

    def _landings(self, last: bytes | None, begin: int) -> list[Landing]:
        """Return the versions that landed, from the first to the last."""
        commits = [(record.applied.commit, record.at) for record in self._records]
        times = {(commit.base_version + 1, commit.token): at for commit, at in commits if commit is not None}
        landings: list[Landing] = []
        if last is None:
            return landings
        version, commit, _ = _commits_of(last)
        while version > begin:
            process, content = self._writes.get((version, *(commit or ("", ""))), ("", b""))
            if not content or (not landings and content != last):
                raise Violation(1, f"version {version} is there, and nobody was about to write it")
            _, (writer, token), table = _commits_of(content)
            landings.append(Landing(times[version, token], content, process))
            version -= 1
            commit = next((each for each, made in table.items() if made == version), None)
            if commit is None:  # the same writer has written both
                own = [key[2] for key in self._writes if key[:2] == (version, writer)]
                commit = (writer, own[-1] if own else "")
        return landings[::-1]


def _commits_of(content: bytes) -> tuple[int, Any, dict[tuple[str, str], int]]:
    """Return the number of a version, the id of its commit, and the version of each commit in its table."""
    header, _, body = content.partition(b"\n")
    whole = from_json(header + b"}}" if body else content)
    table = {(writer, record["token"]): record["version"] for writer, record in whole["commits"].items()}
    return whole["version"], next((each for each, made in table.items() if made == whole["version"]), None), table


async def objects_of(storage: SupportsObjects) -> dict[str, bytes]:
    """Return the objects beside a queue, by suffix."""
    found = [each.suffix for folder in FOLDERS for each in await storage.list_beside(folder)]
    return {suffix: bytes(await storage.read_object(suffix)) for suffix in found}


def payload_of(job_id: str) -> bytes:
    """Return the payload that the job with this id must have: of any length, and different for each."""
    digest = hashlib.sha256(job_id.encode()).digest()
    length = int.from_bytes(digest[:4], "big") % LONGEST_PAYLOAD
    return (digest * (LONGEST_PAYLOAD // len(digest) + 1))[:length]
