"""The history in the header of the blob, as text.

A raw tab stands before each batch of events. No JSON text holds a raw tab, so the batches can be cut apart without
being encoded again.
"""

from __future__ import annotations

from typing import Any

from jqueue.core.blob.lines import dump_ascii
from jqueue.domain.history import HistoryHeader

OPEN, BETWEEN, CLOSE = '"batches": [\t', ",\t", "\t]"


def history_pieces(history: HistoryHeader) -> tuple[str, str, str]:
    """Return the history as a JSON object in three pieces. The one in the middle is long: it has the batches."""
    fields: dict[str, Any] = {"series": history.series, "last": history.last}
    if history.removed:
        fields["removed"] = history.removed
    if history.lost:
        fields["lost"] = history.lost
    if history.stopped:
        fields["stopped"] = True
    if history.older:
        fields["older"] = history.older
    text = dump_ascii({**fields, **(history.__pydantic_extra__ or {})})
    if not history.batches:
        return text, "", ""
    return f"{text[:-1]}, {OPEN}", BETWEEN.join(history.batches), f"{CLOSE}}}"


def with_batch_texts(history: Any, head: bytes) -> Any:
    """Return the JSON of a history with the text of each batch in place of the batch.

    Args:
        history: the JSON value.
        head: the text of the header; b"" if it is not known.
    """
    batches = history.get("batches") if isinstance(history, dict) else None
    if not isinstance(batches, list) or not all(map(_has_a_span, batches)):
        return history  # refused by the checks that follow, if there are any batches
    return {**history, "batches": _cut(batches, head) or [dump_ascii(batch) for batch in batches]}


def _has_a_span(batch: Any) -> bool:
    """Return True if a batch begins with its first number, the number of its events, and a time."""
    return (
        isinstance(batch, list)
        and len(batch) > len(("first", "count"))
        and type(batch[0]) is int
        and type(batch[1]) is int
        and type(batch[2]) in (int, float)
    )


def _cut(batches: list[list[Any]], head: bytes) -> list[str]:
    """Return the texts of the batches as they are in the header; an empty list if it has another layout."""
    _, _, rest = head.partition(OPEN.encode())
    text, end, _ = rest.partition(CLOSE.encode())
    texts = text.decode().split(BETWEEN) if end else []
    if len(texts) != len(batches) or not all(
        text.startswith(f"[{batch[0]}, {batch[1]}, ") and text.endswith("]")
        for text, batch in zip(texts, batches, strict=True)
    ):
        return []
    return texts
