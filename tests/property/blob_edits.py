"""Edits that other writers and people make to a blob: functions of its text and of some choices."""

import json

from jqueue.core.blob import codec
from jqueue.core.blob.codec import JOBS_CLOSE, JOBS_OPEN
from jqueue.domain.errors import InvalidBlobError

SEPARATOR = b",\n"
AT = '"created_at": "2026-01-02T03:04:05+00:00"'


def new_line(job_id, priority=0, sequence=1, more=""):
    """Return the line of a waiting job, as another program could write it."""
    place = f'"sequence": {sequence}, {AT}, "priority": {priority}{more}'
    return f'"{job_id}": {{"entrypoint": "x", "payload": "", {place}}}'.encode()


def cut(content):
    """Return the header, the lines unchanged, and the end; no lines if the blob has another layout."""
    first, last = content.find(b"\n") + 1, content.rfind(b"\n" + JOBS_CLOSE) + 1
    if not 0 < first <= last:
        return content, [], b""
    return content[:first], content[first:last].split(b"\n")[:-1], content[last:]


def paste(head, lines, tail):
    return head + b"".join(line + b"\n" for line in lines) + tail


def commas(lines):
    """Return the lines, each followed by the comma that it needs."""
    bare = [line.rstrip(b" \r,") for line in lines]
    return [line + b"," for line in bare[:-1]] + bare[-1:]


def on_lines(change):
    """Return an edit of the lines: `change(lines, number)` returns the new ones; then the commas are put right."""

    def edit(content, number):
        head, lines, tail = cut(content)
        return paste(head, commas(change(lines, number)), tail) if lines else content

    edit.__name__ = change.__name__
    return edit


def on_one(change):
    """Return an edit of one line with its comma."""

    def edit(content, number):
        head, lines, tail = cut(content)
        if not lines:
            return content
        at = number % len(lines)
        return paste(head, [*lines[:at], *change(lines[at]), *lines[at + 1 :]], tail)

    edit.__name__ = change.__name__
    return edit


@on_lines
def remove_a_line(lines, number):
    at = number % len(lines)
    return lines[:at] + lines[at + 1 :]


@on_lines
def remove_many_lines(lines, number):
    at = number % len(lines)
    return lines[:at] + lines[at + 1 + number % 7 :]


@on_lines
def move_a_line(lines, number):
    line = lines[number % len(lines)]
    rest = [each for each in lines if each is not line]
    at = number // 7 % (len(rest) + 1)
    return [*rest[:at], line, *rest[at:]]


@on_lines
def turn_the_lines_around(lines, number):
    return lines[::-1]


@on_lines
def repeat_a_line(lines, number):
    at = number // 7 % (len(lines) + 1)
    return [*lines[:at], lines[number % len(lines)], *lines[at:]]


@on_lines
def repeat_an_id(lines, number):
    line = lines[number % len(lines)]
    at = number // 7 % (len(lines) + 1)
    return [*lines[:at], line.replace(b'"entrypoint": "', b'"entrypoint": "y', 1), *lines[at:]]


@on_lines
def repeat_a_page(lines, number):
    at = number % len(lines)
    return lines + lines[at : at + 4]


@on_lines
def change_a_line(lines, number):
    at = number % len(lines)
    return [*lines[:at], lines[at].replace(b'"payload": "', b'"payload": "AAAA', 1), *lines[at + 1 :]]


@on_lines
def take_a_place_away(lines, number):
    at = number % len(lines)
    head, found, tail = lines[at].partition(b'"sequence": ')
    changed = head + tail.lstrip(b"0123456789")[2:] if found else lines[at]
    return [*lines[:at], changed, *lines[at + 1 :]]


@on_lines
def make_a_place_large(lines, number):
    at = number % len(lines)
    return [*lines[:at], lines[at].replace(b'"sequence": ', b'"sequence": 45035996273704', 1), *lines[at + 1 :]]


@on_lines
def give_a_key(lines, number):
    at = number % len(lines)
    return [*lines[:at], lines[at].replace(b'"payload"', b'"unique_key": "k", "payload"', 1), *lines[at + 1 :]]


@on_lines
def give_a_concurrency_key(lines, number):
    at = number % len(lines)
    added = b'"concurrency_key": "c", "concurrency_limit": %d, "payload"' % (1 + number % 2)
    return [*lines[:at], lines[at].replace(b'"payload"', added, 1), *lines[at + 1 :]]


@on_lines
def finish_a_job(lines, number):
    """Finish a job, with a result that is kept for a very long time."""
    at = number % len(lines)
    line, added = (
        lines[at],
        b'"result": [{"n": 1}], "keep_result": 1e9, "finished_at": "2026-01-02T03:04:05Z", "payload"',
    )
    if b'"status": "queued"' in line and b'"result"' not in line:
        line = line.replace(b'"status": "queued"', b'"status": "completed"', 1).replace(b'"payload"', added, 1)
    return [*lines[:at], line, *lines[at + 1 :]]


