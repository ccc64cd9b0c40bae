"""Promises of every command: errors for people, nothing raw from a blob, widths, help, older formats."""

import asyncio
import compileall
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from jqueue import LocalFileSystemStorage, connect
from jqueue.cli.app import app
from jqueue.cli.on_queue import OpenedQueue, on_queue
from jqueue.domain.errors import QueueMissingError
from jqueue.testing.faults import FaultyStorage
from tests.cli.commands import SECRET, Blocking, process, refused, rows, run, text, values
from tests.cli.hostile import assert_harmless, fill

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "jqueue").rglob("*.py"))]

LOOKING = {
    "history": [],
    "ls": [],
    "show": ["dead"],
    "stats": [],
}
"""The commands that look, each with the arguments after its URL."""

CHANGING = {
    "cancel": ["later"],
    "configure": ["--dead-retention", "60s"],
    "limit": ["mail", "--running", "2"],
    "pause": ["mail"],
    "purge": ["--all", "--yes"],
    "redrive": ["--all", "--yes"],
    "resume": ["mail"],
    "schedule": ["nightly", "--cron", "0 2 * * *", "--entrypoint", "mail"],
    "update": ["later", "--delay", "0"],
}

OTHERS: dict[str, list[str]] = {"export": [], "metrics": [], "dashboard": []}
COMMANDS = {**LOOKING, **CHANGING, **OTHERS}
"""All commands that need a queue."""


GROUP: Any = typer.main.get_command(app)
ALL = {name: listed.imported() for name, listed in sorted(GROUP.commands.items())}
"""The commands that typer knows, by their names."""


# Errors


@pytest.mark.parametrize(
    ("url", "reason"),
    {
        "{}/missing.json": r"there is no queue at /\S+/missing\.json: check the URL; the first enqueue creates a queue",
        "{}": "is a folder",
        "": "the URL of a queue is empty",
        f"s3://key:{SECRET}@bucket": "the s3:// URL names a bucket, but no object in it",
        f"memory://?password={SECRET}": "has an unknown option",
        "memory://": "an in-memory queue is visible only to its own process",
    }.items(),
)
def test_a_url_without_a_queue_is_a_one_line_error_without_its_secrets(tmp_path, url, reason):
    for command in ("stats", "pause", "export"):
        assert re.search(reason, refused(command, url.format(tmp_path), *COMMANDS[command]))
    assert {"error": refused("stats", url.format(tmp_path))} == values("stats", url.format(tmp_path), status=2)
    assert [] == [*tmp_path.iterdir()]


def test_each_command_refuses_a_missing_and_a_wrong_queue_in_one_line_and_changes_nothing(tmp_path, path):
    content = f"this is no queue, {SECRET}"
    path.write_text(content)
    for command, arguments in COMMANDS.items():
        assert "there is no queue at" in (error := refused(command, tmp_path / "missing.json", *arguments)), command
        if command not in ("export", "metrics", "dashboard"):
            assert {"error": error} == values(command, tmp_path / "missing.json", *arguments, status=2)
        assert "is not a queue" in refused(command, path, *arguments), command
    assert [path] == [*tmp_path.iterdir()]
    assert content == path.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["s3://key:hunter2@bucket/queue.json"],
        ["doctor", "--url=s3://key:hunter2@bucket/queue.json"],
        ["doctor", "--json", "s3://key:hunter2@bucket/queue.json?secret=hunter2"],
    ],
)
def test_errors_about_wrong_arguments_contain_no_secrets(arguments):
    assert 2 == run(*arguments).exit_code  # and `run` looks for the secret


def test_a_missing_argument_is_told_with_the_place_of_the_url():
    for arguments in (["show"], ["show", "one"], ["limit", "mail"]):
        result = run(*arguments)
        assert 2 == result.exit_code
        assert "The first argument is the URL of the queue, unless JQUEUE_URL names it" in result.stderr


WRONG = {
    "ls --status=hunter2": "--status takes ready, scheduled, waiting, queued (all three), running",
    "ls --watch": "the output is not a terminal: use `jqueue ls`",
    "update --all": "give one of --delay DURATION, --run-at TIME and --priority NUMBER",
    "schedule n": 'give --cron "30 2 * * *" and --entrypoint NAME; or --remove, or --run-now',
    "schedule n --remove --run-now": "--reset and --remove, and no other option",
    "schedule n --remove --cron @daily": "--reset and --remove, and no other option",
    "schedule n --remove": "there is no cron entry of this name: `jqueue stats` lists them",
    "ls --sort hunter2": "--sort takes age, attempts, created, due",
    "cancel --holder '' --yes": "--holder is empty: give",
    "history --event hunter2": "--event takes ack, arrive, cancel, ",
    "pause ''": "entrypoint must be printable and not empty",
    "limit mail --rate 5": "give --rate and --per together",
    "configure --blob-bytes 5TB": "--blob-bytes takes a number of bytes, or one with a unit",
    "enqueue mail --delay tomorrow": "--delay takes seconds, or a number with a unit: 60, 90s, 15m",
    "enqueue mail --header no-text": "--header takes NAME=TEXT, and may be repeated",
    "enqueue mail --file absent": "the file 'absent' of the payload cannot be read: No such file or directory",
}
"""Commands with a wrong argument, without their URL, and the reasons."""


