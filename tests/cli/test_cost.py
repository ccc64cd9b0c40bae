"""`jqueue doctor --cost`: the requests of a load, times the prices of one table."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jqueue.cli.app import app
from jqueue.cli.prices import PRICES, Load, cost_of

DOCS = Path(__file__).parents[2] / "docs"


def run(*arguments):
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["doctor", "--cost", *arguments], catch_exceptions=False)


def test_a_job_is_three_calls_and_calls_share_commits():
    """As counted by benchmarks/requests_per_job.py: 3.00 writes a job, and 0.03 with 100 calls in flight."""
    assert 1000 * 3.00 == pytest.approx(Load(jobs=1000 / 30).writes)
    assert 1000 * 0.03 == pytest.approx(Load(jobs=1000 / 30, calls=100).writes)


def test_known_commits_replace_the_estimate():
    assert 30 * 86_400 * 2.5 == Load(jobs=7, commits=2.5).writes


def test_a_million_writes_and_reads_cost_their_price():
    for price in PRICES:
        load = Load(commits=1_000_000 / (30 * 86_400), workers=1, poll=30 * 86_400 / 1_000_000, size=0)
        cost = cost_of(load, price)
        assert [price.write, price.read] == pytest.approx([cost.writes, cost.polls])


def test_the_table_has_every_store_and_fits_80_columns():
    result = run("--jobs-per-day", "100000", "--calls-per-commit", "10", "--workers", "4")
    assert 0 == result.exit_code
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert all(price.store in result.stdout for price in PRICES)
    page = (DOCS / "operations/costs.md").read_text(encoding="utf-8")
    assert "\n".join(line.rstrip() for line in result.stdout.partition("\n\nList")[0].splitlines()) in page


@pytest.mark.parametrize(
    ("url", "stores"), [("s3://b/q.json", 3), ("gs://b/q.json", 1), ("az://c/q", 1), ("q.json", 5)]
)
def test_a_url_chooses_the_stores_that_it_may_mean_and_is_not_opened(url, stores):
    result = run(url, "--commits-per-second", "1", "--json")
    assert stores == len(json.loads(result.stdout)["stores"])


def test_prices_can_be_given():
    result = run("--commits-per-second", "1", "--price-write", "7", "--workers", "0", "--json")
    [store] = json.loads(result.stdout)["stores"]
    assert (7, 0.4) == (store["price_write"], store["price_read"])
    assert 30 * 86_400 * 7 / 1e6 == pytest.approx(store["total"], abs=0.01)


def test_a_load_is_needed():
    result = run()
    assert (2, 1) == (result.exit_code, result.stderr.count("\n"))
    assert "--jobs-per-day" in result.stderr


def test_without_cost_a_url_is_needed():
    result = CliRunner().invoke(app, ["doctor"])
    assert (2, 1) == (result.exit_code, result.stderr.count("\n"))


def test_the_table_of_the_reference_has_the_same_prices():
    page = (DOCS / "reference/stores.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (?:about )?\$([\d.]+) \| (?:about )?\$([\d.]+) \|", page, re.MULTILINE)
    assert {price.store: (price.write, price.read) for price in PRICES} == {
        store: (float(write), float(read)) for store, write, read in rows
    }
