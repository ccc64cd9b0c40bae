r"""The meaning of the lines of a TextQueue; the expected messages are those of textqueue 1.1 for the same bytes."""

import pytest

from jqueue.domain.models import JobStatus
from jqueue.formats.textqueue.records import Records
from jqueue.formats.textqueue.store import TextQueueFile
from tests.unit.formats.text_files import LATER, MESSAGES, messages


@pytest.mark.parametrize("content", MESSAGES, ids=repr)
def test_a_file_has_the_messages_that_the_original_program_finds(tmp_path, content):
    path = tmp_path / "queue.tq"
    path.write_bytes(content)
    assert MESSAGES[content] == [payload for _, payload in messages(path)]
    assert content == path.read_bytes(), "reading changes nothing"


@pytest.mark.parametrize("content", MESSAGES, ids=repr)
def test_a_file_read_in_pieces_has_the_same_messages(content):
    whole, pieces = Records(), Records()
    whole.update(bytearray(content), 0)
    for end in range(len(content) + 1):
        pieces.update(bytearray(content[:end]), 0)
    assert [(r.id, r.offset, r.end) for r in whole.by_id.values()] == [
        (r.id, r.offset, r.end) for r in pieces.by_id.values()
    ]
    assert whole.ended == pieces.ended
    assert set(whole.alive) == set(pieces.alive)


def test_a_message_that_failed_is_dead(tmp_path):
    path = tmp_path / "queue.tq"
    path.write_bytes(b"!bad\n day\n")
    [(job, payload)] = messages(path)
    assert (JobStatus.DEAD, b"bad\nday") == (job.status, payload)
    assert job.dead_at is not None


def test_the_default_entrypoint_is_the_name_of_the_file_or_the_option(tmp_path):
    path = tmp_path / "mails.tq"
    path.write_bytes(b"-a\n")
    [kept] = TextQueueFile(path).scan(LATER)
    assert kept.job.entrypoint == "mails"
    [kept] = TextQueueFile(path, entrypoint="send").scan(LATER)
    assert kept.job.entrypoint == "send"


def test_variables_are_shown_and_are_no_part_of_the_payload(tmp_path):
    path = tmp_path / "queue.tq"
    path.write_bytes(b"-a\n b\n\\state=new  \n\\\n\\\xff\n-c\n")
    [(first, payload), (second, _)] = messages(path)
    assert payload == b"a\nb"
    assert first.model_extra == {"variables": ["state=new  ", "", "\\xff"]}
    assert second.model_extra == {}


def test_a_message_keeps_its_id_when_lines_are_added_moved_or_get_other_endings(tmp_path):
    path = tmp_path / "queue.tq"
    path.write_bytes(b"-a\n b\n-a\n-c\n-a")
    before = {job.id: payload for job, payload in messages(path)}
    path.write_bytes(b"# new\r\n\r\n-c\r\n\\v\r\n=a\r\n-a\r\n\r\n-a\r\n b\r\n")
    after = {job.id: payload for job, payload in messages(path)}
    assert (4, 3) == (len(before), len(after))
    assert before.items() > after.items(), "all messages except the one marked as processed"


def test_equal_messages_are_told_apart_by_their_order_in_any_state(tmp_path):
    path = tmp_path / "queue.tq"
    path.write_bytes(b"-a\n-a\n-a\n-a\n")
    ids = [job.id for job, _ in messages(path)]
    assert len(set(ids)) == 4
    for marks, left in {b"=!--": ids[1:], b"#=--": ids[2:], b"-##-": [ids[0], ids[3]]}.items():
        path.write_bytes(b"".join(bytes((mark,)) + b"a\n" for mark in marks))
        assert left == [job.id for job, _ in messages(path)]


NOTE = b'#jq {"id":"the-id","ep":"mail","t":1795313466137003,"n":1,"h":{"k":"v"},"max":3}\n'


def test_a_note_directly_before_a_message_adds_fields_that_the_format_lacks(tmp_path):
    path = tmp_path / "queue.tq"
    path.write_bytes(NOTE + b"-a\n\n-b\n")
    [(job, payload), (other, _)] = messages(path)
    assert ("the-id", "mail", {"k": "v"}, 3, b"a") == (job.id, job.entrypoint, job.headers, job.max_attempts, payload)
    assert job.created_at.isoformat() == "2026-11-22T02:11:06.137003+00:00"
    assert other.entrypoint == "queue"


@pytest.mark.parametrize("between", [b"\n", b"# other\n", b"\\v\n", b" more\n", b"x\n"], ids=repr)
def test_a_note_that_is_not_directly_before_a_message_is_ignored(tmp_path, between):
    path = tmp_path / "queue.tq"
    path.write_bytes(NOTE + between + b"-a\n")
    [(job, _)] = messages(path)
    assert job.id != "the-id"


def test_a_message_that_was_copied_with_its_note_is_another_job(tmp_path):
    path = tmp_path / "queue.tq"
    path.write_bytes((NOTE + b"-a\n\n") * 3)
    ids = [job.id for job, _ in messages(path)]
    assert len(set(ids)) == 3
    assert ids[0] == "the-id"


WRONG_NOTES = [
    b'{"id":"\\ud800"}',
    b'{"id":""}',
    b'{"id":"a\\nb"}',
    b'{"id":"x","ep":5,"h":[1],"max":"y","t":-1,"n":"z"}',
    b'{"id":"x","ep":"","h":{"a":5},"max":0,"t":1e999}',
    b'{"id":"x","h":{"a":"\\ud800"},"max":true,"t":99999999999999999999}',
    b'{"id":"x","enc":"b64"}',
    b'{"id":"x",' * 2000,
    b"{" + b"[" * 100_000,
]


@pytest.mark.parametrize("note", WRONG_NOTES, ids=range(len(WRONG_NOTES)))
def test_an_invalid_note_is_ignored(tmp_path, note):
    path = tmp_path / "queue.tq"
    path.write_bytes(b"#jq " + note + b"\n-not base64!\n-b\n")
    [(job, payload), (_, other)] = messages(path)
    assert (payload, other) == (b"not base64!", b"b")
    assert (job.entrypoint, job.headers, job.max_attempts) == ("queue", {}, None)
