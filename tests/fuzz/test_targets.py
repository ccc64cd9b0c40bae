"""The targets without the fuzzer: they find nothing in the corpus and in some neighbours of it."""

import logging
import sys
from pathlib import Path
from random import Random

import pytest

from jqueue.core.blob import codec
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.header import CommitRecord
from tests.fuzz.choices import Choices
from tests.fuzz.decode import mutated
from tests.fuzz.seeds import CORPUS, FULL, NOW, decode_seeds, seeds
from tests.fuzz.targets import TARGETS

SEED = 20260101
"""Seed from which the neighbours below are drawn; a failure names it."""

NEIGHBOURS, MANY = 30, 10
"""Number of neighbours of each target, and how many times as many are tried in the wide set."""


@pytest.fixture(autouse=True)
def _quiet():
    """Silence the log, which reports each line set aside: some thousand times here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("times", [1, pytest.param(MANY, marks=pytest.mark.wide)])
def test_every_seed_every_file_of_the_corpus_and_neighbours_of_them_hold(target, times):
    inputs = [*seeds(target), *neighbours(target, SEED + times, NEIGHBOURS * times)]
    for number, data in enumerate(inputs):
        try:
            TARGETS[target](data)
        except Exception as error:
            raise AssertionError(f"seed {SEED + times}, number {number}: {data!r}") from error


@pytest.mark.parametrize("path", sorted((CORPUS / "decode").glob("cut-off*")), ids=lambda path: path.name)
def test_a_blob_that_is_cut_off_is_no_queue(path: Path):
    with pytest.raises(InvalidBlobError):
        codec.decode(path.read_bytes())


WRITER = CommitRecord(7, 7, NOW.timestamp(), 0.1, "token")
LINE = codec.encode(FULL).splitlines()[1].removesuffix(b",")
PATTERNS = {
    "jobs": lambda size: codec.encode(FULL.model_copy(update={"jobs": _many(size)})),
    "lines that are no jobs": lambda size: codec.encode(FULL).replace(b"\n}}", b',\n"x": 7' * size + b"\n}}"),
    "lines that are no JSON": lambda size: codec.encode(FULL).replace(b"\n}}", b"\nx" * size + b"\n}}"),
    "the same line": lambda size: codec.encode(FULL).replace(b"\n}}", (b",\n" + LINE) * size + b"\n}}"),
    "an array of one job": lambda size: b'{"jobs": [' + b", ".join([b'{"id": "a", ' + LINE[10:]] * size) + b"]}",
    "writers": lambda size: codec.encode(FULL.model_copy(update={"commits": dict.fromkeys(_ids(size), WRITER)})),
    "brackets": lambda size: b"[" * size,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_reading_twice_as_much_takes_about_twice_the_work(pattern):
    """Work is counted in calls: Python functions, and functions called by Python."""
    once, twice = (_calls_to_read(PATTERNS[pattern](size)) for size in (400, 800))
    assert twice <= 2.2 * once + 100, (once, twice)


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
        codec.decode(data)
    except InvalidBlobError:
        pass
    finally:
        sys.setprofile(before)
    return count
