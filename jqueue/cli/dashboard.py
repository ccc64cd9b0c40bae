"""The commands that serve a queue: `jqueue dashboard` to browsers, `jqueue serve` to programs."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jqueue.cli.on_queue import FIRST_CALL_DEADLINE, URL, Create, OpenedQueue, RefusedError, on_queue
from jqueue.cli.parameters import option
from jqueue.cli.printing import note, refusal
from jqueue.connect import connect_queue
from jqueue.core.broker import BrokerQueue
from jqueue.domain.errors import JQueueError, QueueMissingError
from jqueue.ports.storage import describe

if TYPE_CHECKING:
    from jqueue.server.access import TokenFile
    from jqueue.server.serving import Settings


def dashboard(
    url: URL,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a role and a token in each line: 'viewer TOKEN' or 'operator TOKEN'.")
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
    _check_packages("dashboard")
    if static:
        typer.echo(on_queue(url, _snapshot))
        return
    settings = _settings(host, port, token_file, tls_cert, tls_key, insecure, tuple(allow_host or ()))

    async def show(opened: OpenedQueue) -> None:
        from jqueue.server.serving import serve_until_stopped

        gc.enable()  # this command does not end soon
        try:
            await serve_until_stopped(opened.queue, settings, typer.echo)
        except OSError as error:
            raise RefusedError(f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}") from None

    on_queue(url, show)


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

    _check_address(host, tls_cert, tls_key, has_tokens=token_file is not None, insecure=insecure)
    try:
        tokens = None if token_file is None else read_tokens(token_file)
    except InvalidJobError as error:
        raise refusal(str(error)) from None
    return Settings(host=host, port=port, tokens=tokens, certificate=tls_cert, key=tls_key, names=names)


def _check_address(host: str, tls_cert: Path | None, tls_key: Path | None, *, has_tokens: bool, insecure: bool) -> None:
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


EVERY_ADDRESS = ("0.0.0.0", "::")


PublicURL = Annotated[
    str | None,
    option(
        "URL",
        "Where clients on other machines reach the broker, such as https://host:8470. It stands in the queue. "
        "By default that is the first --host, or the address.",
        "--url",
    ),
]


def serve(
    url: URL = "",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")] = "127.0.0.1:8470",
    token_file: Annotated[
        Path | None, typer.Option(help="File with a role, the SHA-256 of a token and a name in each line.")
    ] = None,
    new_token: Annotated[
        str | None,
        option(
            "producer|worker|viewer|operator",
            "Print a new token with this role, add its hash to --token-file, and exit.",
        ),
    ] = None,
    token_name: Annotated[str, typer.Option(metavar="NAME", help="With --new-token: its name in the file.")] = "token",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate, in PEM.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow another address than this machine's own without tokens or TLS.")
    ] = False,
    host: Annotated[
        list[str] | None, typer.Option(help="Name under which clients may reach the broker; can be repeated.")
    ] = None,
    public_url: PublicURL = None,
    create: Create = False,
) -> None:
    """Serve a queue to programs on other machines, and to programs in any language by HTTP.

    One process commits for all of its clients, so they do not slow each other down. No client needs access to the
    store. Python programs on the same file find this broker by themselves.

    The default address can be reached from this machine only, and needs no token. Every other address needs
    --token-file, --tls-cert and --tls-key, or --insecure. A token has a role: a producer may enqueue, a worker may
    claim jobs too, a viewer may look at jobs without payloads, an operator may do everything. The file is read again
    when it changes.

    SIGTERM or Ctrl-C ends it: waiting clients are answered, and calls under way are finished.

    Exits with 2 if the queue cannot be used, or if an option is wrong.
    """
    _check_packages("broker")
    if new_token is not None:
        typer.echo(_new_token(new_token, token_name, token_file))
        return
    if not url:
        raise refusal("give the URL of the queue")
    from jqueue.server.access import TokenFile
    from jqueue.server.serving import Settings
    from jqueue.telemetry.exporters import address_of

    try:
        address, port = address_of(listen)
        _check_address(address, tls_cert, tls_key, has_tokens=token_file is not None or insecure, insecure=insecure)
        tokens = None if token_file is None else TokenFile(token_file)
        queue = connect_queue(url, create=create, insecure=insecure)
    except (ValueError, ImportError, JQueueError) as error:  # messages of errors about a URL hold no secrets
        raise refusal(str(error)) from None
    if not isinstance(queue, BrokerQueue):
        raise refusal("the format of this queue cannot be served: `jqueue migrate` moves its jobs to a queue that can")
    settings = Settings(host=address, port=port, certificate=tls_cert, key=tls_key, names=tuple(host or ()))
    try:
        asyncio.run(_serve(queue, settings, tokens, public_url))
    except OSError as error:
        raise refusal(f"the broker cannot listen on {listen}: {error.strerror or error}") from None
    except JQueueError as error:
        raise refusal(str(error)) from None


def _check_packages(what: str) -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise refusal(f'the {what} needs more packages: pip install "jqueue[dashboard]"') from None


async def _serve(queue: BrokerQueue, settings: Settings, tokens: TokenFile | None, public_url: str | None) -> None:
    from jqueue.server.serving import broker_until_stopped

    with suppress(ImportError, OSError, ValueError):  # each client has a connection
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    name = describe(queue.storage)
    async with queue:
        try:
            await queue.stats(deadline=FIRST_CALL_DEADLINE)
        except QueueMissingError:
            note(f"there is no queue at {name} yet: the first job creates it")
        gc.freeze()

        def show(link: str) -> None:
            typer.echo(f"serving {name} at {link}")
            place = public_url or link.rstrip("/")
            if public_url is None and not settings.names and settings.host in EVERY_ADDRESS:
                note("programs on other machines do not find this broker in the queue: give its --url")
                queue.offer()
            else:
                queue.offer(place)

        await broker_until_stopped(queue, settings, tokens, show, queue.stop)


def _new_token(role: str, name: str, path: Path | None) -> str:
    """Return a new token, whose hash was added to the file."""
    from jqueue.runtime.system import SystemEntropy
    from jqueue.server.access import Role, TokenFile

    if path is None:
        raise refusal("--new-token needs --token-file: the file gets the hash of the token")
    if role not in list(Role):
        raise refusal(f"--new-token takes a role: {', '.join(Role)}")
    if not name.isprintable() or len(name.split()) != 1:
        raise refusal("--token-name takes one word")
    entropy = SystemEntropy()
    token = (entropy.new_id() + entropy.new_id()).replace("-", "")
    try:
        TokenFile.add(path, Role(role), name, token)
    except OSError as error:
        raise refusal(f"the token file cannot be written: {error.strerror}") from None
    return token
