"""Notes stay with their file, as an attribute or as another file; a rename replaces nothing."""

import errno
import json
import os

import pytest

from jqueue.formats.files.notes import ATTRIBUTE, HAS_ATTRIBUTES, LARGEST, encoded, read_note, write_note
from jqueue.formats.vsqs import exclusive
from jqueue.formats.vsqs.exclusive import rename_exclusively

NOTE = {"id": "a", "entrypoint": "work", "headers": {"x": "é\ud800\n"}}

with_attributes = pytest.mark.skipif(not HAS_ATTRIBUTES, reason="this system has no extended attributes")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "5"
    path.write_bytes(b"payload")
    return str(path)


@pytest.fixture
def beside(tmp_path):
    return str(tmp_path / "notes" / "5")


@pytest.mark.parametrize("attributes", [True, False])
@pytest.mark.parametrize("size", [0, LARGEST])
def test_a_note_is_read_as_written_and_leaves_the_file_unchanged(file, beside, attributes, size):
    note = {**NOTE, "error": "x" * size, "nothing": None}
    write_note(file, note, beside, attributes=attributes)
    assert {**NOTE, "error": "x" * size} == read_note(file, beside, attributes=attributes)
    with open(file, "rb") as content:
        assert b"payload" == content.read()


@with_attributes
def test_a_small_note_is_an_attribute_and_follows_its_file(file, beside, tmp_path):
    write_note(file, NOTE, beside)
    assert not os.path.exists(os.path.dirname(beside))
    os.rename(file, tmp_path / "6")
    assert read_note(str(tmp_path / "6")) == NOTE


@with_attributes
def test_a_large_note_is_found_by_its_attribute_and_removed_by_a_smaller_note(file, beside):
    large = {**NOTE, "error": "x" * LARGEST}
    write_note(file, large, beside)
    assert large == read_note(file)
    assert {"i": "a", "e": "work", "more": "notes/5"} == json.loads(os.getxattr(file, ATTRIBUTE))
    write_note(file, NOTE, beside)
    assert NOTE == read_note(file) == read_note(file, beside)
    assert [] == os.listdir(os.path.dirname(beside))


def test_the_note_of_a_claim_fits_in_the_inode():
    claim = {"attempt": 12, "failures": 0, "token": 1795313466137003123, "timeout": 300.0, "entrypoint": "mail"}
    assert len(encoded(claim)) <= 64
    assert len(encoded({**claim, "entrypoint": None, "next": 1795313466137003124})) <= 64


@with_attributes
def test_a_note_with_unabbreviated_names_is_read(file):
    os.setxattr(file, ATTRIBUTE, b'{"attempt":3,"e":"mail"}')
    assert {"attempt": 3, "entrypoint": "mail"} == read_note(file)


@with_attributes
@pytest.mark.parametrize(
    ("writing", "reading"),
    [
        (errno.EOPNOTSUPP, errno.EOPNOTSUPP),
        (errno.EACCES, errno.EACCES),
        (errno.EDQUOT, errno.ENODATA),  # attributes exist, but the quota of the user is used up
    ],
)
def test_a_note_is_a_file_if_attributes_are_refused(file, beside, monkeypatch, writing, reading):
    def refuse(*arguments: object) -> None:
        raise OSError(writing, "not here")

    def nothing(*arguments: object) -> None:
        raise OSError(reading, "nothing")

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "getxattr", nothing)
    write_note(file, NOTE, beside)
    assert NOTE == read_note(file, beside)
    assert {} == read_note(file)


@pytest.mark.parametrize("attributes", [True, False])
def test_a_missing_file_has_no_note(tmp_path, beside, attributes):
    with pytest.raises(FileNotFoundError):
        read_note(str(tmp_path / "gone"), beside, attributes=attributes)
    with pytest.raises(FileNotFoundError):
        write_note(str(tmp_path / "gone"), NOTE, beside, attributes=attributes)


@pytest.mark.parametrize("attributes", [True, False])
def test_a_note_of_a_renamed_file_cannot_be_written_by_its_old_name(file, beside, tmp_path, attributes):
    large = {**NOTE, "error": "x" * LARGEST}
    write_note(file, large, beside, attributes=attributes)
    os.rename(file, tmp_path / "5.6")
    with pytest.raises(FileNotFoundError):
        write_note(file, {**large, "error": "y" * LARGEST}, beside, attributes=attributes)
    assert large == read_note(str(tmp_path / "5.6"), beside, attributes=attributes)
    assert ["5"] == os.listdir(os.path.dirname(beside))


def test_a_full_disk_leaves_the_note_unchanged(file, beside, monkeypatch):
    large = {**NOTE, "error": "x" * LARGEST}
    write_note(file, large, beside)

    def full(*arguments: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_note(file, {**large, "error": "y" * LARGEST}, beside)
    assert large == read_note(file, beside)
    assert ["5"] == os.listdir(os.path.dirname(beside))


@pytest.mark.parametrize("call", [exclusive._call, None])
def test_a_rename_replaces_nothing(tmp_path, monkeypatch, call):
    monkeypatch.setattr(exclusive, "_call", call)
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    with pytest.raises(FileExistsError):
        rename_exclusively(str(old), str(new))
    assert (b"old", b"new") == (old.read_bytes(), new.read_bytes())
    new.unlink()
    rename_exclusively(str(old), str(new))
    assert b"old" == new.read_bytes()
    with pytest.raises(FileNotFoundError):
        rename_exclusively(str(old), str(tmp_path / "other"))
