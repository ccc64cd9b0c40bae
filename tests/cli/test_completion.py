"""Completion of commands, options and statuses in bash, zsh and fish."""

import os
import shutil
import subprocess
import sys

import pytest

JQUEUE = [sys.executable, "-m", "jqueue"]


def completed(*arguments, **environment):
    known = {**os.environ, **environment}
    result = subprocess.run([*JQUEUE, *arguments], env=known, capture_output=True, text=True, timeout=60, check=True)
    return result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("jqueue sch", {"schedule", "schedules"}),
        ("jqueue ls --old", {"--older-than"}),
        ("jqueue ls --status r", {"ready", "running"}),
    ],
)
def test_bash_completes(words, expected):
    answer = completed(_JQUEUE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert expected == set(answer.split())


@pytest.mark.parametrize(
    ("shell", "more"), [("zsh", {}), ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})], ids=["zsh", "fish"]
)
def test_other_shells_complete_with_the_summaries(shell, more):
    answer = completed(_JQUEUE_COMPLETE=f"complete_{shell}", _TYPER_COMPLETE_ARGS="jqueue sch", **more)
    assert "schedules" in answer
    assert "List the cron entries of a queue" in answer


@pytest.mark.wide
@pytest.mark.parametrize(("shell", "line"), [("bash", "complete -o default -F _jqueue"), ("zsh", "#compdef jqueue")])
def test_the_script_of_a_shell_is_printed_and_installed(tmp_path, shell, line):
    environment = {**os.environ, "HOME": str(tmp_path)}
    shown, installed = (
        subprocess.run(
            [*JQUEUE, option, shell], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        for option in ("--show-completion", "--install-completion")
    )
    assert line in shown.stdout
    assert f"{shell} completion installed" in installed.stdout
    written = [each.read_text() for each in tmp_path.rglob("*jqueue*") if each.is_file()]
    assert [True] == [line in text for text in written]


@pytest.mark.wide
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_real_bash_completes(tmp_path):
    (tmp_path / "jqueue").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jqueue "$@"\n')
    (tmp_path / "jqueue").chmod(0o755)
    script = (
        'eval "$(jqueue --show-completion bash)"; COMP_WORDS=(jqueue work); COMP_CWORD=1; '
        '_jqueue_completion jqueue; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ["worker", "workers"] == sorted(result.stdout.split())
