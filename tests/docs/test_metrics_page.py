"""docs/operations/metrics.md has a line for every metric: name, kind, labels and meaning, as in the catalog."""

from pathlib import Path

import pytest

from jqueue.telemetry.catalog import COMMIT_METRICS, QUEUE_METRICS, WORKER_METRICS

PAGE = Path(__file__).parents[2] / "docs/operations/metrics.md"
TABLES = {"of the queue": QUEUE_METRICS, "of a worker": WORKER_METRICS, "of commits": COMMIT_METRICS}


def table_of(metrics):
    lines = ["| metric | kind | more labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels if label != "queue")
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.description} |")
    return "\n".join(lines)


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_table_of_the_catalog(name):
    _, _, after = PAGE.read_text(encoding="utf-8").partition(f"<!-- metrics {name} -->\n\n")
    assert table_of(TABLES[name]) == after.partition("\n\n")[0]
