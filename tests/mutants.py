"""Mutants: small faults in the code of `domain` and `core`, one at a time, to see whether the tests notice them.

`python -m tests.mutants --seed 1` draws faults at random and copies the project with all of them built in, each behind
a switch. One run of the tests with every switch off records which tests reach which fault. Then the tests are collected
once. For each fault a forked process switches it on and runs the tests that reach it, the quickest first, until one
fails. The end lists the faults that no test noticed.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("jqueue/domain", "jqueue/core")
SWITCH = "jqueue/_mutants.py"
SWITCHES = '''"""Switches of the faults that tests/mutants.py has built into this copy."""

import os

ON = int(os.environ.get("JQUEUE_MUTANT", "-1"))
RECORD = os.environ.get("JQUEUE_MUTANTS_RECORD", "")
reached = {}


def on(number):
    if RECORD:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if test and reached.get(number) != test:
            reached[number] = test
            with open(f"{RECORD}/{os.getpid()}", "a") as file:
                file.write(f"{number} {test}\\n")
    return number == ON
'''
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
}
SLOWER, LONGEST = 5.0, 600.0
"""Tests that take so many times their time and half a minute, or so many seconds, hang: the fault is noticed."""


class Mutator(ast.NodeTransformer):
    """Finds the places for faults in a module, and puts switches at those that are chosen.

    Args:
        chosen: number of the switch for each chosen place, places counted from 0 in the order of the walk.
    """

    def __init__(self, chosen: dict[int, int]) -> None:
        self.chosen = chosen
        self.places: list[str] = []
        self._in_function = False

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            outside, self._in_function = self._in_function, True
            self._visit_body(node)
            self._in_function = outside
            return node
        if isinstance(node, ast.ClassDef):
            self._visit_body(node)
            return node
        if isinstance(node, ast.JoinedStr | ast.Assert | ast.match_case) or not self._in_function:
            return node if self._in_function else self.generic_visit(node)
        fault = _fault(node)
        number = None
        if fault is not None:
            number = self.chosen.get(len(self.places))
            self.places.append(f"{node.lineno} {ast.unparse(node).splitlines()[0]} -> {ast.unparse(fault)}")  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                node.value = self.visit(node.value)  # type: ignore[assignment]
            whole: ast.AST = node
        else:
            whole = self.generic_visit(node)
        if number is None or fault is None:
            return whole
        switch = ast.parse(f"_mutant_on({number})", mode="eval").body
        if isinstance(whole, ast.stmt):
            assert isinstance(fault, ast.stmt)
            return ast.If(test=switch, body=[fault], orelse=[whole])
        assert isinstance(fault, ast.expr)
        assert isinstance(whole, ast.expr)
        return ast.IfExp(test=switch, body=fault, orelse=whole)

    def _visit_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        node.body = [statement for line in node.body if isinstance(statement := self.visit(line), ast.stmt)]


def _fault(node: ast.AST) -> ast.AST | None:
    """Return a faulty version of an expression or statement, or None if there is none for it."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            return ast.Compare(left=node.left, ops=[SWAPS[type(op)]()], comparators=node.comparators)
        case ast.BoolOp():
            return ast.BoolOp(op=SWAPS[type(node.op)](), values=node.values)
        case ast.BinOp(op=op) if type(op) in SWAPS:
            return ast.BinOp(left=node.left, op=SWAPS[type(op)](), right=node.right)
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.IfExp():
            return ast.IfExp(test=node.test, body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool(truth)):
            return ast.Constant(not truth)
        case ast.Constant(value=int(number) | float(number)):
            return ast.Constant(number + 1)
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            return ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign() | ast.Delete():
            return ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return ast.Pass()
        case ast.Continue():
            return ast.Break()
    return None


def build(copy: Path, seed: int, count: int, same: list[str] | None = None) -> list[str]:
    """Copy the project, build faults into it, and return what each of them is.

    Args:
        copy: folder for the copy.
        seed: what draws the faults.
        count: their number.
        same: instead, these faults of another version of the project, as far as they can be made in this one.
    """
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    (copy / SWITCH).write_text(SWITCHES, encoding="utf-8")
    places: list[tuple[str, int]] = []
    texts: dict[tuple[str, int], str] = {}
    for room in ROOMS:
        for path in sorted((copy / room).rglob("*.py")):
            module, name = Mutator({}), path.relative_to(copy).as_posix()
            module.visit(ast.parse(path.read_bytes()))
            for place, text in enumerate(module.places):
                places.append((name, place))
                texts[name, place] = f"{name}:{text}"
    if same is None:
        chosen = random.Random(seed).sample(places, min(count, len(places)))
    else:
        chosen = []
        for fault in same:
            text, line = _parted(fault)
            alike = [each for each in places if each not in chosen and _parted(texts[each])[0] == text]
            chosen += sorted(alike, key=lambda each: abs(_parted(texts[each])[1] - line))[:1]
    by_file: dict[str, dict[int, int]] = collections.defaultdict(dict)
    for number, (name, place) in enumerate(chosen):
        by_file[name][place] = number
    for name, numbers in by_file.items():
        tree = Mutator(numbers).visit(ast.parse((copy / name).read_bytes()))
        assert isinstance(tree, ast.Module)
        after = sum(isinstance(line, ast.ImportFrom) and line.module == "__future__" for line in tree.body)
        after += ast.get_docstring(tree) is not None
        tree.body.insert(after, ast.parse("from jqueue._mutants import on as _mutant_on").body[0])
        (copy / name).write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    return [texts[each] for each in chosen]


def _parted(fault: str) -> tuple[str, int]:
    """Return a fault without the number of its line, which changes with the lines above, and that number."""
    name, text = fault.split(":", 1)
    line, rest = text.split(" ", 1)
    return f"{name}:{rest}", int(line)


