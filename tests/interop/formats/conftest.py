"""The older programs whose formats jqueue reads and writes, each in its own environment, and folders made by them."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.environments import Interpreter, Release

pytest.register_assert_rewrite("tests.interop.formats.dirq_contract", "tests.interop.formats.mixed")

ORIGINALS = {
    "vsqs": Release("vsqs", "0.3", oldest=(3, 12)),
    "dirq": Release("dirq", "1.8"),
    "textqueue-1.0": Release("textqueue", "1.0"),
    "textqueue-1.1": Release("textqueue", "1.1"),
}

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def original() -> Callable[[str], Interpreter]:
    """A function that returns a Python with an original: "vsqs", "dirq", "textqueue-1.0" or "textqueue-1.1"."""
    return lambda name: ORIGINALS[name].interpreter()


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str], Path]:
    """A function that unpacks an archive made by an original, with the times, modes and hard links of its files."""

    def unpack(name: str) -> Path:
        with tarfile.open(FIXTURES / f"{name}.tar") as archive:
            members = archive.getmembers()
            for member in members:
                member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            archive.extractall(tmp_path, members, filter="fully_trusted")
        return tmp_path / name

    return unpack