def test_a_wrong_argument_is_refused_in_one_line_and_changes_nothing(tmp_path):
    path = fill(tmp_path / "queue.json")
    before = path.read_bytes()
    for line, reason in WRONG.items():
        command, *more = shlex.split(line)
        assert reason in refused(command, path, *more), line
    assert before == path.read_bytes()


def test_at_a_terminal_a_command_says_after_a_second_what_it_waits_for(path, url_of, virtual, monkeypatch):
    async def nothing(opened: OpenedQueue) -> None: ...

    ends = os.openpty()
    with os.fdopen(ends[0], "rb", buffering=0) as keyboard, os.fdopen(ends[1], "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        for latency in (0.1, 9.0):
            storage = FaultyStorage(LocalFileSystemStorage(path), latency=latency)
            with pytest.raises(QueueMissingError, match="there is no queue"):
                on_queue(url_of(storage), nothing)
        print("the end", file=screen, flush=True)
        said = b""
        while not said.endswith(b"the end\r\n"):
            said += keyboard.read(65536)
    assert said.startswith(b"jqueue: waiting for ")
    assert b", for up to 15 s\r\n" in said
    assert 1 == said.count(b"waiting for")


# Contents of queues


def test_nothing_of_a_blob_commands_the_terminal_or_forges_a_line(tmp_path):
    path = fill(tmp_path / "queue.json")
    before = path.read_bytes()
    for command, arguments in LOOKING.items():
        for option in ([], ["--json"]):
            result = run(command, path, *arguments, *option)
            assert (0, "", True) == (result.exit_code, result.stderr, result.stdout != ""), command
            assert_harmless(result.stdout)
        assert r"\x1b[2J" in run(command, path, *arguments).stdout, command
    assert before == path.read_bytes()
    assert_harmless(run("cancel", path, "l").stderr)  # several ids begin so


def test_no_line_is_wider_than_the_terminal(tmp_path, monkeypatch):
    """The help of every command, and a list in a terminal. In a pipe, nothing is cut."""
    for words in ("", *ALL):
        shown = run(*words.split(), "--help", COLUMNS="80").stdout
        assert max(map(len, shown.splitlines())) <= 80, words
        assert shown.startswith("Usage: ")
    assert "..." not in run("--help").stdout.partition("Commands:")[2], "no summary is cut"
    queue = Blocking(tmp_path / "queue.json")
    queue.kill("one", "two", entrypoint="an_entrypoint_with_a_long_name_" * 3, error="the server said 451 " * 20)
    assert max(map(len, run("ls", queue.path).stdout.splitlines())) > 140
    for job_id in ("0b5a4f0e-6c7e-17", "0b5a4f0e-6c7e-18-4a36", "ffffffff-93f0-4b7e", "x", "x-1"):
        queue.enqueue("mail", b"", job_id=job_id)
    keyboard, terminal = os.openpty()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    with os.fdopen(terminal, "w") as screen, monkeypatch.context() as here:
        here.setattr(sys, "stdout", screen)
        app(["ls", str(queue.path)], standalone_mode=False)
        screen.flush()
        seen = b""
        while b"7 jobs" not in seen:
            seen += os.read(keyboard, 65536)
        lines = seen.decode().splitlines()
    os.close(keyboard)
    assert max(map(len, lines)) <= 80
    shown = {"one", "two", "0b5a4f0e-6c7e-17", "0b5a4f0e-6c7e-18", "ffffffff", "x", "x-1"}
    assert {"id", "7", *shown} == {line.split()[0] for line in lines if line}, "ids are cut where they differ"


def test_the_help_lists_each_command_with_the_first_paragraph_of_its_own():
    listed = " ".join(run("--help", COLUMNS="200").stdout.split())
    for name, command in ALL.items():
        summary = " ".join(command.help.partition("\n\n")[0].split())
        assert f"{name} {summary}" in listed, name


def test_a_path_that_is_longer_than_a_line_stays_whole(tmp_path):
    path = tmp_path / ("a" * 100) / "queue.json"
    path.parent.mkdir()
    assert str(path) in run("init", path).stdout.split()


# Help and grammar


CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:`|\$ |bin/|^)jqueue ([a-z][a-z-]*)([^`\n#;|&]*)", re.MULTILINE)

NEEDLESS = {"--cron", "--entrypoint", "--file", "--key-per", "--new-token", "--per", "--stale", "--tls-key"}
"""Options that do nothing, or must be given with another one, unless they are given."""


def test_the_help_of_each_option_with_a_value_tells_its_default():
    silent = {
        (name, parameter.opts[0])
        for name, command in ALL.items()
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.is_flag and not parameter.show_default
        if not re.search("^Only |[Bb]y default|A new queue", parameter.help) and parameter.opts[0] not in NEEDLESS
    }
    assert {("update", name) for name in ("--delay", "--run-at", "--priority")} == silent


def test_every_command_and_option_named_in_a_text_exists():
    checked = 0
    for page in TEXTS:
        content = page.read_text(encoding="utf-8")
        for part in (*re.findall(r"`jqueue [^`]*`", content), *CONSOLE.findall(content)):
            for match in NAMED.finditer(part):
                assert match[1] in ALL, f"{page} names `jqueue {match[1]}`"
                known = {"--help", *(name for parameter in ALL[match[1]].params for name in parameter.opts)}
                assert set(re.findall(r"(?<!\S)--[a-z][a-z-]+", match[2])) <= known, f"{page}: {match[0]}"
                checked += 1
    assert checked > 30


def test_the_page_on_the_command_line_lists_every_command():
    page = (ROOT / "docs/guide/command-line.md").read_text(encoding="utf-8")
    assert ALL.keys() == set(re.findall(r"^\| `jqueue ([a-z][a-z-]*)", page, re.MULTILINE))


IN_ENVIRONMENT = {
    "ls": "here",
    "ls other": "other",
    "pause mail": "here",
    "pause other mail": "other",
    "show one": "here",
    "show other.json one": "other.json",
    "cancel one": "here",
    "cancel other.json --all --yes": "other.json",
    "cancel other.json one": "other.json",
    "enqueue mail text": "here",
    "enqueue mail other.json": "here",
    "enqueue other.json mail": "other.json",
    "enqueue other mail text": "other",
    "history file://{}/other.json": "other.json",
    "show https://example.org/one": "here",
    "update -- one": "here",
    "repair": "here",
}
"""Commands with JQUEUE_URL set to `here`, and the queue that they are for."""


@pytest.mark.parametrize("line", IN_ENVIRONMENT)
def test_the_environment_names_the_queue_unless_an_argument_does(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JQUEUE_URL", "here")
    command, *arguments = line.format(tmp_path).split()
    context = ALL[command].make_context(command, arguments, resilient_parsing=True)
    assert IN_ENVIRONMENT[line] == context.params["url"].rpartition("/")[2]


def test_an_argument_too_many_is_refused_and_an_empty_variable_names_no_queue(path, queue, monkeypatch):
    monkeypatch.setenv("JQUEUE_URL", str(path))
    queue.enqueue("mail", b"", job_id="-one")
    assert "unexpected extra argument" in run("ls", path, path).stderr
    text("pause", "mail")
    assert queue.read_state().entrypoints["mail"].paused
    assert "the job (mail) was removed" == text("cancel", "--", "-one")
    monkeypatch.setenv("JQUEUE_URL", "")
    assert 2 == run("ls").exit_code


# Older formats


LACKING = {
    "pause mail": "limits",
    "schedule n --cron @daily --entrypoint x": "schedules",
    "enqueue mail --unique-key k": "unique_keys",
    "configure --dead-retention 60s": "retention",
    "history": "",
}
"""Commands, and the capability that an older format lacks for them."""


@pytest.mark.parametrize(
    "url",
    [
        "dirq://{}/queue?kind=simple",
        "vsqs://{}/queue",
        "textq://{}/queue.tq",
    ],
)
def test_a_queue_of_an_older_program_is_looked_at_and_changed_and_what_it_lacks_is_named(tmp_path, url):
    url = url.format(tmp_path)
    assert "is created by its first job" in refused("init", url)
    first = run("enqueue", url, "mail", SECRET, "--max-attempts", "1")
    assert (0, True) == (first.exit_code, "there was no queue at" in first.stderr)

    async def fail():
        async with connect(url) as queue:
            [claimed] = await queue.dequeue("mail")
            await queue.nack(claimed, error="no such address")

    asyncio.run(fail())
    text("enqueue", url, "mail", SECRET, "--header", "a=b")
    assert (1, 1, None) == tuple(values("stats", url)[name] for name in ("ready", "dead", "version"))
    assert {"ready", "dead"} == {job["status"] for job in rows("ls", url)}
    if not url.startswith("dirq"):
        for command, missing in LACKING.items():
            verb, *more = shlex.split(command)
            assert f"the format of this queue has no {missing}" in refused(verb, url, *more)
    assert 1 == values("redrive", url, "--error", "address", "--yes")["redriven"]
    assert 2 == values("cancel", url, "--all", "--yes")["cancelled"]
    assert "no jobs" in run("stats", url).stdout, "an empty queue exists"
    doctor = run("doctor", url)
    assert (2, True) == (doctor.exit_code, "a queue of an older program" in doctor.output)


# As users start it


def test_without_typer_one_line_names_the_install_command():
    result = process(
        "stats", "queue.json", code="import sys; sys.modules['typer'] = None; import jqueue.cli as cli; cli.main()"
    )
    assert 2 == result.returncode
    assert "jqueue: the command line needs typer and rich: pip install 'jqueue[cli]'\n" == result.stderr


@pytest.mark.parametrize("kind", ["an archive", "no sources"])
def test_the_help_lists_all_commands_of_an_archive_and_of_a_package_without_sources(kind, tmp_path):
    place = tmp_path / "packages"
    if kind == "an archive":
        shutil.make_archive(str(place), "zip", ROOT, "jqueue")
        place = place.with_suffix(".zip")
    else:
        shutil.copytree(ROOT / "jqueue", place / "jqueue")
        compileall.compile_dir(place, quiet=2, legacy=True)
        for path in place.rglob("*.py"):
            path.unlink()
    call = f"import sys; sys.path.insert(0, {str(place)!r}); from jqueue.cli.app import app; app(['--help'])"
    ended = subprocess.run([sys.executable, "-c", call], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ALL.keys() <= set(ended.stdout.split())
    assert ("Add a job, and print its id." in ended.stdout) is (kind == "an archive")


def test_ctrl_c_amid_the_imports_prints_no_traceback():
    code = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from jqueue.cli import main
main()
"""
    result = process("--version", code=code)
    assert (130, "", "") == (result.returncode, result.stdout, result.stderr)


@pytest.mark.wide
def test_a_closed_pipe_ends_quietly_and_an_output_that_is_not_utf_8_gets_escapes(path, queue):
    queue.enqueue("漢字")
    shell = f'"{sys.executable}" -m jqueue'
    code = "import os, sys; sys.exit(os.system(sys.argv[1]))"
    for command in ("ls", "export"):
        assert "" == process(f"({shell} {command} {path}; true) | true", code=code).stderr
    shown = process("ls", path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (0, "", True) == (shown.returncode, shown.stderr, r"\u6f22\u5b57" in shown.stdout)


@pytest.mark.wide
@pytest.mark.parametrize("output", ["> /dev/full", ">&-"])
def test_an_output_that_cannot_be_written_is_one_line_and_a_status(path, queue, output):
    """A job that was enqueued before the command could not print its id stays in the queue."""
    shell, code = f'"{sys.executable}" -m jqueue', "import os, sys; sys.exit(os.system(sys.argv[1]))"
    for line in ("enqueue {} mail", "ls {} --json"):
        said = process(f"{shell} {line.format(path)} {output}; echo $? >&2", code=code).stderr
        assert re.fullmatch(r"jqueue: the standard output cannot be written: [\w ]+\. .*\n2\n", said), line
    assert 1 == len(queue.jobs())


@pytest.mark.wide
def test_the_completion_of_a_shell_is_installed_and_works_in_a_real_bash(tmp_path):
    (tmp_path / "jqueue").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jqueue "$@"\n')
    (tmp_path / "jqueue").chmod(0o755)
    script = (
        'eval "$(jqueue --show-completion bash)"; COMP_WORDS=(jqueue ls --status r); COMP_CWORD=3; '
        '_jqueue_completion jqueue; echo "${COMPREPLY[@]}"'
    )
    code = "import subprocess, sys; sys.exit(subprocess.call(['bash', '-c', sys.argv[1]]))"
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",  # the shell is named: no process above has one
    }
    assert ["ready", "running"] == sorted(process(script, code=code, **environment).stdout.split())
    assert "zsh completion installed" in process("--install-completion", "zsh", **environment).stdout
    assert any("#compdef jqueue" in each.read_text() for each in tmp_path.rglob("*_jqueue*"))
