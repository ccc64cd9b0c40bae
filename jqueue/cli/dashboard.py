"""The commands that serve a queue: `jqueue dashboard` to browsers, `jqueue serve` to programs."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import FIRST_CALL_DEADLINE, URL, Create, MustExist, OpenedQueue, direct, on_queue, waiting_for
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import note
from jqueue.cli.worker import LogFormat, log_to_stderr
from jqueue.connect import connect
from jqueue.core.broker import BrokerQueue
from jqueue.domain.errors import QueueMissingError
from jqueue.ports.storage import describe, storage_of
from jqueue.runtime.addresses import is_own_address
from jqueue.server.access import KnownTokens, Role, TokenFile, random_text
from jqueue.server.serving import Settings, broker_until_stopped, serve_until_stopped
from jqueue.telemetry.exporters import address_of, observed
from jqueue.worker.probes import Probes, open_probes
from jqueue.worker.queue_health import QueueHealth, name_of

TOKENS = "File that `jqueue serve --new-token` writes: a role, the SHA-256 of a token and a name in each line."
Certificate = Annotated[
    Path | None, option("FILE", "Certificate of the server, in PEM. By default HTTP without TLS.", "--tls-cert")
]
PrivateKey = Annotated[Path | None, option("FILE", "Private key of --tls-cert, in PEM.", "--tls-key")]
INSECURE = (
    "Let other machines in without TLS. `jqueue serve` then needs no token either, unless it has --token-file: "
    "everyone who reaches the address, also any user of this machine, can read and change the queue."
)
Insecure = Annotated[bool, typer.Option("--insecure", help=INSECURE)]
FOUND_AT = (
    "URL at which clients on other machines reach the broker, such as https://host:8470. It is written into the queue, "
    "where they find it. By default the first --host, or the address."
)
ALONE = "such as queue.example.org; may be repeated. By default addresses and localhost alone."
AllowHost = Annotated[list[str] | None, option("NAME", f"Name under which browsers may reach the page, {ALONE}")]
Host = Annotated[list[str] | None, option("NAME", f"Name under which clients may reach the broker, {ALONE}")]
ADDED = "Print a new token, add its hash to --token-file, and end: producer, worker, viewer or operator."
NewToken = Annotated[str | None, option("ROLE", ADDED)]
PublicURL = Annotated[str | None, option("URL", FOUND_AT, "--url")]


def dashboard(
    url: URL,
    others: Annotated[list[str] | None, argument("URLS", "URLs of further queues for the same page.")] = None,
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, option("PORT", "Port to listen on. By default a free one, which the link names.", min=0, max=65535)
    ] = 0,
    token_file: Annotated[
        Path | None, option("FILE", f"{TOKENS} By default, the link has the only token, of an operator.")
    ] = None,
    certificate: Certificate = None,
    key: PrivateKey = None,
    insecure: Insecure = False,
    allow_host: AllowHost = None,
) -> None:
    """Show a queue live in the browser, and change it there.

    It prints a link to open in a browser on this machine. The link holds a token: everyone who has it can change the
    queue. Ctrl-C stops the dashboard.

    For browsers on other machines, give another address, such as --host 0.0.0.0 for all of this machine's, with
    --token-file, and with --tls-cert and --tls-key, or --insecure.

    With several URLs, the page has an overview of all queues.

    Exits with 2 if the queue does not exist or cannot be read, or if an option is wrong.
    """
    _check_address(host, certificate, key, has_tokens=token_file is not None, insecure=insecure)

    async def show(opened: OpenedQueue) -> None:
        gc.enable()  # this command does not end soon
        tokens, names = None if token_file is None else TokenFile(token_file), tuple(allow_host or ())
        settings = Settings(host=host, port=port, tokens=tokens, certificate=certificate, key=key, names=names)
        try:
            async with AsyncExitStack() as stack:
                queues = [await stack.enter_async_context(connect(each, direct)) for each in others or ()]
                for each in queues:
                    if (await each.view(deadline=FIRST_CALL_DEADLINE)).absent:
                        raise QueueMissingError(describe(storage_of(each)))
                await serve_until_stopped(opened.queue, settings, typer.echo, queues)
        except ValueError as error:  # of a URL
            raise RefusedError(str(error)) from None
        except OSError as error:
            raise RefusedError(f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}") from None

    on_queue(url, show)


def _check_address(host: str, certificate: Path | None, key: Path | None, *, has_tokens: bool, insecure: bool) -> None:
    """Refuse an address that would show the queue to strangers, and files of TLS that are not there."""
    if (certificate is None) != (key is None):
        raise RefusedError("give both --tls-cert and --tls-key")
    for path in (certificate, key):
        if path is not None and not path.is_file():
            raise RefusedError(f"there is no file {path}")
    if not is_own_address(host):
        if not has_tokens:
            raise RefusedError("another address than this machine's own needs --token-file")
        if certificate is None and not insecure:
            raise RefusedError(
                "another address than this machine's own needs --tls-cert and --tls-key: without TLS, everyone on the "
                "network can read tokens and jobs. --insecure allows it"
            )


EVERY_ADDRESS = ("0.0.0.0", "::")


def serve(
    url: URL = "",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")] = "127.0.0.1:8470",
    token_file: Annotated[
        Path | None, option("FILE", f"{TOKENS} By default, the printed address has the only token, of an operator.")
    ] = None,
    new_token: NewToken = None,
    token_name: Annotated[
        str, typer.Option(metavar="NAME", help="With --new-token: name of its user, one word.")
    ] = "token",
    certificate: Certificate = None,
    key: PrivateKey = None,
    insecure: Insecure = False,
    host: Host = None,
    public_url: PublicURL = None,
    create: Create = False,
    must_exist: MustExist = False,
    health: Annotated[
        str | None,
        option("HOST:PORT", "Serve /healthz, /readyz and /metrics there, such as 127.0.0.1:8080. By default nowhere."),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of the log: text, or json with one object a line.")
    ] = "text",
) -> None:
    """Serve a queue to programs on other machines, and to programs in any language by HTTP.

    One process commits for all of its clients, so they do not slow each other down. No client needs access to the
    store. Python programs on the same file find this broker by themselves.

    By default, only programs on this machine can reach it, of any of its users. It prints its address with a new token
    in it, for `connect("jqueue+" + address)` or the header Authorization: Bearer TOKEN. With --token-file, tokens last.
    Every other address, such as --listen 0.0.0.0:8470, needs --token-file, --tls-cert and --tls-key, or --insecure. A
    token has a role: a producer may enqueue, a worker may claim jobs too, a viewer may look at jobs without payloads,
    an operator may do everything. The file is read again when it changes.

    SIGTERM or Ctrl-C ends it: waiting clients are answered, and calls under way are finished.

    Exits with 2 if the queue cannot be used, or if an option is wrong.
    """
    if new_token is not None:
        typer.echo(_new_token(new_token, token_name, token_file))
        return
    if not url:
        raise RefusedError("give the URL of the queue")
    address, port = address_of(listen)
    _check_address(address, certificate, key, has_tokens=token_file is not None or insecure, insecure=insecure)
    token = "" if token_file is not None or insecure else random_text()
    operator_tokens = KnownTokens({token: Role.OPERATOR}) if token else None
    tokens = operator_tokens if token_file is None else TokenFile(token_file)
    queue = connect(url, create=create, insecure=insecure, must_exist=must_exist)
    if not isinstance(queue, BrokerQueue):
        raise RefusedError("this queue has a format that cannot be served: `jqueue migrate` moves its jobs to another")
    names = tuple(host or ())
    settings = Settings(host=address, port=port, tokens=tokens, certificate=certificate, key=key, names=names)
    with log_to_stderr("INFO", "", log_format):
        pass
    try:
        asyncio.run(_serve(queue, settings, f"#token={token}" if token else "", public_url, health))
    except OSError as error:
        raise RefusedError(f"the broker cannot listen on {listen}: {error.strerror or error}") from None


async def _serve(
    queue: BrokerQueue, settings: Settings, fragment: str, public_url: str | None, health: str | None
) -> None:
    with suppress(ImportError, OSError, ValueError):  # each client has a connection
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    name = describe(queue.storage)
    async with queue, AsyncExitStack() as stack:
        service, phase = queue.service(), "opening"
        store = QueueHealth(name_of(queue), queue.options.entropy)
        probes = Probes(queue, store, lambda: phase, lambda: {"clients": service.clients}, service.look)
        stack.enter_context(observed(queue, probes))
        if health is not None and (exporter := await open_probes(stack, health, [probes], None)) is not None:
            await stack.enter_async_context(exporter.watch(queue, broker=service))
        try:
            with waiting_for(name):
                await queue.stats(deadline=FIRST_CALL_DEADLINE)
        except QueueMissingError:
            note(f"there is no queue at {name} yet: the first job creates it")
        gc.freeze()

        def show(link: str) -> None:
            nonlocal phase
            phase = "working"
            typer.echo(f"serving {name} at {link}{fragment}")
            if settings.tokens is None:
                note("everyone who reaches this address can read and change the queue: --token-file asks for tokens")
            place = public_url or link.rstrip("/")
            if public_url is None and not settings.names and settings.host in EVERY_ADDRESS:
                note("programs on other machines do not find this broker in the queue: give its --url")
                queue.offer()
            else:
                queue.offer(place)

        async def leave() -> None:
            nonlocal phase
            phase = "stopping"
            await queue.stop()

        await broker_until_stopped(queue, settings, show, leave)


def _new_token(role: str, name: str, path: Path | None) -> str:
    """Return a new token, whose hash was added to the file."""
    if path is None:
        raise RefusedError("--new-token needs --token-file: the file gets the hash of the token")
    if role not in list(Role):
        raise RefusedError(f"--new-token takes a role: {', '.join(Role)}")
    if not name.isprintable() or len(name.split()) != 1:
        raise RefusedError("--token-name takes one word")
    token = random_text()
    try:
        TokenFile.add(path, Role(role), name, token)
    except OSError as error:
        raise RefusedError(f"the token file cannot be written: {error.strerror}") from None
    return token
