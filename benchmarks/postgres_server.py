"""A Postgres server for the peers that need one, with its default settings: each commit is synced to the disk.

Postgres refuses to run as root. Then it runs as the user `postgres`, or else `nobody`, in a folder that is theirs.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.redis_server import free_port
from tests.servers.child import Child, in_some_attempts
from tests.servers.child import ServerUnavailableError as Unavailable

__all__ = ["Unavailable", "postgres_server"]

WORK = Path(__file__).parent / ".work"
"""On the project's disk, because fsync counts."""

PACKAGED = Path("/usr/lib/postgresql")
"""Folder in which Debian and Ubuntu keep the programs of each version, off the PATH."""

PREPARING_SECONDS = 120
STARTING_SECONDS = 60
STOPPING_SECONDS = 20
LISTENS = "database system is ready to accept connections"
BECOME = (
    "import os, sys; folder, user, group = sys.argv[1:4]; os.chdir(folder); "
    "os.setgroups([]); os.setgid(int(group)); os.setuid(int(user)); os.execv(sys.argv[4], sys.argv[4:])"
)


@dataclass(frozen=True, slots=True)
class Account:
    """The user that Postgres runs as."""

    user: int
    group: int


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server on 127.0.0.1, yield the URL of its database, and stop it.

    Raises:
        Unavailable: it is not installed, or does not start.
    """
    programs = find_programs()
    account = _account()
    with _folder(account) as folder:
        data = folder / "data"
        _prepare(programs / "initdb", data, account)
        child, port = in_some_attempts(lambda: _start(programs / "postgres", data, account))
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            _stop(child)


def find_programs() -> Path:
    """The folder of the newest Postgres that is installed.

    Raises:
        Unavailable: there is none.
    """
    on_path = shutil.which("initdb")
    candidates = [] if on_path is None else [Path(on_path).resolve().parent]
    config = shutil.which("pg_config")
    if config is not None:
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, timeout=60)
        candidates.append(Path(answer.stdout.strip()))
    candidates += sorted(PACKAGED.glob("*/bin"), key=_version, reverse=True)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise Unavailable("Postgres is not installed: initdb is neither on the PATH nor where pg_config or Debian put it")


def _version(programs: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", programs.parent.name)]


def _account() -> Account | None:
    """Return the account to run the server as if this process is root, otherwise None."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(entry.pw_uid, entry.pw_gid)
    raise Unavailable("Postgres refuses to run as root, and the users postgres and nobody do not exist")


@contextmanager
def _folder(account: Account | None) -> Iterator[Path]:
    """Create a folder of that user: on the project's disk if the user can reach it, otherwise among temporary files."""
    WORK.mkdir(exist_ok=True)
    parent = WORK if account is None or _is_open_to_all(WORK) else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=parent, ignore_cleanup_errors=True) as name:
        if account is not None:
            os.chown(name, account.user, account.group)
        yield Path(name).resolve()


def _is_open_to_all(folder: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (folder.resolve(), *folder.resolve().parents))


def _prepare(initdb: Path, data: Path, account: Account | None) -> None:
    command = [
        str(initdb),
        "--pgdata",
        str(data),
        "--username=postgres",
        "--auth=trust",
        "--encoding=UTF8",
        "--no-locale",
    ]
    try:
        answer = subprocess.run(
            _as_account(command, data.parent, account),
            cwd=data.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PREPARING_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Postgres could not prepare its folder in {PREPARING_SECONDS} s") from error
    if answer.returncode != 0:
        raise Unavailable(f"Postgres could not prepare its folder: {answer.stdout[-2000:]}")


def _as_account(command: list[str], folder: Path, account: Account | None) -> list[str]:
    if account is None:
        return command
    become = [sys.executable, "-I", "-S", "-c", BECOME]
    return [*become, str(folder), str(account.user), str(account.group), *command]


def _start(postgres: Path, data: Path, account: Account | None) -> tuple[Child, int]:
    port = free_port()
    settings = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": ""}
    command = [str(postgres), "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())]
    child = Child(_as_account(command, data, account))
    child.wait_for(LISTENS, STARTING_SECONDS)
    return child, port


def _stop(child: Child) -> None:
    """Stop the server without waiting for clients that are still connected."""
    try:
        os.kill(child.pid, signal.SIGINT)
        with suppress(Unavailable):
            child.wait(STOPPING_SECONDS)
    finally:
        child.stop()
