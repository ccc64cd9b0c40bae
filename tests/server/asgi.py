"""Requests to an ASGI application, without a network."""

import asyncio
import json
from dataclasses import dataclass

PROOF = {"x-jqueue-dashboard": "1", "content-type": "application/json"}
"""Headers of a request that the page's own script sends."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def values(self):
        return json.loads(self.body)

    @property
    def problem(self):
        """The status and the title of a problem document."""
        assert "application/problem+json" in (self.headers.get("Content-Type"), self.headers.get("content-type"))
        assert self.values["type"] == f"urn:jqueue:{self.values['title']}"
        return self.values["status"], self.values["title"]


async def request(app, method, target, *, headers=None, body=b"", host="127.0.0.1:8000", root_path="", gone=None):
    """The answer to a request. `target` is a path with its query, and `body` may be a JSON value.

    The client goes away when the event `gone` is set.
    """
    path, _, query = target.partition("?")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"host": host, **{name.lower(): value for name, value in (headers or {}).items()}}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": root_path + path,
        "raw_path": (root_path + path).encode(),
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items() if value is not None],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
    }
    sent = [{"type": "http.request", "body": content, "more_body": False}]
    answers = []

    async def receive():
        if not sent:
            await (gone or asyncio.Event()).wait()
        return sent.pop(0) if sent else {"type": "http.disconnect"}

    async def send(message):
        answers.append(message)

    await app(scope, receive, send)
    start = answers[0]
    found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(message.get("body", b"") for message in answers[1:]))


async def get(app, target, **options):
    return await request(app, "GET", target, **options)


async def post(app, target, body, *, headers=None, **options):
    return await request(app, "POST", target, headers={**PROOF, **(headers or {})}, body=body, **options)


async def act(app, name, body, **options):
    return await post(app, f"/api/actions/{name}", body, **options)
