"""The workflows of GitHub: each action is one commit, each permission is needed, and commands take no foreign text."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
READ_ONLY = {"contents": "read"}
WRITES = {
    ("release.yml", "publish"): {"id-token": "write", "attestations": "write"},
    ("release.yml", "github-release"): {"contents": "write"},
    ("release.yml", "site"): {"pages": "write", "id-token": "write"},
}
"""The jobs that may write, and what."""


def content(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def jobs() -> list[Any]:
    return [
        pytest.param(path, job, id=f"{path.stem}-{name}")
        for path in WORKFLOWS
        for name, job in ((name, {"name of the job": name, **job}) for name, job in content(path)["jobs"].items())
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_pinned_to_a_commit_with_its_version_beside_it(path):
    uses = [
        line.strip().removeprefix("- ") for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line
    ]
    assert uses
    assert [] == [line for line in uses if not PINNED.fullmatch(line)]


def test_an_action_has_one_commit_in_all_workflows():
    uses = re.findall(r"uses: ([\w/-]+)@(\S+)", "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS))
    assert len({name for name, _ in uses}) == len(set(uses))


@pytest.mark.parametrize(("path", "job"), jobs())
def test_a_job_may_only_write_what_it_is_for(path, job):
    workflow = content(path)
    assert READ_ONLY == workflow["permissions"]
    assert WRITES.get((path.name, job["name of the job"]), READ_ONLY) == job.get("permissions", READ_ONLY)


@pytest.mark.parametrize(("path", "job"), jobs())
def test_a_job_ends_leaves_no_credentials_and_puts_no_expression_into_a_command(path, job):
    assert 0 < job["timeout-minutes"] <= 90
    for step in job["steps"]:
        assert "${{" not in step.get("run", ""), "the shell would run what a title or a branch is called"
        assert "secrets." not in str(step)
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_only_a_tag_publishes_and_only_what_was_checked():
    workflow = content(ROOT / ".github/workflows/release.yml")
    assert {"push": {"tags": ["v*"]}} == workflow[True], "YAML reads the key `on` as true"
    publish = workflow["jobs"]["publish"]
    assert ("build", "pypi") == (publish["needs"], publish["environment"])
    assert not any("checkout" in step.get("uses", "") for step in publish["steps"]), "no code of the project runs there"
    assert any("make release-check" in step.get("run", "") for step in workflow["jobs"]["build"]["steps"])
    upload = next(step for step in publish["steps"] if "gh-action-pypi-publish" in step.get("uses", ""))
    assert upload["with"]["attestations"] is True


def test_make_targets_of_the_workflows_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in WORKFLOWS:
        assert set(re.findall(r"run: make ([a-z-]+)", path.read_text(encoding="utf-8"))) <= targets
