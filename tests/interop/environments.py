"""Environments of other programs and of other versions of jqueue, which are built when first needed and kept.

`make clean` removes them: their folders are called `.venv-<name>`. If one cannot be built, the test fails.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.child import one_at_a_time

ROOT = Path(__file__).parents[2]

SECONDS = 60
INSTALL_SECONDS = 600

ASK_VERSION = "import sys, {0}, importlib.metadata; print(importlib.metadata.version(sys.argv[1]))"


@dataclass(frozen=True)
class Interpreter:
    """A Python with one version of a package."""

    python: Path
    environment: dict[str, str]

    def command(self, program: Path | str, *arguments: str) -> list[str]:
        """The command that runs a program, given as a file or as text, with all warnings enabled."""
        code = [str(program)] if isinstance(program, Path) else ["-c", program]
        return [str(self.python), "-W", "always", *code, *arguments]

    def run(self, program: Path | str, *arguments: str, folder: Path) -> str:
        """Run a program in a folder and return its output. It must succeed without a traceback or a warning."""
        folder.mkdir(parents=True, exist_ok=True)
        result = subprocess.run(
            self.command(program, *arguments),
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert result.returncode == 0, f"{self.python}: {program}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr, result.stderr
        assert "Warning" not in result.stderr, result.stderr
        return result.stdout


@dataclass(frozen=True)
class Release:
    """One version of a package on PyPI.

    Attributes:
        package: name of the package.
        version: version of the package.
        options: further arguments for pip.
        oldest: Python version that the package requires. It is installed on older ones too, and must run there.
    """

    package: str
    version: str
    options: Sequence[str] = ()
    oldest: tuple[int, int] = (3, 0)

    def interpreter(self) -> Interpreter:
        """A Python of the current version with this release. Builds its environment if it does not exist."""
        cache = ROOT / f".venv-{self.package}-{self.version}"
        version = "{}.{}".format(*sys.version_info)
        python = cache / version / "bin" / "python"
        with one_at_a_time(cache / f"{version}.lock"):
            if not self._is_in(python):
                try:
                    self._build(python)
                except (OSError, subprocess.SubprocessError) as error:
                    what = f"{self.package} {self.version} could not be installed in {cache / version}"
                    pytest.fail(f"{what}: {error}\n{getattr(error, 'stdout', None) or ''}", pytrace=False)
        return Interpreter(python, clean_environment())

    def _build(self, python: Path) -> None:
        _call(sys.executable, "-m", "venv", "--clear", str(python.parents[1]))
        wanted = f"{self.package}=={self.version}"
        install = [str(python), "-m", "pip", "install", "--no-input", *self.options, wanted]
        if sys.version_info < self.oldest:
            install.append("--ignore-requires-python")
        _call(*install)
        if not self._is_in(python):
            raise OSError("it was installed, and cannot be imported")

    def _is_in(self, python: Path) -> bool:
        try:
            answer = subprocess.run(
                [python, "-c", ASK_VERSION.format(self.package), self.package],
                cwd=python.parents[2],
                env=clean_environment(),
                capture_output=True,
                text=True,
                timeout=60,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return answer.returncode == 0 and answer.stdout.strip() == self.version


def clean_environment() -> dict[str, str]:
    """The environment variables without those by which one interpreter would find modules of another."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _call(*command: str) -> None:
    subprocess.run(
        command,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=INSTALL_SECONDS,
    )
