"""`jqueue dashboard URL`: a page in the browser that shows a queue live, or a snapshot of it as one file."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jqueue.cli.on_queue import OpenedQueue, RefusedError, on_queue
from jqueue.cli.printing import refusal

if TYPE_CHECKING:
    from jqueue.server.serving import Settings

URL = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="URL or path of the queue. JQUEUE_URL can name it.",
        show_default=False,
    ),
]


def dashboard(
    url: URL = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with a role and a token in each line: 'viewer TOKEN' or 'operator TOKEN'."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate, in PEM.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow another address than this machine's own without TLS.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Name under which browsers may reach the page; can be repeated.")
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", help="Print a snapshot of the queue as one HTML file, and end.")
    ] = False,
) -> None:
    """Show a queue live in the browser, and change it there.

    It prints a link with a token. Everyone who has the link can change the queue. Ctrl-C stops it.

    Another address than this machine's own needs --token-file, and TLS or --insecure.

    With --static it prints the queue as it is now, without payloads and results, as an HTML file that needs no server:
    `jqueue dashboard queue.json --static > snapshot.html`.

    Exits with 2 if the queue does not exist or cannot be read, or if an option is wrong.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise refusal('the dashboard needs more packages: pip install "jqueue[dashboard]"') from None
    if not url:
        raise refusal("give the URL of the queue")
    if static:
        typer.echo(on_queue(url, _snapshot))
        return
    settings = _settings(host, port, token_file, tls_cert, tls_key, insecure, tuple(allow_host or ()))

    async def serve(opened: OpenedQueue) -> None:
        from jqueue.server.serving import serve_until_stopped

        gc.enable()  # this command does not end soon
        try:
            await serve_until_stopped(opened.queue, settings, typer.echo)
        except OSError as error:
            raise RefusedError(f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}") from None

    on_queue(url, serve)


async def _snapshot(opened: OpenedQueue) -> str:
    from jqueue.server.snapshot import snapshot

    return await snapshot(opened.queue)


def _settings(
    host: str,
    port: int,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    names: tuple[str, ...],
) -> Settings:
    """Return the settings of the server. Settings that show the queue to strangers are refused."""
    from jqueue.domain.errors import InvalidJobError
    from jqueue.server.access import read_tokens
    from jqueue.server.serving import Settings

    check_address(host, tls_cert, tls_key, has_tokens=token_file is not None, insecure=insecure)
    try:
        tokens = None if token_file is None else read_tokens(token_file)
    except InvalidJobError as error:
        raise refusal(str(error)) from None
    return Settings(host=host, port=port, tokens=tokens, certificate=tls_cert, key=tls_key, names=names)


def check_address(host: str, tls_cert: Path | None, tls_key: Path | None, *, has_tokens: bool, insecure: bool) -> None:
    """Refuse an address that would show the queue to strangers, and files of TLS that are not there."""
    from jqueue.server.serving import is_own_address

    if (tls_cert is None) != (tls_key is None):
        raise refusal("give both --tls-cert and --tls-key")
    for path in (tls_cert, tls_key):
        if path is not None and not path.is_file():
            raise refusal(f"there is no file {path}")
    if not is_own_address(host):
        if not has_tokens:
            raise refusal("another address than this machine's own needs --token-file")
        if tls_cert is None and not insecure:
            raise refusal(
                "another address than this machine's own needs --tls-cert and --tls-key: without TLS, everyone on the "
                "network can read tokens and jobs. --insecure allows it"
            )
