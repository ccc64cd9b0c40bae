"""Draws the figures of [growth]: operations per second over the depth of the queue, for each size of payload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLOURS = ("#1f5fa8", "#c2571a", "#3b7d3a", "#7a3e9d")
MARKS = ("o", "s", "^", "D")
PANELS = {"memory": "in memory", "file": "in a file"}


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The figures at one depth.

    Attributes:
        depth: number of jobs that stay in the queue.
        operations: operations per second.
        limit: operations per second that bare writes would allow if each carried every call in flight; None in memory.
    """

    depth: int
    operations: float
    limit: float | None


def points_of(document: dict[str, Any]) -> dict[str, dict[int, list[Point]]]:
    """Return the points of [growth] in a JSON file of results, by storage and size of payload, in order of depth."""
    found: dict[str, dict[int, list[Point]]] = {}
    for row in document["rows"]:
        if row["name"] != "growth":
            continue
        for contestant in row["contestants"]:
            given, figures = contestant["arguments"], contestant["medians"]
            if "operations_per_second" in figures:
                limit = figures.get("limit_operations_per_second")
                point = Point(given["depth"], figures["operations_per_second"], limit)
                found.setdefault(given["storage"], {}).setdefault(given["payload_bytes"], []).append(point)
    return {storage: {size: sorted(points) for size, points in sizes.items()} for storage, sizes in found.items()}


def draw(results: Path, picture: Path) -> None:
    """Write the picture.

    Raises:
        ValueError: the results have no row of [growth].
    """
    import matplotlib

    matplotlib.use("svg")
    # The same figures make the same file: no date in it, and no random names.
    matplotlib.rcParams.update({"svg.hashsalt": "jqueue", "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot

    document = json.loads(results.read_text(encoding="utf-8"))
    found = points_of(document)
    if not found:
        raise ValueError(f"{results} has no figures of [growth]: run `make bench ROWS=growth` first")
    storages = [storage for storage in PANELS if storage in found]
    figure, panels = pyplot.subplots(
        1, len(storages), figsize=(5.6 * len(storages), 4.8), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, storage in zip(panels[0], storages, strict=True):
        _fill(panel, found[storage])
        panel.set_title(f"Queue {PANELS[storage]}")
    panels[0][0].set_ylabel("operations per second")
    panels[0][-1].legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    machine = document["machine"]
    figure.suptitle("BrokerQueue, 200 calls in flight: enqueue, dequeue and ack each count as one", fontsize=11)
    figure.supxlabel(
        f"jobs in the queue\n{document['date'][:10]}, {machine['cores']} cores, {machine['file_system']}", fontsize=10
    )
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _fill(panel: Any, sizes: dict[int, list[Point]]) -> None:
    for number, (size, points) in enumerate(sorted(sizes.items())):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)], "markersize": 5}
        depths = [point.depth for point in points]
        panel.plot(depths, [point.operations for point in points], label=f"payloads of {_bytes(size)}", **style)
        limits = [point.limit for point in points if point.limit is not None]
        if len(limits) == len(points):
            style |= {"markersize": 3, "linestyle": ":", "alpha": 0.75}
            panel.plot(depths, limits, label=f"limit of the disk, {_bytes(size)}", **style)
    # An empty queue has its place on a logarithmic axis, too: up to ten jobs the axis is linear.
    panel.set_xscale("symlog", linthresh=10, linscale=0.7)
    panel.set_xlim(left=-1)
    depths = sorted({point.depth for points in sizes.values() for point in points})
    panel.set_xticks(depths, [f"{depth:,}" for depth in depths])
    panel.minorticks_off()
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:,.0f}")
    panel.grid(True, which="major", color="#dddddd", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)


def _bytes(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"
