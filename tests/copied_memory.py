"""The memory of a queue object in a second one: a snapshot that runs twice, or a fork that nobody noticed."""

from jqueue.core.broker import BrokerQueue
from jqueue.core.broker_client import BrokerClient
from jqueue.core.direct import DirectQueue
from jqueue.core.engine import Engine


async def begin_as(copy: DirectQueue | BrokerQueue, original: DirectQueue | BrokerQueue, content: bytes) -> None:
    """Give a queue object what another one knows. Both write as the same writer, and call as the same client.

    Args:
        copy: before its first call.
        original: without calls under way.
        content: of the version that the original knows; b"" if it knows none.
    """
    (engine, client), (its, its_client) = _memory(copy), _memory(original)
    if content:
        await engine._adopt(content, its.etag)  # noqa: SLF001 - nothing else reads the past
    engine.writer_id, engine.sequence, engine.last_token = its.writer_id, its.sequence, its.last_token
    if client is not None and its_client is not None:
        client.client, client.sequence = its_client.client, its_client.sequence


def _memory(queue: DirectQueue | BrokerQueue) -> tuple[Engine, BrokerClient | None]:
    return queue._engine, queue._session.broker_client  # noqa: SLF001 - a snapshot has all of it
