"""What holds for every command: errors for people, nothing raw from a blob, widths, help, older formats."""

import asyncio
import itertools
import os
import re
import sys
from pathlib import Path

import pytest
import typer

from jqueue import connect
from jqueue.cli.app import app
from tests.cli.commands import SECRET, Blocking, process, refused, rows, run, text, values
from tests.cli.hostile import assert_harmless, fill

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "jqueue").rglob("*.py"))]

LOOKING = {
    "at": ["0s", "--list"],
    "dead": [],
    "history": [],
    "ls": [],
    "schedules": [],
    "show": ["dead"],
    "stats": [],
    "workers": [],
}
"""The commands that look, each with the arguments after its URL."""

CHANGING = {
    "cancel": ["later"],
    "configure": ["--aging", "60"],
    "limit": ["mail", "--running", "2"],
    "pause": ["mail"],
    "purge": ["--yes"],
    "redrive": ["--all"],
    "reprioritise": ["--all", "--priority", "1"],
    "requeue-stale": ["--timeout", "5m"],
    "reschedule": ["--all", "--delay", "60"],
    "resume": ["mail"],
    "run-now": ["later"],
    "schedule": ["nightly", "--cron", "0 2 * * *", "--entrypoint", "mail"],
    "unschedule": ["nightly"],
}

OTHERS = {"edit": ["--settings"], "drop-segment": ["name", "--yes"], "export": [], "metrics": [], "dashboard": []}
COMMANDS = {**LOOKING, **CHANGING, **OTHERS}
"""All commands that need a queue."""


def nested(group, path=()):
    for name, command in sorted(group.commands.items()):
        yield (*path, name), command
        yield from nested(command, (*path, name)) if hasattr(command, "commands") else ()


ALL = dict(nested(typer.main.get_command(app)))
"""The commands that typer knows, by the words that call them."""


# Errors


WRONG = {
    "{}/missing.json": r"there is no queue at /\S+/missing\.json: check the URL; the first enqueue creates a queue",
    "{}/misspelled/queue.json": r"there is no queue: the folder '/\S+/misspelled' does not exist; correct the path",
    "file://{}/misspelled/queue.json": r"there is no queue: the folder '/\S+/misspelled' does not exist",
    "{}": "is a folder",
    "": "the URL of a queue is empty",
    "nosuch://bucket/key": "the scheme of this URL is unknown",
    f"s3://key:{SECRET}@bucket": "the s3:// URL names a bucket, but no object in it",
    f"memory://?password={SECRET}": "has an unknown option",
    "memory://": "an in-memory queue is visible only to its own process",
    "vsqs://{}/missing": "there is no queue at",
}
"""URLs without a queue, and what a command says of them."""


