"""Folders of the project and of the benchmarks, and a description of the machine, which readers of the figures need."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks" / ".work"
"""Folder of the measured queues: on the project's own disk, because flushing to the disk is part of the measurement."""


@contextmanager
def work_folder() -> Iterator[Path]:
    """Create an empty folder on the project's disk, and remove it after the block."""
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def describe() -> dict[str, str | int]:
    """Describe the machine."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "processor": _processor(),
        "memory_mebibytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        "system": platform.system(),
        "kernel": platform.release(),
        "file_system": file_system(ROOT),
    }


def commit() -> str:
    """Return the commit of this clone, marked if files were changed since; "unknown" without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return answer.stdout.strip() or "unknown"


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder, as reported by Linux."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown"
    around = [fields for fields in mounts if folder.is_relative_to(fields[1])]
    return max(around, key=lambda fields: len(fields[1]))[2] if around else "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
