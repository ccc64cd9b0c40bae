"""The targets without the fuzzer: they find nothing in the corpus and in some hundred neighbours of it."""

import logging
import sys
from pathlib import Path
from random import Random

import pytest

from jqueue.core.blob import codec, lines
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.models import CommitRecord
from tests.fuzz.choices import Choices
from tests.fuzz.decode import mutated
from tests.fuzz.oracles import adopted
from tests.fuzz.seeds import CORPUS, FULL, NOW, decode_seeds, seeds
from tests.fuzz.targets import TARGETS, found

SEED = 20260101
"""Seed from which the neighbours below are drawn; a failure names it."""

NEIGHBOURS = {"decode": 240, "hand-edit": 120, "operations": 240, "segments": 240}


@pytest.fixture(autouse=True)
def _quiet():
    """Silence the log, which reports each line set aside: some thousand times here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", TARGETS)
def test_every_seed_and_every_file_of_the_corpus_holds(target):
    for number, data in enumerate(seeds(target)):
        assert found(target, data) is None, (number, data)


@pytest.mark.wide
@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_of_the_seeds_hold(target):
    for number, data in enumerate(neighbours(target, SEED, NEIGHBOURS[target])):
        error = found(target, data)
        if error is not None:
            raise AssertionError(f"seed {SEED}, number {number}: {data!r}") from error


@pytest.mark.parametrize("path", sorted((CORPUS / "decode").glob("cut-off*")), ids=lambda path: path.name)
def test_a_blob_that_is_cut_off_is_no_queue(path: Path):
    with pytest.raises(InvalidBlobError):
        codec.decode(path.read_bytes())


def test_the_same_bytes_always_make_the_same_run():
    data = Random(SEED).randbytes(200)
    assert TARGETS["hand-edit"].contents(data) == TARGETS["hand-edit"].contents(data)
    assert TARGETS["operations"].words(data) == TARGETS["operations"].words(data)


WRITER = CommitRecord(7, 7, NOW.timestamp(), 0.1)
LINE = lines.encode_job(FULL.jobs[0])
PATTERNS = {
    "jobs": lambda size: codec.encode(FULL.model_copy(update={"jobs": _many(size)})),
    "lines that are no jobs": lambda size: codec.encode(FULL).replace(b"\n}}", b',\n"x": 7' * size + b"\n}}"),
    "lines that are no JSON": lambda size: codec.encode(FULL).replace(b"\n}}", b"\nx" * size + b"\n}}"),
    "the same line": lambda size: codec.encode(FULL).replace(b"\n}}", (b",\n" + LINE) * size + b"\n}}"),
    "commas": lambda size: codec.encode(FULL).replace(b"\n}}", b",\n" * size + b"\n}}"),
    "an array": lambda size: b'{"version": 1, "jobs": [' + b"{}, " * size + b"{}]}",
    "an array of one job": lambda size: b'{"jobs": [' + b", ".join([b'{"id": "a", ' + LINE[10:]] * size) + b"]}",
    "names that stand twice": lambda size: b'{"a": {' + b'"a": 1, ' * size + b'"a": 1}, "jobs": {}}',
    "what is finished": lambda size: codec.encode(FULL.model_copy(update={"finished": dict.fromkeys(_ids(size), 1)})),
    "writers": lambda size: codec.encode(FULL.model_copy(update={"commits": dict.fromkeys(_ids(size), WRITER)})),
    "brackets": lambda size: b"[" * size,
    "braces": lambda size: b'{"jobs": {\n' + b"}" * size,
    "NULs": lambda size: b'{"format": 2, "jobs": {\n' + b"\0\n" * size + b"}}",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_reading_twice_as_much_takes_about_twice_the_work(pattern):
    """Work is counted in calls: Python functions, and functions called by Python."""
    once, twice = (_calls_to_read(PATTERNS[pattern](size)) for size in (400, 800))
    assert twice <= 2.2 * once + 100, (once, twice)


def test_every_line_is_parsed_once_and_never_again_while_it_stays():
    data = PATTERNS["jobs"](300)
    blob = adopted(data)
    assert 301 == blob.lines_parsed  # 300 jobs, and a line that cannot be read
    blob.adopt(codec.parse_blob(data), len(data))
    assert 301 == blob.lines_parsed


def neighbours(target, seed, number):
    """Return inputs near the seeds, or of random choices: always the same for a seed."""
    random, starts = Random(seed), decode_seeds()
    for _ in range(number):
        if target != "decode":
            yield random.randbytes(200)
            continue
        data = random.choice(starts)
        for _ in range(random.randint(1, 3)):
            data = mutated(data, Choices(random.randbytes(48)))
        if len(data) < 20_000:
            yield data


def _many(size):
    return tuple(FULL.jobs[0].evolve(id=name, sequence=number) for number, name in enumerate(_ids(size), 1))


def _ids(size):
    return [f"job {number}" for number in range(size)]


def _calls_to_read(data):
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        adopted(data, data)
    except InvalidBlobError:
        pass
    finally:
        sys.setprofile(before)
    return count
