"""The output of `jqueue doctor --cost`: requests and dollars a month."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from jqueue.cli.prices import PUBLISHED, Cost, Load
from jqueue.cli.printing import show, show_json, table

COLUMNS = ("commits", "heartbeats ≤", "polls ≤", "total ≤")


def show_costs(load: Load, costs: Sequence[Cost], *, as_json: bool) -> None:
    """Print the cost of a queue at some stores."""
    if as_json:
        show_json(_as_values(load, costs))
        return
    show(
        f"{load.writes:,.0f} commits a month: one write each",
        f"{load.heartbeats:,.0f} writes at most for the heartbeats of workers, busy or idle",
        f"{load.polls:,.0f} reads at most for the polls of workers that are always idle",
        "",
    )
    made = table("dollars a month", *COLUMNS, numbers=COLUMNS)
    for cost in costs:
        figures = (cost.writes + cost.transfer, cost.heartbeats, cost.polls, cost.total)
        made.add_row(Text(cost.price.store), *(Text(f"{figure:,.2f}") for figure in figures))
    show(made)
    show(
        f"\nList prices of US regions as published in {PUBLISHED}, without storage, free quotas and taxes. A worker is "
        "busy or idle, so the total is an upper bound. Writers that conflict need more: a write and a read for each "
        "conflict. --price-write and --price-read take your prices."
    )


def _as_values(load: Load, costs: Sequence[Cost]) -> dict[str, Any]:
    return {
        "writes": round(load.writes),
        "heartbeats": round(load.heartbeats),
        "polls": round(load.polls),
        "published": PUBLISHED,
        "stores": [
            {
                "store": cost.price.store,
                **{name: round(value, 4) for name, value in asdict(cost).items() if name != "price"},
                "total": round(cost.total, 4),
                "price_write": cost.price.write,
                "price_read": cost.price.read,
                "source": cost.price.source,
            }
            for cost in costs
        ],
    }
