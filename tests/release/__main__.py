"""Builds the distributions of the last commit into dist/, and checks what a release must be: `make release-check`."""

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path

from tests.release.checks import ROOT, all_checks, command


def main() -> int:
    """Return 0 if every check passed, and 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the distributions")
    parser.add_argument("--tag", help="tag of the release, which must name the version: v2.0.0")
    chosen = parser.parse_args()
    if command("git", "status", "--porcelain").strip():
        print("There are uncommitted changes. The last commit is built and checked without them.", flush=True)
    failed = []
    began = time.monotonic()

    def report(check: str, faults: list[str]) -> None:
        line = f"{'FAILED' if faults else 'ok':6} {time.monotonic() - began:5.0f} s  {check}"
        print(line, *faults, sep="\n        ", flush=True)
        failed.extend(faults)

    with tempfile.TemporaryDirectory() as folder:
        all_checks(Path(folder), chosen.out.absolute(), chosen.tag, report)
    for path in sorted(chosen.out.iterdir()):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.stat().st_size:9,}  {path.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
