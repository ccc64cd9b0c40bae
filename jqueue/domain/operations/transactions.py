"""Transactions: an application numbers its bulk enqueues, and a number that is repeated adds nothing.

The blob remembers the last number of each application. The commit that adds the jobs of a write also records its
number, so that a write is done whole or not at all, however often it is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.fields import LARGEST
from jqueue.domain.header import TransactionRecord
from jqueue.domain.limits import Limits, check_integer, check_name

TRANSACTION_KEPT = timedelta(days=30)
"""Default time for which the version of an application's last write is remembered."""


class Transaction(NamedTuple):
    """The identity of one write of an application.

    Attributes:
        app_id: id of the application, or of the streaming query.
        version: grows with every write. A write whose version is not larger than the last has already been done.
        keep: time for which the version is remembered.
    """

    app_id: str
    version: int
    keep: Duration = TRANSACTION_KEPT


@dataclass(frozen=True, slots=True)
class StagedReceipt:
    """The outcome of a bulk enqueue with a transaction.

    Attributes:
        added: number of jobs that were added.
        taken: number of jobs that were not added because their unique key is taken.
        repeated: True if the same write was done before, and nothing was added.
        version: the version of the application's last transaction before this one; None if none is known.
    """

    added: int = 0
    taken: int = 0
    repeated: bool = False
    version: int | None = None


Given = Transaction | tuple[str, int] | None
"""A transaction as callers give it; None: the write is not remembered."""


def checked(transaction: object, limits: Limits) -> Transaction:
    """Return a transaction with its values checked.

    Raises:
        InvalidJobError: a value is wrong.
    """
    if not isinstance(transaction, tuple) or len(transaction) not in (2, 3):
        raise InvalidJobError(f"transaction must be Transaction(app_id, version), got {type(transaction).__name__}")
    given = Transaction(*transaction)
    return Transaction(
        check_name("transaction's app_id", given.app_id, limits),
        check_integer("transaction's version", given.version, 0, LARGEST),
        to_seconds("transaction's keep", given.keep),
    )


def last_version(draft: Draft, transaction: Given) -> int | None:
    """Return the version of the last write of a transaction's application; None if none is remembered."""
    record = None if transaction is None else draft.header.transactions.get(transaction[0])
    return None if record is None else record.version


def is_repeated(transaction: Given, last: int | None) -> bool:
    """Return True if a transaction was done before, or a later one of its application.

    Args:
        transaction: of a write.
        last: see `last_version`.
    """
    return transaction is not None and last is not None and last >= transaction[1]


def remember(draft: Draft, transaction: Given, now: datetime) -> None:
    """Record that a write is done, in the commit that does it."""
    if transaction is not None:
        app_id, version, keep = Transaction(*transaction)
        until = now.timestamp() + to_seconds("keep", keep)
        draft.note(draft.header.transactions, app_id, TransactionRecord(version, until))
