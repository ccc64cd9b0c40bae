"""The settings that every queue takes, each with the value that serves most."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from jqueue.adapters.system import SystemClock, SystemEntropy
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.limits import Limits, check_integer
from jqueue.domain.models import DEFAULT_CLAIM_TIMEOUT
from jqueue.ports.clock import Clock, Entropy


@dataclass(kw_only=True)
class QueueOptions:
    """Settings of a queue object. Durations are timedeltas or seconds.

    Attributes:
        stale_timeout: how long a claim made here lasts without a heartbeat; it is kept with the claim.
        deadline: how long a call may take, unless it says otherwise.
        call_timeout: how long one call to the store may take.
        poll_interval: the longest time between two looks at the store while somebody waits for jobs.
        max_pending: how many calls may wait for the store; more wait for room until their deadline.
        limits: how large things may be.
        clock: where the time comes from, if the store doesn't tell it.
        entropy: where ids and jitter come from.
    """

    stale_timeout: Duration = DEFAULT_CLAIM_TIMEOUT
    deadline: Duration = field(default=timedelta(seconds=30), repr=False)
    call_timeout: Duration = field(default=timedelta(seconds=15), repr=False)
    poll_interval: Duration = field(default=timedelta(seconds=1), repr=False)
    max_pending: int = field(default=10_000, repr=False)
    limits: Limits = field(default_factory=Limits, repr=False)
    clock: Clock = field(default_factory=SystemClock, repr=False)
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            InvalidJobError: a setting is wrong; the message says which.
        """
        for name in ("stale_timeout", "deadline", "call_timeout", "poll_interval"):
            to_seconds(name, getattr(self, name))
        check_integer("max_pending", self.max_pending, 1, 2**31)
