"""Coverage-guided fuzzing of the code that foreign bytes reach: `python -m tests.fuzz --seconds 60`.

A target ends at its first finding, which becomes a file. `python -m tests.fuzz --replay FILE --target decode` runs it
again, and needs no fuzzer.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import subprocess
import sys
from pathlib import Path

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".fuzz"
FINDINGS = WORK / "findings"
LARGEST = {"decode": 16_384}
"""Bytes of the largest input. The targets that read choices use fewer."""

NO_FUZZER = (
    "atheris is not installed: pip install -e '.[fuzz]'. It exists for Linux and for macOS on Intel processors, Python"
    " 3.11 to 3.13; elsewhere, the tests in tests/fuzz run without it."
)


def fuzz(target: str, seconds: int, seed: int) -> int:
    """Run the fuzzer on one target, with its output on ours. Returns 0 if it found nothing."""
    corpus = WORK / "corpus" / target
    for folder in (corpus, FINDINGS):
        folder.mkdir(parents=True, exist_ok=True)
    for content in seeds(target):
        (corpus / hashlib.sha1(content).hexdigest()).write_bytes(content)
    limits = [f"-max_total_time={seconds}", f"-max_len={LARGEST.get(target, 1024)}", "-timeout=5", "-rss_limit_mb=1024"]
    output = [f"-artifact_prefix={FINDINGS}/{target}-", "-print_final_stats=1", "-reload=0"]
    command = [sys.executable, "-m", "tests.fuzz.campaign", target, f"-seed={seed}", *limits, *output, str(corpus)]
    print(" ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """Run or replay. Returns 0; 1 if something was found; 2 if the fuzzer is not installed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long, all targets together (default: 60)")
    parser.add_argument("--target", choices=TARGETS, help="only this one")
    parser.add_argument("--seed", type=int, help="where chance begins; drawn if not given")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input once, and show what it does")
    options = parser.parse_args()
    if options.replay is not None:
        TARGETS[options.target or "decode"](options.replay.read_bytes())
        print("nothing is found")
        return 0
    if importlib.util.find_spec("atheris") is None:
        print(NO_FUZZER)
        return 2
    names = [options.target] if options.target else list(TARGETS)
    seed = options.seed or random.randrange(1, 2**31)
    seconds = max(1, options.seconds // len(names))
    codes = [fuzz(name, seconds, seed) for name in names]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