@on_lines
def damage_a_line(lines, number):
    at = number % len(lines)
    return [*lines[:at], lines[at].replace(b'"entrypoint"', b'"entry"', 1), *lines[at + 1 :]]


@on_lines
def mend_the_lines(lines, number):
    return [line.replace(b'"entry"', b'"entrypoint"', 1) for line in lines if line.strip(b", \r")]


@on_lines
def add_what_is_no_json(lines, number):
    at = number % (len(lines) + 1)
    return [*lines[:at], [b'"odd" 7', b"odd", b'"a": {"entrypoint": "x"', b"}"][number % 4], *lines[at:]]


@on_lines
def remove_what_is_no_json(lines, number):
    return [line for line in lines if not line.startswith((b'"odd', b"odd", b"}", b",", b'"a": {"entrypoint": "x",'))]


@on_lines
def put_two_on_a_line(lines, number):
    at = number % len(lines)
    return [*lines[:at], b" ".join(lines[at : at + 2]), *lines[at + 2 :]]


@on_lines
def put_some_into_an_object(lines, number):
    """Put lines that look like jobs into a nested object."""
    at = number % len(lines)
    inner = commas(lines[at : at + 3])
    return [*lines[:at], b'"nest": {\n' + b"\n".join(inner) + b"\n}", *lines[at + (3 if number % 2 else 0) :]]


@on_one
def add_spaces(line):
    return [b"  " + line]


@on_one
def add_a_space_before_the_comma(line):
    return [line.removesuffix(b",") + b" " + (b"," if line.endswith(b",") else b"")]


@on_one
def add_an_empty_line(line):
    return [line, b""]


@on_one
def add_a_comma(line):
    return [b"," + line]


@on_one
def forget_the_comma(line):
    return [line.removesuffix(b",")]


@on_one
def end_a_line_as_windows_does(line):
    return [line + b"\r"]


def end_all_lines_as_windows_does(content, number):
    return content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def end_all_lines_as_we_do(content, number):
    return content.replace(b"\r\n", b"\n")


def lay_it_out_otherwise(content, number):
    try:
        whole = json.loads(content)
    except ValueError:
        return content
    return json.dumps(whole, indent=[None, 0, 1, 2][number % 4]).encode()


def save_it_as_we_do(content, number):
    """Save the blob as another writer of ours does."""
    try:
        return codec.encode(codec.decode(content))
    except InvalidBlobError:
        return content


def break_the_header(content, number):
    head, rest = content.split(b"\n", 1) if b"\n" in content else (content, b"")
    return (head + b" \n" + rest, head.replace(b'"queue"', b'"label"', 1) + b"\n" + rest)[number % 2]


def decide_otherwise(content, number):
    """Change settings for many jobs in the header, as a person does."""
    tables = (
        b'"entrypoints": {"x": {"paused": true}}, ',
        b'"entrypoints": {"x": {"max_running": 1}, "y": {"rate": 1, "per": 60.0}}, "recent": {"y": [[1.0, 2.0, 1]]}, ',
        b'"settings": {"aging": 2.0}, ',
        b"",
    )
    head, rest = content.split(b"\n", 1) if b"\n" in content else (content, b"")
    if not head.endswith(JOBS_OPEN):
        return content
    try:
        header = json.loads(head + b"}}")
    except ValueError:
        return content
    if {"entrypoints", "settings"} & set(header):
        return content
    return head.removesuffix(JOBS_OPEN) + tables[number % 4] + JOBS_OPEN + b"\n" + rest


def add_jobs(content, number):
    """Add jobs as another writer does, some with ids that were used before."""
    try:
        state = codec.decode(content)
    except InvalidBlobError:
        return content
    last = max((job.sequence for job in state.jobs), default=0)
    names = [f"job {(number + each) % 40}" for each in range(1 + number % 9)]
    lines = [new_line(name, number % 3, last + 1 + at) for at, name in enumerate(names) if state.find(name) is None]
    head, old, tail = cut(content)
    return paste(head, commas([*old, *lines]), tail) if tail else content


EDITS = [
    add_jobs,
    remove_a_line,
    change_a_line,
    add_jobs,
    remove_many_lines,
    save_it_as_we_do,
    move_a_line,
    turn_the_lines_around,
    repeat_a_line,
    repeat_an_id,
    repeat_a_page,
    take_a_place_away,
    make_a_place_large,
    give_a_key,
    give_a_concurrency_key,
    finish_a_job,
    damage_a_line,
    mend_the_lines,
    add_what_is_no_json,
    remove_what_is_no_json,
    put_two_on_a_line,
    put_some_into_an_object,
    add_spaces,
    add_a_space_before_the_comma,
    add_an_empty_line,
    add_a_comma,
    forget_the_comma,
    end_a_line_as_windows_does,
    end_all_lines_as_windows_does,
    end_all_lines_as_we_do,
    lay_it_out_otherwise,
    break_the_header,
    decide_otherwise,
    save_it_as_we_do,
]
