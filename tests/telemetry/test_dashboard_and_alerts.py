"""The dashboard for Grafana and the alert rules ask for metrics that exist, and promtool accepts them."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.telemetry.catalog import METRICS
from jqueue.telemetry.prometheus import PrometheusMetrics

PAGES = Path(__file__).parents[2] / "docs/operations"
SCENES = Path(__file__).with_name("alert_scenes.yaml")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
KNOWN = {f"{metric.name}{suffix}": metric for metric in METRICS.values() for suffix in SUFFIXES[metric.kind]}
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


def test_queries_and_rules_ask_for_metrics_and_labels_that_exist():
    for text in (*QUERIES, RULES):
        assert set() == set(NAME.findall(text)) - KNOWN.keys()
        for name, labels in re.findall(r"(jqueue_\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)(?:=~|!=|=)", labels)) <= {*KNOWN[name].labels, "queue"}


def test_each_alert_is_on_the_page_of_alerts_and_names_a_chapter_of_the_runbook():
    assert set(re.findall(r"runbook\.md#([\w-]+)", RULES)) <= HEADINGS
    page = (PAGES / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"alert: (\w+)", RULES) == re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)


def test_each_rule_has_a_scene_in_which_it_fires_and_one_in_which_it_does_not():
    text = SCENES.read_text(encoding="utf-8")
    named = re.findall(r"alertname: (\w+)(}|\n +exp_alerts)", text)
    for name in re.findall(r"alert: (\w+)", RULES):
        assert {"}", "e"} == {end.strip()[0] for each, end in named if each == name}, name


@with_promtool
def test_promtool_accepts_the_rules_and_they_fire_when_they_should(tmp_path):
    (tmp_path / "alerts.yaml").write_text(RULES)
    (tmp_path / "scenes.yaml").write_text(SCENES.read_text(encoding="utf-8"))
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "scenes.yaml"]):
        done = subprocess.run([str(promtool), *command], cwd=tmp_path, capture_output=True, text=True)
        assert 0 == done.returncode, done.stdout + done.stderr


@with_promtool
@pytest.mark.wide
def test_promtool_finds_nothing_wrong_with_the_metrics(tmp_path):
    """Except for two names: they say what they count, as `jqueue stats` does."""

    async def text():
        queue, metrics = DirectQueue(LocalFileSystemStorage(tmp_path / "queue.json")), PrometheusMetrics(every=None)
        async with queue, metrics.watch(queue):
            await queue.enqueue("mail", b"")
            return await metrics.fresh_text()

    done = subprocess.run([str(promtool), "check", "metrics"], input=asyncio.run(text()), capture_output=True)
    assert (0, b"") == (done.returncode, done.stderr), done.stderr.decode()
