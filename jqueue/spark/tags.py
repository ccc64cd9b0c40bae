"""Spark jobs under a tag: if the driver gives them up, their tasks are stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def tagged(spark: SparkSession, name: str) -> Iterator[None]:
    """Tag the Spark jobs of a block, and interrupt them if it fails.

    Args:
        spark: the session.
        name: the end of the tag, which no other block has.
    """
    tag = f"jqueue-{name}"
    spark.addTag(tag)
    try:
        yield
    except BaseException:
        with suppress(Exception):
            spark.interruptTag(tag)
        raise
    finally:
        with suppress(Exception):  # if Spark has ended, another error says so
            spark.removeTag(tag)