@pytest.mark.parametrize("url", WRONG)
def test_a_url_without_a_queue_is_a_one_line_error_without_its_secrets(tmp_path, url):
    target = url.format(tmp_path)
    for command, arguments in COMMANDS.items():
        if command == "dashboard" and not url.startswith(("{", "s3")):
            continue  # it has errors of its own
        error = refused(command, target, *arguments)
        assert re.search(WRONG[url], error), (command, error)
        if command not in ("export", "metrics", "dashboard"):
            assert {"error": error} == values(command, target, *arguments, status=2)
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (f"this is no queue, {SECRET}", "is not a queue"),
        ('{"format": 3, "jobs": {}}', "has format 3, and this version of jqueue reads only format 2"),
        ('{"format": 2, "version": 1, "queue": "q", "critical": ["tomorrow"], "jobs": {}}', "upgrade jqueue"),
        ('{"format": 2, "version": 1, "queue": "q", "jobs"', "seems to be cut off"),
    ],
)
def test_what_is_not_a_queue_of_ours_is_a_one_line_error_and_stays_unchanged(path, content, reason):
    path.write_text(content)
    for command, arguments in {**COMMANDS, "enqueue": ["mail"]}.items():
        assert reason in refused(command, path, *arguments), command
    assert content == path.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["s3://key:hunter2@bucket/queue.json"],
        ["doctor", "memory://", "s3://key:hunter2@bucket/queue.json"],
        ["doctor", "--url=s3://key:hunter2@bucket/queue.json"],
        ["--json=s3://key:hunter2@bucket/queue.json", "doctor"],
        ["doctor", "s3://key:hunter2@bucket"],
        ["doctor", "--json", "s3://key:hunter2@bucket/queue.json?secret=hunter2"],
    ],
)
def test_errors_about_wrong_arguments_contain_no_secrets(arguments):
    assert 2 == run(*arguments).exit_code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "--status=hunter2"], "--status takes ready, scheduled, queued (both), running, dead, completed or"),
        (["ls", "--older-than=hunter2"], "--older-than takes a number with a unit: 90s, 15m, 12h, 30d or 2w"),
        (["purge", "--older-than=9999w"], "--older-than takes a number with a unit: 90s, 15m, 12h, 30d or 2w"),
        (["cancel", "--holder", "", "--yes"], "--holder is empty: give"),
        (["history", "--event", "hunter2"], "--event takes ack, arrive, cancel, "),
        (["history", "--since", "2999-01-01"], "--since takes a time that is over: "),
        (["at", "2w"], "the history of the queue begins at "),
        (["pause", ""], "entrypoint must be printable and not empty"),
        (["limit", "mail", "--rate", "5"], "give --rate and --per together"),
        (["limit", "mail", "--running", "5", "--no-running"], "give a limit, or the option that removes it, not both"),
        (["limit", "mail", "--rate", "5", "--per", "0"], "per must be more than 0 seconds"),
        (["configure", "--history", "7d", "--no-history"], "give --history or --no-history, not both"),
        (["configure", "--blob-bytes", "5TB"], "--blob-bytes takes a number of bytes, or one with a unit"),
        (["schedule", "n", "--cron", "at noon", "--entrypoint", "x"], "cron"),
        (["schedule", "n", "--cron", "* * * * *", "--entrypoint", "x", "--timezone", "Moon/Base"], "Moon/Base"),
        (["unschedule", "absent"], "there is no cron entry of this name"),
        (["requeue-stale", "--timeout", "long"], "--timeout takes seconds"),
        (["reschedule", "later", "--at", "noon"], "--at takes a time such as"),
        (["reschedule", "later"], "give one time: either --delay DURATION or --at TIME"),
        (["run-now"], "give the ID of a scheduled job, or --schedule NAME for a cron entry"),
        (["show", "s3://hunter2"], "there is no job with this id in"),
        (["cancel", "s3://hunter2"], "there is no job with this id in"),
        (["show", ""], "the id of the job is empty"),
        (["enqueue", "mail", "--delay", "tomorrow"], "--delay takes seconds, or a number with a unit: 60, 90s, 15m"),
        (["enqueue", "mail", "--run-at", "noon"], "--run-at takes a time such as 2026-11-23T08:00 (in UTC)"),
        (["enqueue", "mail", "--header", "no-text"], "--header takes NAME=TEXT, and may be repeated"),
        (["enqueue", "mail", "--delay", "1", "--run-at", "2030-01-01"], "give either delay or run_at, not both"),
        (["enqueue", "mail", "--on-conflict", "ask"], "on_conflict must be one of"),
        (["enqueue", "mail", "--file", "absent"], "the file of the payload cannot be read: No such file or directory"),
        (["metrics", "--listen", "192.0.2.1:9464"], ""),
        (["metrics", "--listen", "here"], ""),
        (["watch"], "the output is not a terminal: use `jqueue stats`"),
        (["ls", "--watch"], "the output is not a terminal: use `jqueue ls`"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line_and_changes_nothing(tmp_path, arguments, message):
    path = fill(tmp_path / "queue.json")
    before = path.read_bytes()
    command, *more = arguments
    assert message in refused(command, path, *more)
    assert before == path.read_bytes()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_one_line_error(path, queue):
    path.chmod(0)
    assert refused("stats", path)


# What a queue holds


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
    for command, arguments in CHANGING.items():
        if command in ("cancel", "run-now", "redrive", "reprioritise", "reschedule", "requeue-stale"):
            assert_harmless(run(command, fill(path), *arguments).output)
    assert_harmless(run("cancel", path, "l").stderr)  # several ids begin so


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_the_terminal(tmp_path, monkeypatch, width):
    """The help of every command, and a list in a terminal. In a pipe, nothing is cut."""
    for words in [(), *ALL]:
        shown = run(*words, "--help", COLUMNS=str(width)).stdout
        assert max(map(len, shown.splitlines())) <= width, words
    queue = Blocking(tmp_path / "queue.json")
    queue.kill("one", "two", entrypoint="an_entrypoint_with_a_long_name_" * 3, error="the server said 451 " * 20)
    queue.enqueue("mail", b"", job_id="three")
    assert max(map(len, run("ls", queue.path).stdout.splitlines())) > 140
    keyboard, terminal = os.openpty()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    with os.fdopen(terminal, "w") as screen, monkeypatch.context() as here:
        here.setattr(sys, "stdout", screen)
        app(["ls", str(queue.path)], standalone_mode=False)
        screen.flush()
        lines = os.read(keyboard, 65536).decode().splitlines()
    os.close(keyboard)
    assert max(map(len, lines)) <= width
    assert {"one", "two", "three"} <= {line.split()[0] for line in lines if line}


# Help and grammar


def test_help_is_wrapped_only_at_the_width_of_the_terminal():
    for words in [(), *ALL]:
        shown = run(*words, "--help").stdout
        assert not set("╭│╰") & set(shown), "boxes cost twice the time of all the rest"
        usage, _, described = shown.partition("\n\n")
        assert usage.startswith("Usage: ")
        lines = [line.strip() for line in re.split("Arguments:\n|Options:\n", described)[0].splitlines()]
        for line, following in itertools.pairwise(lines):
            assert not line or not following or len(line) + len(following.split()[0]) >= 77, (words, line)
    assert "..." not in run("--help").stdout.partition("Commands:")[2], "no summary is cut"
    assert 2 == run().exit_code


CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:`|\$ |bin/|^)jqueue ([a-z][a-z-]*)(?: ([a-z]+))?([^`\n#;|&]*)", re.MULTILINE)
IMPORTED = re.compile(r"`(?:jqueue\.)?(connect\w*|migrate)\(([^`]*)\)`")


def test_every_command_option_and_function_named_in_a_text_exists():
    checked = 0
    for page in TEXTS:
        content = page.read_text(encoding="utf-8")
        for part in (*re.findall(r"`jqueue [^`]*`", content), *CONSOLE.findall(content)):
            for match in NAMED.finditer(part):
                words = match.group(1, 2) if match.group(1, 2) in ALL else (match[1],)
                assert words in ALL, f"{page} names `jqueue {match[1]}`"
                known = {"--help", *(name for parameter in ALL[words].params for name in parameter.opts)}
                assert set(re.findall(r"(?<!\S)--[a-z][a-z-]+", match[3])) <= known, f"{page}: {words}"
                checked += 1
        assert all(hasattr(sys.modules[connect.__module__], match[1]) or match[1] == "migrate"
                   for match in IMPORTED.finditer(content)), page  # fmt: skip
    assert checked > 30


def test_the_page_on_the_command_line_lists_every_command():
    page = (ROOT / "docs/guide/command-line.md").read_text(encoding="utf-8")
    listed = {tuple(words.split()) for words in re.findall(r"^\| `jqueue ((?:[a-z][a-z-]* ?)+)", page, re.MULTILINE)}
    assert listed == {words for words, command in ALL.items() if not hasattr(command, "commands")}


def test_the_environment_names_the_queue_unless_an_argument_does(path, tmp_path, monkeypatch):
    queue, other = Blocking(path), Blocking(tmp_path / "jobs")
    for each in (queue, other):
        each.enqueue("mail", b"", job_id=f"of {each.path.name}")
    queue.enqueue("mail", b"", job_id="-one")
    monkeypatch.setenv("JQUEUE_URL", str(path))
    monkeypatch.chdir(tmp_path)
    assert "of queue.json" in run("ls").stdout
    assert "of queue.json" in run("ls", "--entrypoint", "mail").stdout
    assert "of jobs" in run("ls", "jobs").stdout, "an existing file of any name is a queue"
    assert 2 == run("ls", "./missing").exit_code
    text("pause", "mail")
    assert queue.read_state().entrypoints["mail"].paused
    assert "the job (mail) was removed" == text("cancel", "--", "-one")
    monkeypatch.setenv("JQUEUE_URL", "")
    assert 2 == run("ls").exit_code


def test_the_version_is_printed():
    assert re.fullmatch(r"jqueue \d+\.\d+\.\S+\n", run("--version").stdout)
    assert "Python" in run("version").stdout


# Older formats


OLDER = [
    "vsqs://{}/queue?fsync=false",
    "dirq://{}/queue?fsync=false&kind=simple",
    "dirq://{}/queue?fsync=false&kind=queue",
    "textq://{}/queue.tq?fsync=false",
]


@pytest.mark.parametrize("url", OLDER)
def test_a_queue_of_an_older_program_is_filled_looked_at_and_changed(tmp_path, url):
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
    assert "no such address" in text("dead", url)
    assert {"ready", "dead"} == {job["status"] for job in rows("ls", url)}
    assert "1 job would be purged" == text("purge", url, "--entrypoint", "mail", "--dry-run")
    assert 1 == values("redrive", url, "--error", "address")["redriven"]
    assert 2 == values("cancel", url, "--all", "--yes")["cancelled"]
    assert "no jobs" in text("stats", url), "an empty queue exists"
    doctor = run("doctor", url)
    assert (2, True) == (doctor.exit_code, "a queue of an older program" in doctor.output)


UNSUPPORTED = {
    "limits": ["pause mail", "resume mail", "limit mail", "configure --aging 60", "edit --settings"],
    "schedules": ["schedule n --cron @daily --entrypoint x", "unschedule n", "run-now --schedule n", "schedules"],
    "reschedule": ["reschedule --all --delay 60", "reprioritise --all --priority 1", "edit some-id"],
    "cancel_running": ["cancel --all --running --yes"],
    "unique_keys": ["enqueue mail --unique-key k"],
    "results": ["enqueue mail --keep-result 60"],
    "retention": ["configure --dead-retention 60"],
    "": ["history", "at 0s"],
}
"""The capability that an older format lacks, and the commands that say so."""


@pytest.mark.parametrize("url", [OLDER[0], OLDER[3]])
def test_what_an_older_format_lacks_is_named_in_one_line(tmp_path, url):
    url = url.format(tmp_path)
    run("enqueue", url, "mail")
    for missing, commands in UNSUPPORTED.items():
        for each in commands:
            command, *more = each.split()
            assert f"the format of this queue has no {missing}" in refused(command, url, *more)


# As users start it


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_typer_or_rich_gives_one_line_with_the_install_command(package):
    code = f"import sys; sys.modules[{package!r}] = None; from jqueue.cli import main; main()"
    result = process("stats", "queue.json", code=code)
    assert 2 == result.returncode
    assert "jqueue: the command line needs typer and rich: pip install 'jqueue[cli]'\n" == result.stderr


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


def test_shells_complete_commands_options_and_statuses():
    def completed(shell, words, **more):
        variables = {"_TYPER_COMPLETE_ARGS": words, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return process(_JQUEUE_COMPLETE=f"complete_{shell}", **variables, **more).stdout

    assert {"ready", "running"} == set(completed("bash", "jqueue ls --status r").split())
    assert "--older-than" == completed("bash", "jqueue ls --old").strip()
    assert "List the cron entries of a queue" in completed("zsh", "jqueue sch")


@pytest.mark.wide
def test_the_completion_of_a_shell_is_installed_and_works_in_a_real_bash(tmp_path):
    (tmp_path / "jqueue").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jqueue "$@"\n')
    (tmp_path / "jqueue").chmod(0o755)
    script = (
        'eval "$(jqueue --show-completion bash)"; COMP_WORDS=(jqueue worke); COMP_CWORD=1; '
        '_jqueue_completion jqueue; echo "${COMPREPLY[@]}"'
    )
    code = "import subprocess, sys; sys.exit(subprocess.call(['bash', '-c', sys.argv[1]]))"
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert ["worker", "workers"] == sorted(process(script, code=code, **environment).stdout.split())
    assert "zsh completion installed" in process("--install-completion", "zsh", **environment).stdout
    assert any("#compdef jqueue" in each.read_text() for each in tmp_path.rglob("*_jqueue*"))
