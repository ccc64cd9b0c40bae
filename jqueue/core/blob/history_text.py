"""The history in the header of the blob, as text.

A raw tab stands before each event. No JSON text holds a raw tab, so the events can be cut apart without being encoded
again.
"""

from __future__ import annotations

from typing import Any

from jqueue.core.blob.lines import dump_ascii
from jqueue.domain.history import HistoryHeader

EVENTS_OPEN, BETWEEN, EVENTS_CLOSE = '"events": [\t', ",\t", "\t]"


def history_pieces(history: HistoryHeader) -> tuple[str, str, str]:
    """Return the history as a JSON object in three pieces. The one in the middle is long: it has the events."""
    fields: dict[str, Any] = {"series": history.series, "last": history.last}
    if history.lost:
        fields["lost"] = history.lost
    if history.stopped:
        fields["stopped"] = True
    if history.older:
        fields["older"] = history.older
    text = dump_ascii({**fields, **(history.__pydantic_extra__ or {})})
    if not history.events:
        return text, "", ""
    return f"{text[:-1]}, {EVENTS_OPEN}", BETWEEN.join(history.events), f"{EVENTS_CLOSE}}}"


def with_event_texts(history: Any, head: bytes) -> Any:
    """Return the JSON of a history with the text of each event in place of the event.

    Args:
        history: the JSON value.
        head: the text of the header; b"" if it is not known.
    """
    rows = history.get("events") if isinstance(history, dict) else None
    if not isinstance(rows, list):
        return history
    if not all(isinstance(row, list) and len(row) >= len(("number", "id")) and type(row[0]) is int for row in rows):
        return history  # refused by the checks that follow
    return {**history, "events": _cut(rows, head) or [dump_ascii(row) for row in rows]}


def _cut(rows: list[list[Any]], head: bytes) -> list[str]:
    """Return the texts of the events as they are in the header; an empty list if it has another layout."""
    _, _, rest = head.partition(EVENTS_OPEN.encode())
    text, end, _ = rest.partition(EVENTS_CLOSE.encode())
    texts = text.decode().split(BETWEEN) if end else []
    if len(texts) != len(rows) or not all(
        text.startswith(f"[{row[0]}, ") and text.endswith("]") for text, row in zip(texts, rows, strict=True)
    ):
        return []
    return texts
