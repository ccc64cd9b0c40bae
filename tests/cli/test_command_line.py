"""`jqueue` as users start it: in its own process, with a terminal of 80 columns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import jqueue
from jqueue.cli.app import app

ROOT = Path(__file__).parents[2]


def start(*arguments, code=None, **environment):
    command = [sys.executable, "-W", "error", *(["-c", code] if code else ["-m", "jqueue"]), *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR", "TERM")}
    return subprocess.run(
        command, cwd=ROOT, env={**clean, "COLUMNS": "80", **environment}, capture_output=True, text=True, timeout=60
    )


def test_a_file_is_safe_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "queue.json"
    path.write_bytes(b"the user's")
    result = start("doctor", path)
    assert (0, "") == (result.returncode, result.stderr)
    assert "Safe." in result.stdout
    assert "A file serves the processes of one machine." in result.stdout
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80
    assert [path] == list(tmp_path.iterdir())
    assert b"the user's" == path.read_bytes()


def test_json_output_is_one_object(tmp_path):
    result = start("doctor", "--json", tmp_path / "queue.json")
    found = json.loads(result.stdout)
    assert (True, 0, None, []) == tuple(found[name] for name in ("safe", "status", "error", "left"))
    assert (jqueue.__version__, str(tmp_path / "queue.json")) == (found["jqueue"], found["object"])
    assert {"passed"} == {check["outcome"] for check in found["checks"]}
    assert [] == list(tmp_path.iterdir())


def test_the_doctor_shows_its_progress_in_a_terminal():
    result = start("doctor", "memory://", FORCE_COLOR="1")
    assert 0 == result.returncode
    assert "/12" in result.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_typer_or_rich_gives_one_line_with_the_install_command(package):
    code = f"import sys; sys.modules[{package!r}] = None; from jqueue.cli import main; main()"
    result = start("stats", "queue.json", code=code)
    assert 2 == result.returncode
    assert "jqueue: the command line needs typer and rich: pip install 'jqueue[cli]'\n" == result.stderr


def test_a_missing_pytest_gives_an_error_with_the_install_command():
    code = "import sys; sys.modules['pytest'] = None; from jqueue.testing import StorageContract"
    result = start(code=code)
    assert 1 == result.returncode
    last = result.stderr.splitlines()[-1]
    assert 'ImportError: StorageContract of jqueue.testing needs pytest: pip install "jqueue[testing]"' == last


def test_a_missing_module_of_jqueue_is_not_mistaken_for_typer():
    code = "import sys; sys.modules['jqueue.cli.load'] = None; from jqueue.cli import main; main()"
    result = start("doctor", "queue.json", code=code)
    assert 1 == result.returncode
    assert "jqueue.cli.load" in result.stderr


INTERRUPTED_AT_TYPER = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from jqueue.cli import main
main()
"""


def test_ctrl_c_amid_the_imports_prints_no_traceback():
    result = start("--version", code=INTERRUPTED_AT_TYPER)
    assert (130, "", "") == (result.returncode, result.stdout, result.stderr)


def test_the_installed_script_calls_the_same_main():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.scripts]\njqueue = "jqueue.cli:main"\n' in text


def invoke(*arguments):
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, list(arguments), catch_exceptions=False)


def test_the_version_is_printed():
    assert (0, f"jqueue {jqueue.__version__}\n") == ((result := invoke("--version")).exit_code, result.stdout)


def test_help_lists_the_commands_and_describes_the_doctor():
    commands = invoke("--help").stdout
    for command in ("doctor", "worker", "stats", "dead", "redrive", "purge", "cancel", "pause", "resume"):
        assert f" {command} " in commands
    text = invoke("doctor", "--help").stdout
    assert "The queue itself is not written" in " ".join(text.split())
    assert "--json" in text
    assert 2 == invoke().exit_code


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket", "jqueue doctor: the s3:// URL names a bucket, but no object in it"),
        ("nosuch://bucket/key", "jqueue doctor: the scheme "),
        ("", "jqueue doctor: the URL of a queue is empty"),
        ("..", "names no file"),
        ("s3://key:hunter2@bucket", "jqueue doctor: the s3:// URL names a bucket"),
        ("s3://key:hunter2@bucket/queue.json?secret=hunter2", "has an unknown option"),
        ("memory://?password=hunter2", "has an unknown option"),
    ],
)
@pytest.mark.parametrize("option", [[], ["--json"]], ids=["text", "json"])
def test_a_wrong_url_gives_a_one_line_error_without_its_secrets(url, said, option):
    result = invoke("doctor", url, *option)
    assert 2 == result.exit_code
    assert "hunter2" not in result.output
    if option:
        found = json.loads(result.stdout)
        assert said.removeprefix("jqueue doctor: ") in found["error"]
        assert (None, 2) == (found["safe"], found["status"])
    else:
        assert said in result.stderr
        assert ("", 1) == (result.stdout, len(result.stderr.splitlines()))


@pytest.mark.parametrize(
    "arguments",
    [
        ["s3://key:hunter2@bucket/queue.json"],
        ["doctor", "memory://", "s3://key:hunter2@bucket/queue.json"],
        ["doctor", "--url=s3://key:hunter2@bucket/queue.json"],
        ["--json=s3://key:hunter2@bucket/queue.json", "doctor"],
        ["doctor", "--json=s3://key:hunter2@bucket/queue.json"],
    ],
)
def test_errors_about_wrong_arguments_contain_no_secrets(arguments):
    result = invoke(*arguments)
    assert 2 == result.exit_code
    assert "hunter2" not in result.output


def test_an_unreachable_store_cannot_be_used():
    url = "s3://key:hunter2@bucket/queue.json?endpoint_url=http://127.0.0.1:1&region_name=us-east-1"
    result = invoke("doctor", url)
    assert 2 == result.exit_code
    assert "s3://bucket/queue.json.doctor-" in result.stderr
    assert "127.0.0.1:1 did not answer (EndpointConnectionError: Connection refused)" in result.stderr
    assert "hunter2" not in result.output


def test_a_path_below_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    result = invoke("doctor", str(tmp_path / "file" / "queue.json"))
    assert 2 == result.exit_code
    assert "a part of its path is not a folder" in result.stderr
