"""The memory of a queue object in a second one: a snapshot that runs twice, or a fork that nobody noticed."""

from jqueue.core.broker import BrokerQueue
from jqueue.core.courier import Courier
from jqueue.core.direct import DirectQueue
from jqueue.core.engine import Engine


async def begin_as(copy: DirectQueue | BrokerQueue, original: DirectQueue | BrokerQueue, content: bytes) -> None:
    """Give a queue object what another one knows. Both write as the same writer, and call as the same client.

    Args:
        copy: before its first call.
        original: without calls under way.
        content: of the version that the original knows; b"" if it knows none.
    """
    (engine, courier), (its, its_courier) = _memory(copy), _memory(original)
    if content:
        await engine._adopt(content, its.etag)  # noqa: SLF001 - nothing else reads the past
    engine.writer_id, engine.sequence, engine.last_token = its.writer_id, its.sequence, its.last_token
    if courier is not None and its_courier is not None:
        courier.client, courier.sequence = its_courier.client, its_courier.sequence


def _memory(queue: DirectQueue | BrokerQueue) -> tuple[Engine, Courier | None]:
    return queue._engine, queue._writer.courier  # noqa: SLF001 - a snapshot has all of it
