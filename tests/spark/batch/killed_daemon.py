"""The process from which Spark forks the Python processes of tasks, as PySpark's own, which follow a plan of kills."""

from pyspark.daemon import manager

from tests.spark.batch.killed_life import Plan

if __name__ == "__main__":
    Plan.given().begin("task")
    manager()
