"""Checks of a release. Each returns its faults, a line each; an empty list is a pass."""

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from packaging.metadata import Metadata, parse_email
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

MOST_BYTES = 950_000
"""Largest size of the wheel, in bytes. A wheel that outgrows it is a decision, and not an accident.

Of 924,015 bytes, 261,000 are docstrings and comments, which `help()` and a traceback show; zopfli would save 26,000."""

TOOLS = {"bench", "dev", "docs", "fuzz", "release"}
"""Extras that only developers of jqueue install. The licences of their packages bind no user."""

PERMISSIVE = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0", "Unlicense"}
"""SPDX identifiers of licences that ask for no more than their notice."""

OLDER_NAMES = {
    "Apache 2.0": "Apache-2.0",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
}
"""Licences as packages name them that have no SPDX expression yet."""

LICENCE_FIELDS = ("License-Expression", "Classifier", "License")
"""Fields of metadata that name a licence, the most exact one first."""

BUILDS = (("first", 0o022, "UTC", "0"), ("second/in/a/deeper/folder", 0o077, "Asia/Tokyo", "1"))
"""Folder, umask, time zone and seed of hashes of each build. None of them may leave a trace."""


def command(*arguments: object, folder: Path = ROOT, umask: int = -1, **environment: str) -> str:
    """Run a program and return its output.

    Raises:
        RuntimeError: it failed. The message ends with what the program printed.
    """
    line = [str(each) for each in arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        line, cwd=folder, env={**inherited, **environment}, umask=umask, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
    return done.stdout


def sources(folder: Path, umask: int) -> Path:
    """Write the files of the last commit into a folder. Uncommitted changes are no part of a release."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, stdout=archive, check=True)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(folder, filter="data")
    for path in folder.rglob("*"):
        path.chmod(path.stat().st_mode & ~umask)
    return folder


def build(folder: Path, umask: int, zone: str, seed: str, epoch: str) -> list[Path]:
    """Build the sdist and the wheel of the commit, and return their paths."""
    dist = folder / "dist"
    tree = sources(folder / "tree", umask)
    environment = {"SOURCE_DATE_EPOCH": epoch, "TZ": zone, "PYTHONHASHSEED": seed}
    command(
        *(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", dist),
        folder=tree,
        umask=umask,
        **environment,
    )
    return sorted(dist.iterdir())


def changed(first: Path, second: Path) -> list[str]:
    """Compare two builds of one distribution, byte by byte."""
    if hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest():
        return []
    one, other = _members(first), _members(second)
    names = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    return [f"{first.name} differs between two builds: {', '.join(names[:5]) or 'in the order or dates of its files'}"]


def _members(archive: Path) -> dict[str, bytes]:
    """Return the content of each file of a distribution."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as files:
            return {name: files.read(name) for name in files.namelist()}
    with tarfile.open(archive) as files:
        return {each.name: file.read() for each in files if (file := files.extractfile(each)) is not None}


def too_large(wheel: Path, most: int = MOST_BYTES) -> list[str]:
    """Compare the size of the wheel with its limit."""
    size = wheel.stat().st_size
    return [f"{wheel.name} has {size:,} bytes, {size - most:,} more than the limit of {most:,}"] if size > most else []


def foreign(wheel: Path, tree: Path) -> list[str]:
    """Look for files of the wheel that are not byte for byte those of the commit, and for modules that it lacks."""
    members = {name: content for name, content in _members(wheel).items() if ".dist-info/" not in name}
    wanted = {path.relative_to(tree).as_posix(): path for path in (tree / "jqueue").rglob("*") if path.is_file()}
    wanted |= {path.name: path for path in tree.glob("pyspark_jqueue.py")}
    faults = [f"{wheel.name} lacks {name}" for name in sorted(wanted.keys() - members.keys())]
    faults += [f"{wheel.name} has {name}, which is no part of it" for name in sorted(members.keys() - wanted.keys())]
    both = sorted(members.keys() & wanted.keys())
    return faults + [
        f"{name} of {wheel.name} is not the file of the commit"
        for name in both
        if members[name] != wanted[name].read_bytes()
    ]


def metadata(wheel: Path, tag: str | None = None) -> list[str]:
    """Check the metadata as an index does that takes the wheel, and compare the version with the tag of the release."""
    [(text)] = [content for name, content in _members(wheel).items() if name.endswith(".dist-info/METADATA")]
    raw, unknown = parse_email(text)
    faults = [f"{wheel.name} has the unknown metadata {name}" for name in sorted(unknown)]
    try:
        about = Metadata.from_raw(raw)
    except ExceptionGroup as errors:
        return faults + [f"{wheel.name}: {error}" for error in errors.exceptions]
    if tag is not None and tag != f"v{about.version}":
        faults.append(f"the tag {tag} should be v{about.version}, the version of {wheel.name}")
    return faults


def users_packages() -> set[str]:
    """Return the names of the packages that jqueue and the extras for users ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [packages for extra, packages in project["optional-dependencies"].items() if extra not in TOOLS]
    return {Requirement(each).name for each in itertools.chain(project["dependencies"], *extras)} - {"jqueue"}


def restricted(packages: Iterable[str], where: list[str] | None = None) -> list[str]:
    """Look for packages with a licence that is not permissive, or with none.

    Args:
        packages: names of installed packages.
        where: folders to look in; by default those of the running Python.
    """
    faults = []
    for name in sorted(packages):
        found = list(importlib.metadata.distributions(name=name, path=sys.path if where is None else where))
        if not found:
            faults.append(f"{name} is not installed, so its licence is unknown")
        elif not is_permissive(licence := _licence(found[0])):
            faults.append(
                f"{name} {found[0].version} has the licence {licence or 'unknown'!r}, which is not permissive"
            )
    return faults


def _licence(package: importlib.metadata.Distribution) -> str:
    """Return the licence that a package declares, as an SPDX expression if it is known as one."""
    expression, classifiers, text = (package.metadata.get_all(name) or [] for name in LICENCE_FIELDS)
    approved = [each for each in classifiers if each.startswith("License :: OSI Approved ::")]
    names = expression or approved or [each.strip().partition("\n")[0] for each in text]
    return " AND ".join(OLDER_NAMES.get(each, each) for each in names)


def is_permissive(expression: str) -> bool:
    """True if a licence expression asks for no more than notices. One with parentheses must be read by a person."""
    alternatives = expression.split(" OR ")
    return any(all(each in PERMISSIVE for each in alternative.split(" AND ")) for alternative in alternatives)


def environment(folder: Path, distribution: Path) -> Path:
    """Install a distribution with the extra `cli` in a fresh environment without pip, and return its interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command(
        *(sys.executable, "-m", "pip", "--python", python, "install", "-q"),
        *("-c", ROOT / "constraints.txt", f"{distribution}[cli]"),
    )
    return python


def works(python: Path, folder: Path, version: str) -> list[str]:
    """Do the job of `make run` with an installed jqueue, in a folder without the source."""
    folder.mkdir()
    shutil.copy(ROOT / "examples" / "checksums.py", folder)
    (folder / "files").mkdir()
    for number in range(100):
        (folder / "files" / f"{number}.txt").write_text(f"{number}\n" * number)
    try:
        told = command(python, "-c", "import jqueue; print(jqueue.__version__, jqueue.__file__)", folder=folder).split()
        if told[0] != version or not Path(told[1]).is_relative_to(python.parents[1]):
            return [f"{told[0]} at {told[1]} is imported instead of the installed {version}"]
        command(python, "-m", "jqueue", "--help", folder=folder)
        command(python, "checksums.py", "files", folder=folder)
    except RuntimeError as error:
        return [str(error)]
    return []


def bill_of_materials(python: Path, wheel: Path, version: str, epoch: str) -> Path:
    """Write the CycloneDX document of jqueue and the packages that its wheel brings, beside the wheel."""
    bill = wheel.with_name(f"jqueue-{version}.cdx.json")
    command(
        *(Path(sys.executable).with_name("cyclonedx-py"), "environment", python, "--pyproject", "pyproject.toml"),
        *("--mc-type", "library", "--output-reproducible", "-o", bill),
        SOURCE_DATE_EPOCH=epoch,
    )
    content = json.loads(bill.read_bytes())
    content["metadata"]["component"]["version"] = version  # pyproject.toml leaves it to jqueue/_version.py
    bill.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return bill


def unlisted(bill: Path) -> list[str]:
    """Look for packages that jqueue always needs, and that the bill of materials lacks."""
    content = json.loads(bill.read_bytes())
    listed = {each["name"] for each in content["components"]}
    return [f"{bill.name} lacks {name}" for name in ("cronsim", "msgspec", "pydantic", "tzdata") if name not in listed]


def strict(distributions: list[Path]) -> list[str]:
    """Check the distributions with twine, which also renders the README."""
    try:
        command(sys.executable, "-m", "twine", "check", "--strict", *distributions)
    except RuntimeError as error:
        return [str(error)]
    return []


def all_checks(folder: Path, dist: Path, tag: str | None, report: Callable[[str, list[str]], None]) -> None:
    """Build the distributions, check them, and put them into `dist` with their bill of materials."""
    epoch = command("git", "log", "-1", "--format=%ct").strip()
    one, other = [build(folder / name, umask, zone, seed, epoch) for name, umask, zone, seed in BUILDS]
    report(
        "two builds have the same bytes", [fault for pair in zip(one, other, strict=True) for fault in changed(*pair)]
    )
    [wheel] = [each for each in one if each.suffix == ".whl"]
    version = wheel.name.split("-")[1]
    report(f"the wheel has at most {MOST_BYTES:,} bytes", too_large(wheel))
    report("the wheel has the files of the commit", foreign(wheel, sources(folder / "commit", 0o022)))
    report("the metadata is valid", metadata(wheel, tag) + strict(one))
    report("the packages that users install have permissive licences", restricted(users_packages()))
    for number, each in enumerate(one):
        python = environment(folder / f"environment-{number}", each)
        report(f"{each.name} works when installed", works(python, folder / f"run-{number}", version))
        if each is wheel:
            bill = bill_of_materials(python, wheel, version, epoch)
            report("the bill of materials lists what the wheel brings", unlisted(bill))
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(dist)
    shutil.copytree(wheel.parent, dist)
