"""A Spark session on this machine, with the settings that jqueue needs, for programs that have none."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from jqueue.domain.errors import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

NEEDED = (4, 2)
"""The oldest PySpark that supports all that our data source does."""

INSTALL = 'pip install "jqueue[spark]"'

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}
ON_THIS_MACHINE = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOG = Path(__file__).with_name("log4j2.properties")


def spark_problem(version: str) -> str | None:
    """Return why this version of PySpark or Spark cannot be used, in one line; None if it can."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= NEEDED:
        return None
    return f"jqueue needs PySpark {NEEDED[0]}.{NEEDED[1]} or newer, but this is {shown(version)}: {INSTALL}"


def require_spark(*versions: str) -> None:
    """Refuse to work with a PySpark or a Spark that is too old.

    Args:
        versions: of PySpark in this process, and of the session.

    Raises:
        ImportError: one of the versions is too old.
    """
    if problems := [*filter(None, map(spark_problem, versions))]:
        raise ImportError(problems[0])


def java_problem() -> str | None:
    """Return why Spark cannot run here for lack of Java, in one line; None if it can."""
    home, need = os.environ.get("JAVA_HOME"), f"Spark needs Java {JAVA_VERSION} or newer, but"
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        return f"{need} there is none: install one, or set JAVA_HOME"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return f"{need} {java} does not run: install one, or set JAVA_HOME"
    version = re.search(r'"((?:1\.)?(\d+)[^"]*)', answer)
    if version is not None and int(version[2]) < JAVA_VERSION:
        return f"{need} {java} is {version[1]}: install a newer one, or set JAVA_HOME"
    return None


def local_session(
    name: str = "jqueue", master: str = "local[*]", *, log: str = "WARN", **settings: str
) -> SparkSession:
    """Return a session on this machine, or the session that already runs in this process.

    Spark logs one line for each message, without Java's stack traces.

    Args:
        name: of the application.
        master: the address of Spark.
        log: lowest level of Spark's log on stderr: OFF, ERROR, WARN or INFO. OFF also silences PySpark in this process.
        settings: more of Spark's settings, by their names, or with `_` for each dot: `spark_ui_enabled="true"`.

    Raises:
        ImportError: PySpark is too old.
        RuntimeError: Spark cannot run here. The message says what it needs.
    """
    import pyspark
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
    if log == "OFF":
        for noisy in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):  # pages of stack traces
            logging.getLogger(noisy).setLevel(logging.CRITICAL + 1)
        warnings.filterwarnings("ignore", module=r"pyspark\.")  # of versions of packages that jqueue does not need
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    own_log = f"-Dlog4j2.configurationFile={LOG.as_uri()} -Djqueue.spark.log={log}"
    wanted = {key if "." in key else key.replace("_", "."): value for key, value in settings.items()}
    wanted[JAVA_OPTIONS] = f"{own_log} {wanted.get(JAVA_OPTIONS, '')}".strip()
    defaults = DEFAULTS
    if is_here:  # executors elsewhere have to reach the driver
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults = {**DEFAULTS, **ON_THIS_MACHINE}
    builder = SparkSession.builder.appName(name).master(master)
    return builder.config(map={**defaults, **wanted}).getOrCreate()
