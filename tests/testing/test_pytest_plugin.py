"""The fixtures work in another project with any plugin for async tests, and do not interfere with its tests."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]

LOOP_SCOPE = ["-o", "asyncio_default_fixture_loop_scope=function"]

APP = """
from jqueue.worker import Context, Retry, Worker

worker = Worker()

@worker.handler("greet")
async def greet(name: str, ctx: Context) -> str:
    if ctx.attempt == 1:
        raise Retry(after=3600)
    return f"hello {name}"
"""

ASYNC_TESTS = """
import app
import pytest

MARK

async def test_a_job_is_run_hours_later(jqueue_queue, jqueue_clock, jqueue_worker):
    began = jqueue_clock.now()
    await app.greet.using(jqueue_queue, delay=3600).enqueue("Ada")
    report = await jqueue_worker.run_until_idle(app.worker)
    assert ["failed", "succeeded"] == report.outcomes
    assert "hello Ada" == report[1].result
    assert 7200 == (jqueue_clock.now() - began).total_seconds()

async def test_each_test_has_its_own_queue(jqueue_queue, jqueue_worker):
    assert 0 == len(await jqueue_worker.run_until_idle(app.worker))

async def test_a_job_is_run_at_once(jqueue_inline, jqueue_worker):
    queue = jqueue_inline(app.worker)
    job = await app.greet.using(keep_result=60).enqueue("Ada")
    assert ["failed", "succeeded"] == jqueue_worker.report.outcomes
    assert "hello Ada" == await app.greet.result(job)

async def test_the_former_queue_is_bound_again():
    assert () == app.worker.queues()
"""

OWN_FIXTURES = """
import pytest

@pytest.fixture
def jqueue_queue():
    return "my queue"

@pytest.fixture
def jqueue_worker():
    return "my worker"

@pytest.fixture
def jqueue_clock(jqueue_queue):
    return f"the clock of {jqueue_queue}"
"""

OWN_TESTS = """
def test_the_fixtures_of_the_project_are_used(jqueue_queue, jqueue_worker, jqueue_clock):
    assert ("my queue", "my worker", "the clock of my queue") == (jqueue_queue, jqueue_worker, jqueue_clock)
"""


@pytest.fixture
def project(tmp_path):
    """Return a function that writes a project, runs its tests with our plugin, and returns pytest's output."""

    def run(*arguments, **files):
        for name, text in {"app": APP, **files}.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        # Named by its module, because this environment may be older than the entry point.
        plugins = ["no:jqueue", "jqueue.testing.pytest_plugin", "no:cacheprovider"]
        options = ["-W", "error", "--rootdir", str(tmp_path), "-c", os.devnull, *arguments, str(tmp_path)]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *(part for each in plugins for part in ("-p", each)), *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        )
        assert 0 == ended.returncode, ended.stdout + ended.stderr
        return ended.stdout

    return run


@pytest.mark.parametrize(
    ("arguments", "mark"),
    [
        pytest.param(["--asyncio-mode=auto", *LOOP_SCOPE, "-p", "no:anyio"], "", marks=pytest.mark.full),
        (["--asyncio-mode=strict", *LOOP_SCOPE], "pytestmark = pytest.mark.asyncio"),
        (["-p", "no:asyncio", "-k", "not trio"], "pytestmark = pytest.mark.anyio"),
    ],
    ids=["auto", "strict", "anyio"],
)
def test_the_fixtures_work_in_async_tests(project, arguments, mark):
    if "anyio" in mark:
        pytest.importorskip("anyio")
    backend = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n" if "anyio" in mark else ""
    said = project(*arguments, test_async=ASYNC_TESTS.replace("MARK", mark + "\n\n" + backend))
    assert "4 passed" in said


def test_fixtures_of_a_project_override_ours_and_no_async_plugin_is_needed(project):
    said = project("-p", "no:asyncio", "-p", "no:anyio", conftest=OWN_FIXTURES, test_own=OWN_TESTS)
    assert "1 passed" in said
