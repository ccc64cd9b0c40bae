"""A history of queues: each call looks at them once, and adds what it sees, and what has happened since the last.

    python examples/queue_history/run.py "queues/*.json" --into history

It runs the declarative pipeline of this folder. Its table `history/warehouse/history` is a time series of Parquet
files; `latest` and `daily`, beside it, are made from that table. The table `events` has the events of queues that keep
a history, which each run appends; `work` is made from it. Have cron call the program every few minutes, one run after
the other. It needs `pip install "jqueue[pipelines,spark]"` and Java 17.

The folder has all that Spark keeps between runs: tables, their catalog and their progress. If you have a catalog and a
scheduler, use the project without this program: fill in the spec, and call `spark-pipelines run`.
"""

import argparse
import os
import socket
import sys
from pathlib import Path

import yaml  # type: ignore[import-untyped]

PROJECT = Path(__file__).resolve().parent

CONNECT_PORT = 15002
"""Port on which `spark-pipelines` talks to the Spark that it starts; it cannot be changed."""

CONF = """\
spark.sql.catalogImplementation hive
spark.sql.warehouse.dir {folder}/warehouse
spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName={folder}/metastore;create=true
spark.driver.extraJavaOptions -Dderby.system.home={folder}
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.connect.grpc.binding.address 127.0.0.1
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.log.level ERROR
"""
"""Spark settings for the folders of tables and catalog. A spec cannot set them, as they are fixed when Spark starts."""


def prepare(folder: Path, queues: list[str]) -> Path:
    """Write what a run needs into the folder of the history. Returns the path of its spec."""
    spec = yaml.safe_load((PROJECT / "spark-pipeline.yml").read_text())
    spec["storage"] = (folder / spec["storage"]).as_uri()
    spec["configuration"]["spark.jqueue.queues"] = ",".join(map(absolute, queues))
    spec["configuration"]["spark.jqueue.lake"] = str(folder / spec["configuration"]["spark.jqueue.lake"])
    for library in spec["libraries"]:
        library["glob"]["include"] = os.path.relpath(PROJECT / library["glob"]["include"], folder)
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "spark-defaults.conf").write_text(CONF.format(folder=folder))
    place = folder / "spark-pipeline.yml"
    place.write_text(yaml.safe_dump(spec, sort_keys=False))
    return place


def absolute(queue: str) -> str:
    """Return the URL, or the absolute path, of a queue: the pipeline may run in another folder."""
    return queue if "://" in queue else os.path.abspath(queue)


def is_taken(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Add the current figures of queues to a history.")
    parser.add_argument("queues", nargs="+", help="URLs of queues, with wildcards or without")
    parser.add_argument("--into", type=Path, required=True, help="folder of the history; created if missing")
    arguments = parser.parse_args()
    if "SPARK_TESTING" not in os.environ and is_taken(CONNECT_PORT):
        sys.exit(f"port {CONNECT_PORT} is taken, perhaps by another run: wait until it ends, then try again")
    folder = arguments.into.resolve()
    spec = prepare(folder, arguments.queues)
    os.environ.update(SPARK_CONF_DIR=str(folder / "conf"), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    os.environ.setdefault("PYTHONWARNINGS", "ignore:Failed to set spark.sql.catalogImplementation")  # it is set
    command = Path(sys.executable).with_name("spark-pipelines")
    if not command.exists():
        sys.exit('there is no spark-pipelines beside this Python: pip install "jqueue[pipelines,spark]"')
    os.execv(command, [str(command), "run", "--spec", str(spec)])


if __name__ == "__main__":
    main()
