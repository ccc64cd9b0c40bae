"""Spark on this machine, started and stopped like the servers. It is unavailable without Java."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.servers.child import ServerUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkHere:
    """A Spark session on two cores.

    Attributes:
        session: the session, once it is started.
    """

    session: SparkSession

    def start(self) -> None:
        """Start the session.

        Raises:
            ServerUnavailableError: a requirement is missing.
        """
        from jqueue.spark.session import java_problem, local_session

        problem = java_problem()
        if problem is not None:
            raise ServerUnavailableError(problem)
        interrupt = signal.getsignal(signal.SIGINT)
        few = {"spark.sql.codegen.wholeStage": "false", "spark.sql.shuffle.partitions": "1"}  # quick for a few rows
        self.session = local_session("jqueue tests", "local[2]", **few)
        signal.signal(signal.SIGINT, interrupt)  # replaces PySpark's handler, which would break tests of Ctrl-C
        self.session.sparkContext.setLogLevel("ERROR")

    def stop(self) -> None:
        """Stop the session."""
        self.session.stop()
