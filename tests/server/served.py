"""A broker of a queue on 127.0.0.1, served by uvicorn, and requests to it."""

import asyncio
import hashlib
import json
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from jqueue.ports.sharing import client_name
from jqueue.server.access import Role, TokenFile
from jqueue.server.serving import Settings, broker_until_stopped
from tests.server.asgi import Answer

TOKENS = {role: f"{role.value}-token-of-the-tests" for role in Role}


def token_file(folder):
    """A file with a token for each role."""
    path = folder / "tokens"
    for role, token in TOKENS.items():
        TokenFile.add(path, role, role.value, token)
    return path


def name_of(role, drawn="c1"):
    """The name of a client that has the role's token."""
    return client_name(drawn, hashlib.sha256(TOKENS[role].encode()).hexdigest())


@dataclass
class Served:
    """A broker that is running."""

    url: str
    session: aiohttp.ClientSession
    running: asyncio.Task[None]

    async def ask(self, method, path, body=None, role=Role.OPERATOR, **headers):
        """The answer to a request. `body` may be bytes or a JSON value."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {} if content is None else {"Content-Type": "application/json"}
        if role is not None:
            given["Authorization"] = f"Bearer {TOKENS[role]}"
        async with self.session.request(method, self.url + path, data=content, headers=given | headers) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def call(self, message, role=Role.WORKER, drawn="c1"):
        """The answer to a message of jqueue's own clients, in which "c1" stands for the client's name."""
        return await self.ask("POST", "/v1/calls", message.replace(b"c1", name_of(role, drawn).encode()), role)

    async def get(self, path, role=Role.OPERATOR, **headers):
        return await self.ask("GET", path, None, role, **headers)

    async def post(self, path, body=None, role=Role.OPERATOR, **headers):
        return await self.ask("POST", path, body, role, **headers)


@asynccontextmanager
async def serving(queue, tokens=None, **settings):
    """The broker of an open queue. In the end it gets a SIGTERM, unless it has ended."""
    shown = asyncio.get_running_loop().create_future()
    served = Settings(tokens=None if tokens is None else TokenFile(tokens), **settings)
    running = asyncio.create_task(broker_until_stopped(queue, served, shown.set_result, queue.stop))
    await asyncio.wait([running, shown], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    try:
        async with aiohttp.ClientSession() as session:
            parts = urlsplit(shown.result())
            yield Served(f"{parts.scheme}://127.0.0.1:{parts.port}", session, running)
    finally:
        if not running.done():
            signal.raise_signal(signal.SIGTERM)
        await running
