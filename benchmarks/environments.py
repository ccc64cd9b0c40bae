"""A separate environment for every contestant, so that none runs with the versions of another.

Environments are built on first use from `requirements/<name>.txt` in `.venv-bench/<name>`, all with the same
interpreter, and kept until the requirements change.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.machine import ROOT

HOME = ROOT / ".venv-bench"
REQUIREMENTS = ROOT / "benchmarks" / "requirements"
VERSION = "3.12"
"""jqueue 1.0.0 and vsqs require it, so all contestants use it if it is installed."""

INSTALL_SECONDS = 600
STAMP = ".installed"
LIST_PACKAGES = """
import json, sys
from importlib.metadata import distributions
found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in distributions()}
found["python"] = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps(found))
"""


class EnvironmentUnavailableError(Exception):
    """Raised if an environment cannot be built; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment in which a contestant is installed.

    Attributes:
        name: name of the environment and of its requirements file.
        python: its interpreter.
        versions: versions of Python and of its direct requirements.
    """

    name: str
    python: Path
    versions: dict[str, str]


def environment(name: str) -> Environment:
    """Return the environment of this name, and build it first if necessary.

    Raises:
        EnvironmentUnavailableError: it cannot be built.
    """
    requirements = REQUIREMENTS / f"{name}.txt"
    if not requirements.is_file():
        raise EnvironmentUnavailableError(
            f"there are no requirements for {name!r}: {requirements.relative_to(ROOT)} is missing"
        )
    folder = HOME / name
    python = folder / "bin" / "python"
    with _lock(HOME / f"{name}.lock"):
        wanted = _fingerprint(requirements)
        stamp = folder / STAMP
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
            _build(folder, requirements)
            stamp.write_text(wanted, encoding="utf-8")
    return Environment(name, python, _versions(python, requirements))


def clean_environment() -> dict[str, str]:
    """Return the variables of this process without the settings of Python and of virtual environments."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PYTHONHASHSEED": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@cache
def interpreter() -> str:
    """Return the interpreter of all environments: one of `VERSION` if installed, otherwise the running interpreter."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [
        shutil.which(f"python{VERSION}"),
        *map(str, sorted(pyenv.glob(f"{VERSION}*/bin/python"), reverse=True)),
    ]
    probe = f"import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{VERSION}')"
    for candidate in candidates:
        # A command on the PATH proves nothing: pyenv puts one there for each installed version, active or not.
        if candidate and _succeeds(candidate, "-c", probe):
            return candidate
    return sys.executable


def direct_requirements(requirements: Path) -> list[str]:
    """Return the package names in a requirements file; the project itself is `jqueue`."""
    names = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("-e ."):
            names.append("jqueue")
        elif text and not text.startswith("-"):
            names.append(text.partition("==")[0].partition("[")[0].strip().lower().replace("_", "-"))
    return names


def _build(folder: Path, requirements: Path) -> None:
    install = ["-m", "pip", "install", "--quiet", "--no-input", "--requirement", str(requirements)]
    if interpreter() == sys.executable and sys.version_info[:2] < (3, 12):
        install.append("--ignore-requires-python")
    for command in ([interpreter(), "-m", "venv", "--clear", str(folder)], [str(folder / "bin" / "python"), *install]):
        try:
            answer = subprocess.run(
                command,
                cwd=ROOT,
                env=clean_environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=INSTALL_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentUnavailableError(f"{folder.name} could not be installed: {error}") from error
        if answer.returncode != 0:
            raise EnvironmentUnavailableError(f"{folder.name} could not be installed: {answer.stdout.strip()[-600:]}")


def _fingerprint(requirements: Path) -> str:
    """Return a hash of the inputs of the environment; for ours, they include the project's own requirements."""
    digest = hashlib.sha256(interpreter().encode() + requirements.read_bytes())
    if requirements.stem == "jqueue":
        digest.update((ROOT / "pyproject.toml").read_bytes())
    return digest.hexdigest()


def _versions(python: Path, requirements: Path) -> dict[str, str]:
    answer = subprocess.run(
        [python, "-c", LIST_PACKAGES], env=clean_environment(), capture_output=True, text=True, timeout=60, check=True
    )
    found = json.loads(answer.stdout)
    return {name: found.get(name, "absent") for name in ["python", *direct_requirements(requirements)]}


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, env=clean_environment(), capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock, so that only one process builds an environment at a time."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
