"""The base class of queues on one blob: the storage, the engine that commits to it, and pickling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import asdict

from jqueue.core.access import Access
from jqueue.core.broker_server import BrokerServer, HeaderOffer
from jqueue.core.queue_base import Prepared
from jqueue.core.seat_server import SeatServer
from jqueue.core.session import Session
from jqueue.core.verbs import QueueVerbs
from jqueue.core.verbs.consumer import LeaseVerbs
from jqueue.core.verbs.operator import HistoryVerbs
from jqueue.core.verbs.producer import StagingVerbs
from jqueue.core.writer import Writer
from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.dequeue import NamedDequeue
from jqueue.domain.operations.rules import Configure
from jqueue.ports.observer import Observer, SupportsObservers
from jqueue.ports.queue import SupportsOffering
from jqueue.ports.sharing import DialURL, SupportsDialing, SupportsSharing
from jqueue.ports.storage import ObjectStoragePort, SupportsRelease
from jqueue.runtime.queue_options import QueueOptions

URL_LENGTH = 1000
"""Largest number of characters of a broker's URL."""


class BlobQueue(QueueVerbs, HistoryVerbs, LeaseVerbs, StagingVerbs, SupportsObservers, SupportsOffering):
    """A queue whose whole state is one object of a store.

    Args:
        storage: holds the queue's object.
        options: settings of the queue.
        batch_limit: maximum number of calls in one commit.
        max_retries: maximum number of lost races in one call; the next one raises CASConflictError. None: no limit.
    """

    def __init__(
        self, storage: ObjectStoragePort, options: QueueOptions, *, batch_limit: int, max_retries: int | None = None
    ) -> None:
        if not isinstance(storage, ObjectStoragePort):
            raise InvalidJobError(
                f"a queue needs a storage, got {type(storage).__name__}: for a URL or a path, write "
                f"`connect(url, {type(self).__name__})`; a storage of your own has the methods read and write"
            )
        self.storage = storage
        self._max_retries = max_retries
        options.check()
        if isinstance(storage, SupportsDialing) and not isinstance(storage, SupportsSharing):
            if not options.share:
                raise InvalidJobError("this queue can only be reached through its broker: leave share=False out")
            if options.must_exist:
                raise InvalidJobError("this queue is only reached through its broker: start that one with --must-exist")
        super().__init__(Access(storage, options, max_retries), batch_limit=batch_limit)

    def _new_session(self, here: Callable[[], Session], before: Any) -> Writer:
        self._offer: HeaderOffer | None = None
        self._service: BrokerServer | None = None
        return super()._new_session(here, before)

    async def dequeue_again(
        self, call: str, entrypoint: str | Sequence[str] | None = None, *, wait: Duration | None = None, **options: Any
    ) -> list[Job]:
        """Claim ready jobs as `dequeue` does. If a call of this name has claimed jobs before, return these.

        Jobs whose claims have ended since are left out.
        """
        [operation] = self._dequeues(entrypoint, options)
        return await self._claimed((NamedDequeue(**{**asdict(operation), "call": call}),), wait, None)

    def service(self) -> BrokerServer:
        """Return what answers the messages of other processes, until this queue is closed. A server hands them to it.

        From now on, this queue commits its calls itself, together with theirs.
        """
        service = self._answering()
        if self._session.broker_client is not None:
            if self._session.broker_client.only:
                raise InvalidJobError("a process that reaches the queue only through its broker cannot serve it")
            self._session.broker_client.answering = True
        return service

    def _answering(self) -> BrokerServer:
        self._here()
        if self._service is None:
            self._open()
            self._service = BrokerServer(self._session)
        return self._service

    def offer(self, url: str | None = None) -> None:
        self._offer_seat(lasting=True)
        dial_url: DialURL | None = getattr(self.storage, "dial_url", None)
        if self._session.broker_client is None or self._offer is not None or isinstance(self.storage, SupportsSharing):
            return
        if url is not None and dial_url is not None:
            if not 0 < len(url) <= URL_LENGTH or not url.isprintable():
                raise InvalidJobError(f"the URL of a broker must be printable and have at most {URL_LENGTH} characters")
            self._offer = HeaderOffer(url, dial_url, self._session, self.service())

    def _offer_seat(self, *, lasting: bool) -> None:
        """Serve the other processes of the machine, if the storage knows a way."""
        self._here()
        if (client := self._session.broker_client) is None or not isinstance(self.storage, SupportsSharing):
            return
        service = self._answering()
        if client.seat_server is None or client.seat_server.over:
            client.seat_server = SeatServer(self.storage, service.handle, service.rest)
        client.seat_server.lasting |= lasting

    async def _close(self, reason: str, seconds: float) -> None:
        self._here()
        header_offer, self._offer = self._offer, None
        service, self._service = self._service, None
        client = self._session.broker_client
        for each in (header_offer, None if client is None else client.seat_server):
            if each is not None:
                each.leave()
        if service is not None:
            service.leave()
        await super()._close(reason, seconds)
        if isinstance(self.storage, SupportsRelease):
            await self.storage.release()
        if client is not None:
            if client.seat_server is not None:
                await client.seat_server.left()
            client.seat_server, client.answering = None, False

    @property
    def is_served(self) -> bool:
        """True while another process commits the calls of this queue object."""
        client = self._session.broker_client
        return client is not None and not client.serving and (client.only or client.shares)

    def observe(self, observer: Observer) -> None:
        self._engine.observers.add(observer)

    def unobserve(self, observer: Observer) -> None:
        self._engine.observers.remove(observer)

    def _checked(self, operation: Prepared) -> Prepared:
        if self._objects is not None:
            return operation
        done = operation.operation if isinstance(operation, Guarded) else operation
        if isinstance(done, Configure) and done.history_on:
            raise InvalidJobError(
                f"a history is kept in objects beside the queue's, and {type(self.storage).__name__} can only read and "
                "write the queue's own: give it the methods of SupportsObjects, or use a storage of jqueue"
            )
        return operation

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.storage, self._settings())

    def _settings(self) -> dict[str, Any]:
        return dict(vars(self.options))


def _rebuild(kind: type[BlobQueue], storage: ObjectStoragePort, settings: dict[str, Any]) -> Any:
    """Unpickle a queue, with the same settings and a new writer."""
    return kind(storage, **settings)