# The hooks of pytest: with JQUEUE_MUTANTS_TIMES it notes the time of each test that passes, with JQUEUE_MUTANTS_PLAN it
# runs, for each fault, the tests that reach it.

failures: list[str] = []
times: dict[str, float] = collections.defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    times[_plain(report.nodeid)] += report.duration
    if report.failed:
        failures.append(_plain(report.nodeid))


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = os.environ.get("JQUEUE_MUTANTS_TIMES")
    if target and not hasattr(session.config, "workerinput"):
        passed = {test: seconds for test, seconds in times.items() if test not in failures}
        Path(target).write_text(json.dumps(passed), encoding="utf-8")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if "JQUEUE_MUTANTS_PLAN" not in os.environ:
        return None
    plan = json.loads(Path(os.environ["JQUEUE_MUTANTS_PLAN"]).read_text(encoding="utf-8"))
    items = {_plain(item.nodeid): item for item in session.items}
    running: dict[int, tuple[str, float, float]] = {}
    waiting = list(plan["reached"].items())
    with Path(plan["results"]).open("a", encoding="utf-8") as results:
        while waiting or running:
            while waiting and len(running) < plan["processes"]:
                number, tests = waiting.pop(0)
                chosen = [items[test] for test in tests if test in items]
                limit = min(30 + SLOWER * sum(plan["seconds"][test] for test in tests), LONGEST)
                begun = time.monotonic()
                running[_judge(session, int(number), chosen)] = (number, begun, begun + limit)
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                number, begun, _ = running.pop(pid)
                noticed = status != 0
                results.write(json.dumps([int(number), noticed, round(time.monotonic() - begun, 1)]) + "\n")
                results.flush()
                _end(pid)
                continue
            for pid, (_, _, end) in running.items():
                if time.monotonic() > end:
                    _end(pid)
            time.sleep(0.02)
    return True


def _judge(session: pytest.Session, number: int, items: list[pytest.Item]) -> int:
    """Run tests with a fault switched on, in a process of its own that fails at the first of them that fails."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.environ["JQUEUE_MUTANT"] = str(number)
    sys.modules["jqueue._mutants"].ON = number  # type: ignore[attr-defined]
    silence = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(silence, descriptor)
    failures.clear()
    try:
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failures:
                session._setupstate.teardown_exact(None)  # noqa: SLF001 - pytest has no other way
                break
    except BaseException:
        os._exit(1)
    os._exit(1 if failures else 0)


def _end(pid: int) -> None:
    """End a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _plain(test: str) -> str:
    """Return the id of a test without the group that pytest-xdist adds."""
    return test.rsplit("@", 1)[0] if "@" in test.rsplit("]", 1)[-1] else test


def _reached(record: Path) -> Iterator[tuple[int, str]]:
    for file in record.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            number, test = line.split(" ", 1)
            yield int(number), _plain(test.rsplit(" (", 1)[0])


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    options.add_argument("--seed", type=int, default=1, help="what draws the faults")
    options.add_argument("--count", type=int, default=300, help="number of faults")
    options.add_argument("--same", type=Path, help="instead of a seed: the faults.json of a run on another version")
    options.add_argument("--processes", type=int, default=2, help="number of test processes at a time")
    options.add_argument("--folder", type=Path, help="where the copy and the results go, and are taken up again")
    options.add_argument("tests", nargs="*", help="arguments for pytest: the tests to run, or markers")
    chosen = options.parse_args()
    folder = (chosen.folder or Path(tempfile.mkdtemp())).absolute()
    copy, record, durations = folder / "copy", folder / "record", folder / "times.json"
    if not copy.exists():
        copy.mkdir(parents=True)
        same = json.loads(chosen.same.read_text(encoding="utf-8")) if chosen.same else None
        faults = build(copy, chosen.seed, chosen.count, same)
        (folder / "faults.json").write_text(json.dumps(faults, indent=0), encoding="utf-8")
    faults = json.loads((folder / "faults.json").read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants", "-p", "no:cacheprovider", *chosen.tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    if not durations.exists():
        record.mkdir()
        print(f"recording which tests reach which of {len(faults)} faults, in {folder}", flush=True)
        subprocess.run(
            [*command, f"--numprocesses={chosen.processes}", "--dist=loadgroup"],
            cwd=copy,
            env={**environment, "JQUEUE_MUTANTS_RECORD": str(record), "JQUEUE_MUTANTS_TIMES": str(durations)},
            check=False,
        )
    seconds = json.loads(durations.read_text(encoding="utf-8"))
    reached: dict[int, set[str]] = {number: set() for number in range(len(faults))}
    for number, test in _reached(record):
        if test in seconds:
            reached[number].add(test)
    results = folder / "results.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    plan = {
        "results": str(results),
        "processes": chosen.processes,
        "seconds": seconds,
        "reached": {
            number: sorted(tests, key=seconds.__getitem__)
            for number, tests in reached.items()
            if tests and number not in {row[0] for row in done}
        },
    }
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    judging = {**environment, "JQUEUE_MUTANTS_PLAN": str(folder / "plan.json")}
    subprocess.run(command, cwd=copy, env=judging, check=False, stdout=subprocess.DEVNULL)
    done = [json.loads(line) for line in results.read_text().splitlines()]
    noticed = {row[0] for row in done if row[1]}
    for number, fault in enumerate(faults):
        if number not in noticed:
            print(f"not noticed ({len(reached[number])} tests reach it): {number} {fault}")
    print(f"seed {chosen.seed}: {len(noticed)} of {len(faults)} faults noticed, {len(done)} of them reached by tests")


if __name__ == "__main__":
    main()
