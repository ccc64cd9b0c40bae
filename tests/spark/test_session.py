"""Which Python a session has Spark run, on this machine and elsewhere."""

import sys

import pytest

from jqueue.spark.session import interpreters

SENT = {"PYSPARK_PYTHON": "./environment/bin/python"}
OTHER = {"PYSPARK_DRIVER_PYTHON": "python3"}


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_all_runs_what_this_process_runs_if_nobody_says_otherwise(master):
    here = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    assert here == interpreters(master, {})
    assert {"PYSPARK_PYTHON": sys.executable} == interpreters(master, OTHER)
    assert {} == interpreters(master, {**SENT, **OTHER})


def test_who_says_what_executors_run_says_it_for_data_sources_too():
    assert {} == interpreters("spark://host:7077", SENT)
    assert {"PYSPARK_DRIVER_PYTHON": sys.executable} == interpreters("local[2]", SENT)
