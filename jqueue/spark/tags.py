"""Spark jobs under a tag: if the driver gives them up, their tasks are stopped. And their names, and their context."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DESCRIPTION = "spark.job.description"


@contextmanager
def tagged(spark: SparkSession, name: str, description: str) -> Iterator[None]:
    """Tag the Spark jobs of a block, and interrupt them if it fails.

    Args:
        spark: the session.
        name: the end of the tag, which no other block has.
        description: the jobs and their stages have it in Spark's interface.
    """
    tag = f"jqueue-{name}"
    spark.addTag(tag)
    try:
        with _described(spark, description):
            yield
    except BaseException:
        with suppress(Exception):
            spark.interruptTag(tag)
        raise
    finally:
        with suppress(Exception):  # if Spark has ended, another error says so
            spark.removeTag(tag)


@contextmanager
def _described(spark: SparkSession, description: str) -> Iterator[None]:
    """Have the Spark jobs of a block a description, unless the program has given them one. Spark Connect has none."""
    context: Any = None
    with suppress(Exception):  # of Spark Connect
        context = spark.sparkContext
    if context is None or context.getLocalProperty(DESCRIPTION) is not None:
        yield
        return
    context.setLocalProperty(DESCRIPTION, description)
    try:
        yield
    finally:
        with suppress(Exception):  # Spark may have ended
            context.setLocalProperty(DESCRIPTION, None)


def task_context() -> TaskContext | None:
    """Return the context of a task; None if it is not called by Spark.

    PySpark collects garbage after each task: 70 ms for modules that nothing will unload. So from the first task of a
    process on, no collection visits what is loaded by then.
    """
    context = TaskContext.get()
    if context is not None and not gc.get_freeze_count():
        gc.freeze()
    return context
