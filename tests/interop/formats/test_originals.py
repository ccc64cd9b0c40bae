"""The originals can be installed, and their archives are unpacked with the times of their files."""

import pytest

from tests.interop.formats.conftest import FIXTURES, ORIGINALS

pytestmark = pytest.mark.wide


@pytest.mark.full
@pytest.mark.parametrize("name", ORIGINALS)
def test_an_original_runs_in_its_environment(original, name, tmp_path):
    package = ORIGINALS[name].package
    printed = original(name).run(f"import {package}; print('here')", folder=tmp_path)
    assert "here\n" == printed


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.tar")))
def test_an_archive_is_unpacked_with_its_times(unpacked, name):
    folder = unpacked(name)
    assert (folder / "README").stat().st_mtime < 1_795_400_000
