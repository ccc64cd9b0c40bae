"""The messages between a broker and its clients, as JSON. A client sends one, and gets one answer to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.fields import Count, Seconds
from jqueue.domain.operations.codec import Inner, Refused

LONGEST = 24 * 3600.0
"""Largest number of seconds that a call may have, and wait."""

BATCH_OPERATIONS = 4096
"""Largest number of operations in a batch, unless one call has more."""

ANSWER_BYTES = 32 << 20
"""About the largest size of the results of a batch. A batch whose results are larger is not done."""

MOST_VALUES = 1 << 20
"""Largest number of values in a message. Decoded, each takes up to some hundred bytes."""

_BEFORE_VALUE = re.compile(rb'(?:[^",\[{]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z))*+(?:[,\[{]|\Z)', re.DOTALL)
"""All up to the sign before a value in a list or an object, with the texts on the way."""

Text = Annotated[str, Meta(max_length=200)]


class Message(
    msgspec.Struct, frozen=True, tag_field="do", omit_defaults=True, kw_only=True, forbid_unknown_fields=True
):
    """What a client asks for.

    Attributes:
        client: id of the client.
        queue: id of the queue as the client knows it; empty if it does not yet.
    """

    client: Text
    queue: Text = ""


class Batch(Message, frozen=True, kw_only=True, tag="batch"):
    """Operations that claim nothing. They are committed together.

    Attributes:
        sequence: number of the batch.
        token: random, drawn for this batch alone, so that two copies of the client never share one.
        base: the latest version that the client has heard of; 0 if none.
        operations: in order; each is done by itself.
        seconds: time that is left for each operation.
        again: True if the batch was sent before.
    """

    sequence: Count
    token: Text
    base: Count = 0
    operations: tuple[Inner, ...]
    seconds: tuple[Seconds, ...]
    again: bool = False


class Claim(Message, frozen=True, kw_only=True, tag="claim"):
    """A dequeue. It is answered when jobs are ready, or when its wait is over.

    Attributes:
        operation: the dequeue, with its `call`.
        seconds: time that is left for it, without its wait.
        wait: time that it waits for jobs; None: not at all.
        poll: time between two looks at the store while it waits, at most: a process may write past the broker.
    """

    operation: Inner
    seconds: Seconds
    wait: Seconds | None = None
    poll: Seconds = 1.0


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """End the wait of a dequeue: it is answered at once.

    Attributes:
        call: the dequeue's.
    """

    call: Text


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a broker answers.

    Attributes:
        queue: id of the queue; empty if the queue does not exist yet.
        version: the latest version that the broker knows.
        results: of each operation, as `jqueue.domain.operations.codec` encodes them.
        error: the error of the whole message. Nothing of it was done, unless the error says otherwise.
        leaving: True if this process no longer serves the queue, and nothing was done.
        pause: seconds for which the client better commits its calls itself.
        moved: True if another process has the seat in the queue's header. The message was answered all the same.
    """

    queue: str = ""
    version: Count = 0
    results: list[msgspec.Raw] = []
    error: Refused | None = None
    leaving: bool = False
    pause: float = 0.0
    moved: bool = False


encode: Any = msgspec.json.Encoder().encode
decode_answer: Callable[[bytes], Answer] = msgspec.json.Decoder(Answer).decode


def check_values(data: bytes | bytearray) -> None:
    """Check the number of values in JSON, before they are decoded.

    Raises:
        InvalidJobError: it has too many.
    """
    if len(data) <= 2 * MOST_VALUES or sum(map(data.count, b",[{")) <= MOST_VALUES:  # signs within texts count here
        return
    if next(islice(_BEFORE_VALUE.finditer(data), MOST_VALUES + 2, None), None) is not None:
        raise InvalidJobError(f"the message has more than {MOST_VALUES} values: send it in parts")


@cache
def message_decoder() -> msgspec.json.Decoder[Batch | Claim | Stop]:
    """Return the decoder of what clients send."""
    return msgspec.json.Decoder(Batch | Claim | Stop)
