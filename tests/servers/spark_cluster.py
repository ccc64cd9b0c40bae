"""A standalone Spark cluster: a master, and a worker on each of two hosts, which are two names of this machine.

It has two hosts, because Spark never starts a speculative copy of a task on the host of the task.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.servers.child import Child, ServerUnavailableError

ROOT = Path(__file__).parents[2]
READY_SECONDS = 90.0
PATIENCE = 15.0
"""Seconds for a worker to end. Spark allows ten seconds for its executors."""

HOSTS = ("127.0.0.1", "localhost")
DEPLOY = "org.apache.spark.deploy"
ONLY_HERE = {"SPARK_LOCAL_IP": "127.0.0.1"}
DAEMON = {
    **ONLY_HERE,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
    # executors inherit these: files of a killed executor are then in the folder that is removed with its worker
    "JAVA_TOOL_OPTIONS": "-Djava.io.tmpdir={folder} -XX:-UsePerfData",
    "SPARK_LOCAL_DIRS": "{folder}",
    "TMPDIR": "{folder}",
}

_MASTER = r"Starting Spark master at (spark://\S+)"
_REGISTERED = "Successfully registered with master"


class SparkCluster:
    """A standalone cluster of two workers, each with one core.

    Attributes:
        master: URL of the master, once the cluster is started.
        processes: the processes of the master and of the workers.
    """

    master: str

    def __init__(self) -> None:
        self.processes: list[Child] = []

    def start(self) -> None:
        """Start the cluster, and wait until both workers are registered with the master.

        Raises:
            ServerUnavailableError: a requirement is missing.
        """
        from jqueue.spark.session import java_problem

        problem = java_problem()
        if problem is not None:
            raise ServerUnavailableError(problem)
        try:
            self.master = self._begun("master.Master", HOSTS[0]).wait_for(_MASTER, READY_SECONDS)
            size = ("--cores", "1", "--memory", "1g", "--work-dir", "{folder}")
            for worker in [self._begun("worker.Worker", host, *size, self.master) for host in HOSTS]:
                worker.wait_for(_REGISTERED, READY_SECONDS)
        except ServerUnavailableError:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the cluster, workers first."""
        while self.processes:
            self.processes.pop().stop()

    def environment(self) -> dict[str, str]:
        """Environment of a driver: it can import the modules of tests, and executors run this interpreter."""
        return {**os.environ, **ONLY_HERE, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}

    @property
    def workers(self) -> list[Child]:
        """The processes of the workers. Executors run below their folders."""
        return self.processes[1:]

    def _begun(self, kind: str, host: str, *options: str) -> Child:
        import pyspark

        program = str(Path(pyspark.__file__).with_name("bin") / "spark-class")
        place = ("--host", host, "--port", "0", "--webui-port", "0")
        self.processes.append(Child([program, f"{DEPLOY}.{kind}", *place, *options], DAEMON, PATIENCE))
        return self.processes[-1]
