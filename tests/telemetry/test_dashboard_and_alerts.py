"""The dashboard for Grafana and the alert rules ask for metrics that exist, and promtool accepts them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from jqueue.telemetry.catalog import METRICS

PAGES = Path(__file__).parents[2] / "docs/operations"
SCENES = Path(__file__).with_name("alert_scenes.yaml")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
KNOWN = {f"{metric.name}{suffix}": metric for metric in METRICS for suffix in SUFFIXES[metric.kind]}
NAME = re.compile(r"\bjqueue_\w+")

DASHBOARD = json.loads((PAGES / "grafana.json").read_text(encoding="utf-8"))
QUERIES = {target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
RULES = (PAGES / "alerts.yaml").read_text(encoding="utf-8")
HEADINGS = {
    line.lstrip("# ").lower().replace(" ", "-").replace(",", "")
    for line in (PAGES / "runbook.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("#")
}

promtool = shutil.which("promtool")
with_promtool = pytest.mark.skipif(promtool is None, reason="promtool is not installed: it is in Debian's prometheus")


@pytest.mark.parametrize("text", [*sorted(QUERIES), RULES], ids=lambda text: text[:60])
def test_a_query_asks_for_metrics_that_exist(text):
    assert set() == set(NAME.findall(text)) - KNOWN.keys()


@pytest.mark.parametrize("query", sorted(QUERIES))
def test_a_query_of_the_dashboard_uses_labels_of_its_metric(query):
    for name, labels in re.findall(r"(jqueue_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)(?:=~|!=|=)", labels)) <= set(KNOWN[name].labels)


def test_the_panels_have_titles_and_descriptions_of_their_own_and_do_not_overlap():
    panels = DASHBOARD["panels"]
    assert len(panels) == len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels})
    assert all(panel["description"].endswith(".") for panel in panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert (len(panels), {(8, 8)}) == (
        len(places),
        {(panel["gridPos"]["w"], panel["gridPos"]["h"]) for panel in panels},
    )


def test_each_alert_names_a_chapter_of_the_runbook():
    assert set(re.findall(r"runbook\.md#([\w-]+)", RULES)) <= HEADINGS


def test_the_page_of_the_alerts_has_each():
    page = (PAGES / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"alert: (\w+)", RULES) == re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)


@with_promtool
@pytest.mark.wide
def test_promtool_accepts_the_rules_and_they_fire_when_they_should(tmp_path):
    (tmp_path / "alerts.yaml").write_text(RULES)
    (tmp_path / "scenes.yaml").write_text(SCENES.read_text(encoding="utf-8"))
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "scenes.yaml"]):
        done = subprocess.run([str(promtool), *command], cwd=tmp_path, capture_output=True, text=True)
        assert 0 == done.returncode, done.stdout + done.stderr


@with_promtool
@pytest.mark.wide
def test_promtool_parses_each_query_of_the_dashboard(tmp_path):
    rules = [
        {"record": f"query_{number}", "expr": query.replace("$queue", ".*").replace("$entrypoint", ".*")}
        for number, query in enumerate(sorted(QUERIES))
    ]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([str(promtool), "check", "rules", "rules.json"], cwd=tmp_path, capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout + done.stderr


@with_promtool
@pytest.mark.wide
def test_promtool_finds_nothing_wrong_with_the_metrics(tmp_path):
    """Except for two names: they say what they count, as `jqueue stats` does."""
    import asyncio

    from jqueue import DirectQueue, LocalFileSystemStorage
    from jqueue.telemetry.prometheus import PrometheusMetrics

    async def text():
        queue, metrics = DirectQueue(LocalFileSystemStorage(tmp_path / "queue.json")), PrometheusMetrics(every=None)
        async with queue, metrics.watch(queue):
            await queue.enqueue("mail", b"")
            return await metrics.fresh_text()

    done = subprocess.run([str(promtool), "check", "metrics"], input=asyncio.run(text()), capture_output=True)
    assert (0, b"") == (done.returncode, done.stderr), done.stderr.decode()
