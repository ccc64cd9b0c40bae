"""Spark on this machine, started and stopped as the servers are: without Java, it cannot be had."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.servers.child import ServerUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkHere:
    """A session on two cores.

    Attributes:
        session: once it is started.
    """

    session: SparkSession

    def start(self) -> None:
        """Start the machine that Spark runs on.

        Raises:
            ServerUnavailableError: it needs something that is not there.
        """
        from jqueue.spark.session import java_problem, local_session

        problem = java_problem()
        if problem is not None:
            raise ServerUnavailableError(problem)
        interrupt = signal.getsignal(signal.SIGINT)
        self.session = local_session("jqueue tests", "local[2]")
        signal.signal(signal.SIGINT, interrupt)  # PySpark's own would end what others press Ctrl-C for
        self.session.sparkContext.setLogLevel("ERROR")

    def stop(self) -> None:
        """Stop it."""
        self.session.stop()
