"""A simulated distant store: a proxy process that forwards bytes in order after a delay, without a bandwidth limit.

`with LatencyProxy("127.0.0.1", 8333) as proxy:` adds 25 ms each way to whatever goes through `proxy.port`. Opening a
connection costs no extra round trip, as it would over a real distance: a client that opens many has an advantage.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import deque
from typing import Self

DELAY = 0.025
"""Seconds each way: a round trip of 50 ms."""

PATIENCE = 5.0


class LatencyProxy:
    """The child process. It ends with the block, or when this process ends for any reason.

    Args:
        host: host of the server.
        port: port of the server.
        delay: seconds by which bytes are delayed, each way.
    """

    port: int

    def __init__(self, host: str, port: int, delay: float = DELAY) -> None:
        self._command = [sys.executable, "-I", "-S", __file__, host, str(port), str(delay)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.__exit__()
            raise RuntimeError("the latency proxy did not start")
        self.port = int(line)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Way(asyncio.Protocol):
    """One end of a connection: bytes received here are sent at the other end, `delay` seconds later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._other: Way | None = None
        self._transport: asyncio.Transport | None = None
        self._pending: deque[tuple[float, bytes | None]] = (
            deque()
        )  # b"": there is no more; None: the connection is gone
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False

    def join(self, other: Way) -> None:
        """Send everything received here to the other end."""
        self._other = other
        self._arm()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write; asyncio has set TCP_NODELAY."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Queue the bytes with the time at which to forward them."""
        self._hold(data)

    def eof_received(self) -> bool:
        """Pass the end on in its turn, and let the other direction go on."""
        self._has_ended = True
        self._hold(b"")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Close the other side after the bytes still queued for it."""
        self._hold(None)

    def _hold(self, data: bytes | None) -> None:
        self._pending.append((asyncio.get_running_loop().time() + self._delay, data))
        self._arm()

    def _arm(self) -> None:
        """Use one timer for all queued bytes: they keep the order of arrival, whatever the precision of timers."""
        if self._timer is None and self._pending and self._other is not None:
            self._timer = asyncio.get_running_loop().call_at(self._pending[0][0], self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        assert self._other is not None
        transport = self._other._transport
        now = asyncio.get_running_loop().time()
        due: list[bytes | None] = []
        while self._pending and self._pending[0][0] <= now:
            due.append(self._pending.popleft()[1])
        if transport is not None and not transport.is_closing():
            if data := [piece for piece in due if piece]:
                transport.writelines(data)
            if None in due or (b"" in due and self._other._has_ended):
                transport.close()
            elif b"" in due:
                transport.write_eof()
        self._arm()


async def serve(host: str, port: int, delay: float) -> asyncio.Server:
    """Listen on a free port of this machine, and pass everything on."""
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[None]] = set()

    async def connect(near: Way) -> None:
        far = Way(delay)
        try:
            await loop.create_connection(lambda: far, host, port)
        except OSError:
            assert near._transport is not None
            near._transport.abort()
            return
        near.join(far)
        far.join(near)

    class Near(Way):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            task = loop.create_task(connect(self))
            connecting.add(task)
            task.add_done_callback(connecting.discard)

    return await loop.create_server(lambda: Near(delay), "127.0.0.1", 0)


async def _main(host: str, port: str, delay: str) -> None:
    server = await serve(host, int(port), float(delay))
    print(server.sockets[0].getsockname()[1], flush=True)
    # Standard input is closed when the parent process ends.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
