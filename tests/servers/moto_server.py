"""moto's imitation of S3 in a thread of this process."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer


class MotoS3:
    """A server on 127.0.0.1 that accepts any keys. moto checks and puts in two steps, so a lock serialises requests."""

    access_key = "jqueue"
    secret_key = "a secret of the tests"
    region = "us-east-1"
    endpoint_url: str

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._undo = ExitStack()

    def start(self) -> None:
        """Start the server."""
        self._undo.enter_context(patch.object(S3Response, "key_response", _one_at_a_time(S3Response.key_response)))
        self._server.start()
        self._undo.callback(self._close)
        self.endpoint_url = "http://{}:{}".format(*self._server.get_host_and_port())

    def stop(self) -> None:
        """Stop the server and restore moto."""
        self._undo.close()

    def _close(self) -> None:
        listener = self._server._server  # noqa: SLF001 - its `stop` leaves the socket open
        self._server.stop()
        if listener is not None:
            listener.server_close()


def _one_at_a_time(respond: Any) -> Any:
    lock = threading.Lock()

    def key_response(self: S3Response, request: Any, *arguments: Any) -> Any:
        _ = request.data  # read the body first, so that a slow client does not block others
        with lock:
            return respond(self, request, *arguments)

    return key_response
