"""One fuzzing run of one target, in a process of its own: the fuzzer does not return, and may take the process along.

A finding does not end the run: the shortest input of each kind is kept, and the fuzzer goes on. Only what the process
does not survive (a hang, memory, a crash below Python) ends it, and the fuzzer writes the input itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import traceback
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["jqueue"]):
    from tests.fuzz.choices import Choices
    from tests.fuzz.decode import mutated
    from tests.fuzz.targets import found

MUTATION_BYTES = 64
"""Number of random bytes that decide one edit."""


class Findings:
    """The findings of a run: one file for each kind, the shortest input that shows it.

    Args:
        target: the target's name.
        folder: where the files go.
    """

    def __init__(self, target: str, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._shortest: dict[str, bytes] = {}

    def __call__(self, data: bytes) -> None:
        """Run the target once on an input."""
        error = found(self._target, data)
        if error is None:
            return
        kind = kind_of(error)
        before = self._shortest.get(kind)
        if before is not None and len(before) <= len(data):
            return
        self._shortest[kind] = data
        path = self._folder / f"{self._target}-{hashlib.sha256(kind.encode()).hexdigest()[:12]}"
        path.write_bytes(data)
        if before is None:
            print(json.dumps({"file": path.name, "kind": kind}), flush=True)


def kind_of(error: BaseException) -> str:
    """Return the key of a kind of finding: its message and place, without numbers."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(innermost.filename).name}:{innermost.name}"
    words = "".join("0" if character.isdigit() else character for character in ascii(str(error))[:60])
    return f"{type(error).__name__} in {place}: {words}"


def mutate(data: bytes, largest: int, seed: int) -> bytes:
    """Return a copy edited as people and tools edit, or as the fuzzer does."""
    random = Random(seed)
    if random.random() < 0.5:
        return bytes(atheris.Mutate(data, largest))
    return mutated(data, Choices(random.randbytes(MUTATION_BYTES)))[:largest]


def main() -> None:
    """Fuzz: `campaign.py TARGET FINDINGS-FOLDER ARGUMENTS-OF-LIBFUZZER…`."""
    target, folder, *arguments = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    options = {"custom_mutator": mutate} if target == "decode" else {}
    atheris.Setup([sys.argv[0], *arguments], Findings(target, Path(folder)), **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
