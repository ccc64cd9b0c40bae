"""Each check of `make release-check` finds the fault that it looks for."""

import zipfile
from pathlib import Path

import pytest

from tests.release import checks

METADATA = """Metadata-Version: 2.4
Name: jqueue
Version: 2.0.0
"""


def wheel(path: Path, content: bytes = b"VALUE = 1\n", *, date=(2026, 1, 1, 0, 0, 0), about=METADATA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as files:
        files.writestr(zipfile.ZipInfo("jqueue/__init__.py", date), content)
        files.writestr(zipfile.ZipInfo("jqueue-2.0.0.dist-info/METADATA", date), about)
    return path


def package(folder: Path, name: str, *fields: str) -> None:
    about = folder / f"{name}-1.0.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *fields, ""]))


def test_two_builds_are_the_same_to_the_byte(tmp_path):
    first, same = wheel(tmp_path / "1/j.whl"), wheel(tmp_path / "2/j.whl")
    assert [] == checks.changed(first, same)
    other = wheel(tmp_path / "3/j.whl", b"VALUE = 2\n")
    assert ["j.whl differs between two builds: jqueue/__init__.py"] == checks.changed(first, other)
    later = wheel(tmp_path / "4/j.whl", date=(2026, 1, 2, 0, 0, 0))
    assert ["j.whl differs between two builds: in the order or dates of its files"] == checks.changed(first, later)


def test_a_wheel_has_a_largest_size(tmp_path):
    path = wheel(tmp_path / "j.whl")
    size = path.stat().st_size
    assert [] == checks.too_large(path, size)
    assert [f"j.whl has {size:,} bytes, 1 more than the limit of {size - 1:,}"] == checks.too_large(path, size - 1)


def test_a_wheel_has_the_files_of_the_commit_and_no_other(tmp_path):
    path, package = wheel(tmp_path / "j.whl"), tmp_path / "tree" / "jqueue"
    package.mkdir(parents=True)
    (package / "__init__.py").write_bytes(b"VALUE = 1\n")
    assert [] == checks.foreign(path, package.parent)
    (package / "__init__.py").write_bytes(b"VALUE = 2\n")
    (package / "forgotten.py").touch()
    assert [
        "j.whl lacks jqueue/forgotten.py",
        "jqueue/__init__.py of j.whl is not the file of the commit",
    ] == checks.foreign(path, package.parent)
    (package / "__init__.py").unlink()
    assert "j.whl has jqueue/__init__.py, which is no part of it" in checks.foreign(path, package.parent)


def test_the_metadata_is_valid_and_has_the_version_of_the_tag(tmp_path):
    path = wheel(tmp_path / "j.whl")
    assert [] == checks.metadata(path) == checks.metadata(path, "v2.0.0")
    assert ["the tag v2.0.1 should be v2.0.0, the version of j.whl"] == checks.metadata(path, "v2.0.1")
    bad = wheel(tmp_path / "bad.whl", about=METADATA + "Requires-Python: yes\nMood: good\n")
    faults = checks.metadata(bad)
    assert ["bad.whl has the unknown metadata mood"] == faults[:1]
    assert "requires-python" in faults[1]


def test_users_install_packages_with_permissive_licences_only():
    packages = checks.users_packages()
    assert {"aiobotocore", "msgspec", "pyspark", "rich"} <= packages
    assert not {"hypothesis", "python-ptrace"} & packages, "these have other licences, and only developers install them"
    assert [] == checks.restricted(packages)
    assert [] != checks.restricted(["hypothesis", "python-ptrace"])


def test_a_package_with_another_licence_or_with_none_is_named(tmp_path):
    package(tmp_path, "needed", "License-Expression: MIT OR GPL-3.0-only")
    package(tmp_path, "stored", "Classifier: License :: OSI Approved :: BSD License")
    assert [] == checks.restricted(["needed", "stored"], [str(tmp_path)])
    package(tmp_path, "viral", "License: GPL-2.0-or-later")
    package(tmp_path, "silent")
    assert [
        "absent is not installed, so its licence is unknown",
        "silent 1.0 has the licence 'unknown', which is not permissive",
        "viral 1.0 has the licence 'GPL-2.0-or-later', which is not permissive",
    ] == checks.restricted(["needed", "viral", "silent", "absent"], [str(tmp_path)])


@pytest.mark.parametrize(
    ("expression", "permissive"),
    [
        ("MIT", True),
        ("Apache-2.0 AND BSD-2-Clause", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("AGPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND GPL-2.0-only", False),
        ("", False),
    ],
)
def test_a_licence_is_permissive_if_one_of_its_alternatives_is(expression, permissive):
    assert permissive == checks.is_permissive(expression)
