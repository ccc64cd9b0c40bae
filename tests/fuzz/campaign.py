"""One fuzzing run of one target, in a process of its own, as libFuzzer does not return: see `python -m tests.fuzz`."""

from __future__ import annotations

import logging
import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["jqueue"]):
    from tests.fuzz.choices import Choices
    from tests.fuzz.decode import mutated
    from tests.fuzz.targets import TARGETS

MUTATION_BYTES = 64
"""Number of random bytes that decide one edit."""


def mutate(data: bytes, largest: int, seed: int) -> bytes:
    """Return a copy edited as people and tools edit, or as the fuzzer does."""
    random = Random(seed)
    if random.random() < 0.5:
        return bytes(atheris.Mutate(data, largest))
    return mutated(data, Choices(random.randbytes(MUTATION_BYTES)))[:largest]


def main() -> None:
    """Fuzz: `campaign.py TARGET ARGUMENTS-OF-LIBFUZZER…`."""
    target, *arguments = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    options = {"custom_mutator": mutate} if target == "decode" else {}
    atheris.Setup([sys.argv[0], *arguments], TARGETS[target], **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
