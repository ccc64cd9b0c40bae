"""A Spark session on this machine, with the settings that jqueue needs, and what jqueue needs of any session."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from jqueue.domain.errors import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

NEEDED = (4, 2)
"""The oldest PySpark that supports all that our data source does."""

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}
ON_THIS_MACHINE = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

DESCRIPTION = "spark.job.description"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOG = Path(__file__).with_name("log4j2.properties")


def require_spark(*versions: str) -> None:
    """Refuse to work with a PySpark or a Spark that is too old.

    Args:
        versions: of PySpark in this process, and of the session.

    Raises:
        ImportError: one of the versions is too old.
    """
    for version in versions:
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < NEEDED:
            raise ImportError(
                f"jqueue needs PySpark {NEEDED[0]}.{NEEDED[1]} or newer, but this is {shown(version)}: "
                'pip install "jqueue[spark]"'
            )


def java_problem() -> str | None:
    """Return why Spark cannot run here for lack of Java, in one line; None if it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    problem = "there is none"
    if java is not None:
        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
        except (OSError, subprocess.SubprocessError):
            answer = ""
        version = re.search(r'"((?:1\.)?(\d+)[^"]*)', answer)
        if version is not None and int(version[2]) >= JAVA_VERSION:
            return None
        problem = f"{java} " + ("does not run" if version is None else f"is {version[1]}")
    return f"Spark needs Java {JAVA_VERSION} or newer, but {problem}: install one, or set JAVA_HOME"


def local_session(name: str = "jqueue", master: str = "local[*]", **settings: str) -> SparkSession:
    """Return a session on this machine, or the session that already runs in this process.

    Spark logs one line for each warning, without Java's stack traces.

    Args:
        name: of the application.
        master: the address of Spark.
        settings: more of Spark's settings, by their names, or with `_` for each dot: `spark_ui_enabled="true"`.

    Raises:
        ImportError: PySpark is too old.
        RuntimeError: Spark cannot run here. The message says what it needs.
    """
    from pyspark.sql import SparkSession

    require_spark(pyspark.__version__)
    if (problem := java_problem()) is not None:
        raise RuntimeError(problem)
    # Executors must run the same Python as this process, unless `PYSPARK_PYTHON` counts for all processes of a cluster.
    # The driver's Python alone would be run by executors, too, for a source that Spark finds by itself, such as ours.
    is_here = master.startswith("local")
    if is_here or "PYSPARK_PYTHON" not in os.environ:
        for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.setdefault(variable, sys.executable)
    wanted = {key if "." in key else key.replace("_", "."): value for key, value in settings.items()}
    wanted[JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={LOG.as_uri()} {wanted.get(JAVA_OPTIONS, '')}".strip()
    defaults = DEFAULTS
    if is_here:  # executors elsewhere have to reach the driver
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults = {**DEFAULTS, **ON_THIS_MACHINE}
    builder = SparkSession.builder.appName(name).master(master)
    return builder.config(map={**defaults, **wanted}).getOrCreate()


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
        with described(spark, description):
            yield
    except BaseException:
        with suppress(Exception):
            spark.interruptTag(tag)
        raise
    finally:
        with suppress(Exception):  # if Spark has ended, another error says so
            spark.removeTag(tag)


@contextmanager
def described(spark: SparkSession, description: str) -> Iterator[None]:
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


def task_context() -> pyspark.TaskContext | None:
    """Return the context of a task; None if it is not called by Spark.

    PySpark collects garbage after each task: 70 ms for modules that nothing will unload. So from the first task of a
    process on, no collection visits what is loaded by then.
    """
    context = pyspark.TaskContext.get()
    if context is not None and not gc.get_freeze_count():
        gc.freeze()
    return context
