"""`--help` reads well on any terminal, and every command named in a text exists."""

import itertools
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from jqueue.cli.app import app
from jqueue.cli.help import WIDEST

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "jqueue").rglob("*.py"))]
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:`|\$ |bin/|^)jqueue ([a-z][a-z-]*)(?: ([a-z]+))?([^`\n#;|&]*)", re.MULTILINE)


def commands(group, path=()):
    for name, command in sorted(group.commands.items()):
        yield (*path, name), command
        yield from commands(command, (*path, name)) if hasattr(command, "commands") else ()


COMMANDS = dict(commands(typer.main.get_command(app)))


def help_of(path, width=80):
    result = CliRunner().invoke(app, [*path, "--help"], terminal_width=width)
    assert 0 == result.exit_code
    return result.stdout


@pytest.mark.parametrize("width", [80, WIDEST])
@pytest.mark.parametrize("path", [(), *COMMANDS], ids=lambda path: " ".join(path) if isinstance(path, tuple) else path)
def test_help_is_wrapped_only_at_the_terminal_width_and_flags_have_no_type(path, width):
    text = help_of(path, width)
    assert "<bool>" not in text
    assert not set("╭│╰") & set(text), "boxes cost twice the time of all the rest"
    usage, _, described = text.partition("\n\n")
    assert usage.startswith("Usage: ")
    paragraphs = described.partition("Arguments:\n")[0].partition("Options:\n")[0]
    lines = [line.strip() for line in paragraphs.splitlines()]
    for line, following in itertools.pairwise(lines):
        if line and following:
            assert len(line) + len(following.split()[0]) >= width - 3, f"a line ends too early: {line!r}"


def test_no_summary_of_a_command_is_cut():
    assert "..." not in help_of(()).partition("Commands:")[2]


def named_commands():
    """The page, the command words and the options of each `jqueue …` in a text."""
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        quoted = re.findall(r"`jqueue [^`]*`", text)
        for part in (*quoted, *CONSOLE.findall(text)):
            for match in NAMED.finditer(part):
                options = re.findall(r"(?<!\S)--[a-z][a-z-]+", match[3])
                yield path.relative_to(ROOT).as_posix(), match.group(1, 2), options


def test_every_command_and_option_named_in_a_text_exists():
    checked = 0
    for text, words, options in named_commands():
        path = words if words in COMMANDS else words[:1]
        assert path in COMMANDS, f"{text} names `jqueue {words[0]}`"
        known = {"--help", *(name for parameter in COMMANDS[path].params for name in parameter.opts)}
        assert set(options) <= known, f"{text} names {options} of `jqueue {' '.join(path)}`"
        checked += 1
    assert checked > 30


def test_the_page_on_the_command_line_lists_every_command():
    page = (ROOT / "docs/guide/command-line.md").read_text(encoding="utf-8")
    listed = {tuple(words.split()) for words in re.findall(r"^\| `jqueue ((?:[a-z][a-z-]* ?)+)", page, re.MULTILINE)}
    assert listed == {path for path, command in COMMANDS.items() if not hasattr(command, "commands")}


IMPORTED = re.compile(r"`(?:jqueue\.)?(connect\w*|migrate)\(([^`]*)\)`")


def test_every_function_named_in_an_error_exists():
    import jqueue

    named = {match[1] for path in TEXTS for match in IMPORTED.finditer(path.read_text(encoding="utf-8"))}
    assert {"connect", "connect_queue"} <= named
    assert [] == [name for name in named if not hasattr(jqueue, name) and not hasattr(jqueue.connect, name)]
