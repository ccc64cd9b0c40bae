"""The pages on stores: the table of requests matches the benchmark's count, and each URL works as it is written."""

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.requests_per_job import table
from jqueue import connect

DOCS = Path(__file__).parents[2] / "docs"
DETAILS = (DOCS / "reference/stores.md").read_text(encoding="utf-8")
TEXT = (DOCS / "guide/stores.md").read_text(encoding="utf-8")
URLS = sorted({url for url in re.findall(r"[`'\" ]((?:s3|gs|az|memory|file)://[^`'\"\s)]+)", TEXT) if "…" not in url})
COMMANDS = [
    line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines() if "://" in line
]


@pytest.mark.wide
def test_the_table_of_requests_matches_the_count():
    assert table() in DETAILS


@pytest.mark.parametrize("url", URLS)
def test_each_url_names_a_storage(url, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    assert connect(url, create=True) is not None  # the folders of an example do not exist here


def test_each_s3_compatible_store_has_a_url_with_its_endpoint():
    section = TEXT[TEXT.index("## Amazon S3") : TEXT.index("## Google")]
    for store in ("MinIO", "Cloudflare R2", "Ceph", "DigitalOcean Spaces", "SeaweedFS"):
        assert re.search(rf"^\| {store} \| `s3://[^`]+endpoint_url=http[^`]+` \|$", section, re.MULTILINE), store


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shell_passes_each_url_unchanged(command):
    """Without quotes, bash would end the command at an &, and would look for matching files at a ?."""
    script = f'shopt -s failglob; jqueue() {{ echo "${{@: -1}}"; }}; {command}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, env={})
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.strip() in URLS or command.startswith("export ")
