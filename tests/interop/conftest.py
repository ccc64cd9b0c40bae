"""The real jqueue 1.0.0, in an environment of its own, beside ours: the same program can be run on both."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv-jqueue-1.0.0"
"""One environment for each version of Python, kept between runs; `make clean` removes them."""

SECONDS = 60
INSTALL_SECONDS = 600

ASK_VERSION = "import jqueue, importlib.metadata; print(importlib.metadata.version('jqueue'))"


@dataclass(frozen=True)
class Interpreter:
    """A Python that has one version of jqueue."""

    python: Path
    environment: dict[str, str]

    def command(self, program: Path | str, *arguments: str) -> list[str]:
        """The command that runs a file, or a text, with every warning shown."""
        code = [str(program)] if isinstance(program, Path) else ["-c", program]
        return [str(self.python), "-W", "always", *code, *arguments]

    def run(self, program: Path | str, *arguments: str, folder: Path) -> str:
        """Run a program in a folder, and return what it prints. It must succeed, and nothing may go wrong aside."""
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


@pytest.fixture(scope="session")
def ours() -> Interpreter:
    """This project."""
    return Interpreter(Path(sys.executable), {**_clean_environment(), "PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="session")
def real() -> Interpreter:
    """The real jqueue 1.0.0, built when it is first needed. A failure to build it is the failure of the test."""
    version = "{}.{}".format(*sys.version_info)
    python = CACHE / version / "bin" / "python"
    with _lock(CACHE / f"{version}.lock") as lock:
        if not _has_1_0_0(python):
            _refuse_if_it_failed_already(lock)
            try:
                _build(python)
            except (OSError, subprocess.SubprocessError) as error:
                output = getattr(error, "stdout", None) or ""
                reason = f"jqueue 1.0.0 could not be installed in {CACHE / version}: {error}\n{output}"
                lock.write_text(f"{_run_id()}\n{reason}", encoding="utf-8")
                pytest.fail(reason, pytrace=False)
    return Interpreter(python, _clean_environment())


def _build(python: Path) -> None:
    """1.0.0 asks for Python 3.12, but runs on 3.11 as well, with the pins that ours is tested with."""
    home = python.parents[1]
    _call(sys.executable, "-m", "venv", "--clear", str(home))
    install = [str(python), "-m", "pip", "install", "--no-input", "-c", str(ROOT / "constraints.txt"), "jqueue==1.0.0"]
    if sys.version_info < (3, 12):
        install.append("--ignore-requires-python")
    _call(*install)
    if not _has_1_0_0(python):
        raise OSError("it was installed, and cannot be imported")


def _call(*command: str) -> None:
    subprocess.run(
        command,
        env=_clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=INSTALL_SECONDS,
    )


def _has_1_0_0(python: Path) -> bool:
    try:
        answer = subprocess.run(
            [python, "-c", ASK_VERSION], cwd=CACHE, env=_clean_environment(), capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == "1.0.0"


def _clean_environment() -> dict[str, str]:
    """The environment without what would lead one interpreter to the other's modules."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@contextmanager
def _lock(path: Path) -> Iterator[Path]:
    """Only one process builds at a time: a test run has several."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def _refuse_if_it_failed_already(lock: Path) -> None:
    """The other processes of one test run need not find out again, each after minutes, that there is no network."""
    run_id, _, reason = lock.read_text(encoding="utf-8").partition("\n")
    if run_id == _run_id():
        pytest.fail(reason, pytrace=False)


def _run_id() -> str:
    return os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
