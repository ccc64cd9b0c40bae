"""A small Google Cloud Storage for tests: the part of the JSON API that google-cloud-storage needs for compare-and-set.

It follows Google's documentation of that API. It has no versions, access lists, updates or batches, and it refuses
unknown parameters and headers instead of ignoring them. Where the documentation is silent, it follows reports about the
real service: reading or deleting an absent object is 404 with any precondition, and uploading to it with a match is
412. Errors are JSON, except those of a download, which are text. Two choices have no source: a write that comes too
fast is 429 before its precondition is checked, and only successful writes count against the rate limit.

It can also word its errors like Google's testbench: with other sentences, and with the error as a text inside another.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import Message
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import google_crc32c

CHUNK = 256 * 1024  # an unfinished resumable upload keeps a multiple of this
_PARAMETER = re.compile(
    "alt|fields|generation|ifGeneration(Not)?Match|maxResults|name|pageToken|prefix|prettyPrint|project|projection"
    "|upload(Type|_id)"
)
_HEADERS = {"if-match", "if-none-match", "transfer-encoding"}  # not implemented, and must not be ignored
_BUCKET = "/storage/v1/b/(?P<bucket>[^/]+)"
_OBJECT = f"{_BUCKET}/o/(?P<name>[^/]+)"
_ROUTES = (  # method, path and kind
    ("POST", f"/upload{_BUCKET}/o", "upload"),
    ("PUT", f"/upload{_BUCKET}/o", "resumable"),
    ("DELETE", f"/upload{_BUCKET}/o", "abandon"),
    ("GET", f"/download{_OBJECT}", "download"),
    ("DELETE", _OBJECT, "delete"),
    ("GET", f"{_BUCKET}/o", "list"),
)


Answer = tuple[int, bytes, dict[str, str]]  # status, body and headers


def as_json(resource: object, status: int = 200) -> Answer:
    return status, json.dumps(resource, indent=1).encode(), {"Content-Type": "application/json; charset=UTF-8"}


class RefusalError(Exception):
    """A call to answer with an error. `testbench` is the wording of Google's testbench, where it differs."""

    def __init__(self, status: int, reason: str, message: str, domain: str = "global", testbench: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.testbench = status, message, testbench or message
        self.errors = [{"message": message, "domain": domain, "reason": reason}]

    def answer(self, kind: str, wording: str) -> Answer:
        if self.status == 304:
            return 304, b"", {}
        if wording == "testbench":
            inner = json.dumps({"error": {"errors": [{"domain": "global", "message": self.testbench}]}})
            return as_json({"code": self.status, "message": inner}, self.status)
        if kind == "download":
            return self.status, self.message.encode(), {"Content-Type": "text/html; charset=UTF-8"}
        return as_json({"error": {"code": self.status, "message": self.message, "errors": self.errors}}, self.status)


def not_found(message: str, testbench: str) -> RefusalError:
    return RefusalError(404, "notFound", message, testbench=testbench)


def invalid(message: str) -> RefusalError:
    return RefusalError(400, "invalid", message)


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _route(method: str, path: str) -> tuple[re.Match[str], str]:
    for verb, pattern, kind in _ROUTES:
        if verb == method and (match := re.fullmatch(pattern, path)):
            return match, kind
    raise RefusalError(404, "notFound", "Not Found")


def _number(params: Mapping[str, str], param: str) -> int | None:
    if not re.fullmatch("[0-9]{1,19}", value := params.get(param, "0")):
        raise invalid(f"Invalid value for {param}: {value}")
    return int(value) if param in params else None


def _said(body: bytes) -> dict[str, Any]:
    """The JSON object in a body."""
    with suppress(ValueError):
        if isinstance(said := json.loads(body or b"{}"), dict):
            return said
    raise invalid("Parse Error")


@dataclass(frozen=True)
class Call:
    """A parsed request."""

    method: str
    kind: str
    bucket: str
    name: str
    params: Mapping[str, str]
    headers: Message
    body: bytes

    def parts(self) -> tuple[dict[str, Any], bytes]:
        """The metadata and the content of a multipart upload."""
        boundary = self.headers.get_boundary()
        delimiter = f"\r\n--{boundary}".encode()
        first, _, rest = (b"\r\n" + self.body).removeprefix(delimiter).partition(delimiter)
        second, end, _ = rest.rpartition(delimiter + b"--")
        if boundary is None or not end:
            raise invalid("Missing end boundary in multipart body.")
        head, _, content = second.partition(b"\r\n\r\n")
        content_type = str(message_from_bytes(head.strip()).get("Content-Type", ""))
        return {"contentType": content_type} | _said(first.partition(b"\r\n\r\n")[2]), content


@dataclass
class Session:
    """A resumable upload: its metadata, its preconditions, the content received so far, and the final answer."""

    said: dict[str, Any]
    params: Mapping[str, str]
    received: bytearray = field(default_factory=bytearray)
    answer: Answer | None = None


class GCSServer:
    """The server and its objects. The objects and the port survive `stop` and `start`.

    One thread handles all calls, one after another, so that no call comes between the check of a precondition and the
    write.

    Args:
        writes_per_second: rate limit of each object; a faster write is answered with 429.

    `wording` is the wording of errors, "google" or "testbench".

    `requests` counts the calls by method and kind: upload, resumable, abandon, download, delete, list. A
    resumable upload is one `("POST", "resumable")` and, for each chunk, one `("PUT", "resumable")`.
    """

    def __init__(self, writes_per_second: float | None = None) -> None:
        self.writes_per_second = writes_per_second
        self.wording = "google"
        self.requests: Counter[tuple[str, str]] = Counter()
        self._last_generation = self._port = 0
        self._thread: threading.Thread | None = None
        self._buckets: dict[str, dict[str, tuple[dict[str, Any], bytes]]] = {}
        self._sessions: dict[str, Session] = {}
        self._written: dict[tuple[str, str], float] = {}
        self._connections: set[asyncio.Task[None]] = set()

    def start(self) -> Self:
        listening = socket.create_server(("127.0.0.1", self._port), backlog=128)
        self._port = listening.getsockname()[1]
        started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(listening, started),), name="gcs-server")
        self._thread.start()
        started.wait()
        return self

    def stop(self) -> None:
        """Close all connections at once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The `api_endpoint` of a client."""
        return f"http://127.0.0.1:{self._port}"

    def create_bucket(self, name: str) -> None:
        """Create a bucket, unless it exists."""
        self._buckets.setdefault(name, {})

    @property
    def unfinished_uploads(self) -> int:
        """Number of resumable uploads that were begun, and neither finished nor abandoned."""
        return sum(session.answer is None for session in self._sessions.values())

    async def _serve(self, listening: socket.socket, started: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, sock=listening, limit=1 << 20)
        started.set()
        await self._stopping.wait()
        server.close()  # the end of `asyncio.run` cancels the connections

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.close())  # the task may be cancelled before it begins

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, ValueError, asyncio.CancelledError):  # a client left or sent invalid data
            while True:
                await self._exchange(reader, writer)
        writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _, fields = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        headers = message_from_bytes(fields)
        content = await reader.readexactly(int(headers.get("Content-Length", 0)))
        status, body, more = self._answer(line.decode(), headers, content)
        more = more | {"Date": formatdate(time.time(), usegmt=True), "Server": "UploadServer"}
        if status not in (204, 304):
            more["Content-Length"] = str(len(body))
        phrase = "Client Closed Request" if status == 499 else HTTPStatus(status).phrase
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{key}: {more[key]}" for key in more)]
        writer.write("\r\n".join([*lines, "\r\n"]).encode() + body)
        await writer.drain()

    def _answer(self, line: str, headers: Message, body: bytes) -> Answer:
        method, target, _ = line.split(" ")
        url, kind = urlsplit(target), ""
        params = dict(parse_qsl(url.query, keep_blank_values=True))
        try:
            match, kind = _route(method, url.path)
            kind = "resumable" if kind == "upload" and params.get("uploadType") == "resumable" else kind
            names = {"bucket": "", "name": ""} | {key: unquote(value) for key, value in match.groupdict().items()}
            self.requests[method, kind] += 1
            unknown = {name for name in params if not _PARAMETER.fullmatch(name)} | _HEADERS & {
                *map(str.lower, headers)
            }
            if unknown:
                raise invalid(f"This server does not know {', '.join(sorted(unknown))}.")
            call = Call(method, kind, **names, params=params, headers=headers, body=body)
            if call.bucket not in self._buckets:
                raise not_found("The specified bucket does not exist.", f"Bucket {call.bucket} does not exist.")
            answer: Answer = getattr(self, f"_{kind}")(call)
        except RefusalError as refusal:
            return refusal.answer(kind, self.wording)
        except Exception:
            return RefusalError(500, "backendError", traceback.format_exc()).answer(kind, self.wording)
        return answer

    def _list(self, call: Call) -> Answer:
        most = min(_number(call.params, "maxResults") or 1000, 1000)
        begins, behind = (call.params.get(param, "") for param in ("prefix", "pageToken"))
        objects = sorted(self._buckets[call.bucket].items())
        found = [resource for name, (resource, _) in objects if name.startswith(begins) and name > behind]
        more = {"nextPageToken": found[most - 1]["name"]} if len(found) > most else {}
        return as_json({"kind": "storage#objects", "items": found[:most]} | more)

    def _find(self, call: Call) -> tuple[dict[str, Any], bytes]:
        resource, content = self._buckets[call.bucket].get(call.name, ({}, b""))
        if not resource or call.params.get("generation") not in (None, resource["generation"]):
            name = f"{call.bucket}/{call.name}"
            raise not_found(f"No such object: {name}", f"Live version of object {name} does not exist.")
        self._check(call.params, call.bucket, call.name)
        return resource, content

    def _check(self, params: Mapping[str, str], bucket: str, name: str) -> None:
        """Refuse a call whose preconditions do not match the object."""
        actual = int(self._buckets[bucket].get(name, ({}, b""))[0].get("generation", 0))
        if _number(params, "ifGenerationMatch") not in (None, actual):
            message = "At least one of the pre-conditions you specified did not hold."
            raise RefusalError(412, "conditionNotMet", message)
        unwanted = _number(params, "ifGenerationNotMatch")
        if unwanted is not None and (unwanted == actual or not actual):
            raise RefusalError(304, "notModified", "Not Modified")

    def _pace(self, bucket: str, name: str) -> None:
        """Refuse a write that comes too soon after the last one to the same object."""
        waited = time.time() - self._written.get((bucket, name), float("-inf"))
        if self.writes_per_second is not None and 0 <= waited * self.writes_per_second < 1:
            message = f"The object {bucket}/{name} exceeded the rate limit for object mutation operations."
            raise RefusalError(429, "rateLimitExceeded", message, domain="usageLimits")

    def _download(self, call: Call) -> Answer:
        resource, content = self._find(call)
        headers = {
            "Content-Type": resource["contentType"],
            "ETag": resource["etag"],
            "X-Goog-Generation": resource["generation"],
            "X-Goog-Metageneration": resource["metageneration"],
            "X-Goog-Hash": f"crc32c={resource['crc32c']},md5={resource['md5Hash']}",
            "X-Goog-Stored-Content-Encoding": "identity",
            "X-Goog-Stored-Content-Length": resource["size"],
        }
        match = re.fullmatch("bytes=([0-9]+)-([0-9]*)", call.headers.get("Range", ""))
        if match is None:
            return 200, content, headers
        size = len(content)
        first = int(match[1])
        last = min(int(match[2]), size - 1) if match[2] else size - 1
        if first > last:
            return 416, b"The requested range cannot be satisfied.", {"Content-Range": f"bytes */{size}"}
        return 206, content[first : last + 1], headers | {"Content-Range": f"bytes {first}-{last}/{size}"}

    def _delete(self, call: Call) -> Answer:
        self._pace(call.bucket, call.name)
        self._find(call)
        del self._buckets[call.bucket][call.name]
        self._written[call.bucket, call.name] = time.time()
        return 204, b"", {}

    def _upload(self, call: Call) -> Answer:
        said, content = call.parts() if call.params.get("uploadType") == "multipart" else ({}, call.body)
        return self._put(call, call.params, {"contentType": call.headers.get("Content-Type", "")} | said, content)

    def _resumable(self, call: Call) -> Answer:
        if call.method == "PUT":
            return self._go_on(call)
        session = Session(
            {"contentType": call.headers.get("X-Upload-Content-Type", "")} | _said(call.body), call.params
        )
        self._check(call.params, call.bucket, session.said.get("name") or call.params.get("name", ""))
        upload_id = f"upload-{self._new_generation()}"
        self._sessions[upload_id] = session
        path = f"/upload/storage/v1/b/{quote(call.bucket)}/o?uploadType=resumable&upload_id={upload_id}"
        return 200, b"", {"Location": f"http://{call.headers['Host']}{path}"}

    def _abandon(self, call: Call) -> Answer:
        if self._sessions.pop(call.params.get("upload_id", ""), None) is None:
            raise RefusalError(404, "notFound", "No such upload.")
        return 499, b"", {}

    def _go_on(self, call: Call) -> Answer:
        session = self._sessions.get(call.params.get("upload_id", ""))
        if session is None:
            raise RefusalError(404, "notFound", "No such upload.")
        if session.answer:
            return session.answer
        received = session.received
        told = re.fullmatch(r"bytes (?:([0-9]+)-[0-9]+|\*)/([0-9]+|\*)", call.headers.get("Content-Range", ""))
        start = int(told[1]) if told and told[1] else len(received)
        if told is None or start > len(received):
            raise invalid("Failed to parse Content-Range header.")
        received += call.body[len(received) - start :]
        if told[2] == str(len(received)):
            session.answer = self._put(call, session.params, session.said, bytes(received))
            return session.answer
        del received[len(received) // CHUNK * CHUNK :]
        return 308, b"", {"Range": f"bytes=0-{len(received) - 1}"} if received else {}

    def _put(self, call: Call, params: Mapping[str, str], said: dict[str, Any], content: bytes) -> Answer:
        name = said.get("name") or params.get("name")
        if not name or "contentEncoding" in said:
            raise invalid("This server takes objects that have a name, and no contentEncoding.")
        crc, md5 = google_crc32c.value(content).to_bytes(4), hashlib.md5(content).digest()
        sums = {"crc32c": _base64(crc), "md5Hash": _base64(md5)}
        claimed = re.findall("(crc32c|md5)=([^,]+)", call.headers.get("X-Goog-Hash", ""))
        for key, value in [*said.items(), *((key.replace("md5", "md5Hash"), value) for key, value in claimed)]:
            if sums.get(key, value) != value:
                raise invalid(f'Provided {key} "{value}" doesn\'t match calculated {key} "{sums[key]}".')
        self._pace(call.bucket, name)
        self._check(params, call.bucket, name)
        generation, now = self._new_generation(), time.time()
        moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        path = f"/storage/v1/b/{quote(call.bucket)}/o/{quote(name, safe='')}"
        resource = said | sums | {"storageClass": "STANDARD"}
        resource |= {"kind": "storage#object", "id": f"{call.bucket}/{name}/{generation}", "bucket": call.bucket}
        resource |= {"generation": str(generation), "metageneration": "1", "name": name, "size": str(len(content))}
        resource |= {"etag": _base64(f"{generation}/1".encode()), "timeCreated": moment, "updated": moment}
        resource["mediaLink"] = f"http://{call.headers['Host']}/download{path}?generation={generation}&alt=media"
        self._buckets[call.bucket][name] = (resource, content)
        self._written[call.bucket, name] = now
        return as_json(resource)

    def _new_generation(self) -> int:
        self._last_generation = max(self._last_generation + 1, int(time.time() * 1_000_000))
        return self._last_generation
