"""The Python interpreter that Spark runs for a session, on this machine and on executors."""

import sys

import pytest

from jqueue.spark.datasource import JQueueDataSource
from jqueue.spark.session import interpreters, require_spark

SENT = {"PYSPARK_PYTHON": "./environment/bin/python"}
OTHER = {"PYSPARK_DRIVER_PYTHON": "python3"}


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_python_defaults_to_the_interpreter_of_this_process(master):
    here = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    assert here == interpreters(master, {})
    assert {"PYSPARK_PYTHON": sys.executable} == interpreters(master, OTHER)
    assert {} == interpreters(master, {**SENT, **OTHER})


def test_a_python_set_for_executors_also_applies_to_data_sources():
    assert {} == interpreters("spark://host:7077", SENT)
    assert {"PYSPARK_DRIVER_PYTHON": sys.executable} == interpreters("local[2]", SENT)


@pytest.mark.parametrize("version", ["4.1.4", "4.0.0.dev1", "3.5.7"])
def test_an_outdated_pyspark_is_refused_with_the_required_version(version):
    class Older(JQueueDataSource):
        pyspark_version = version

    wanted = f"jqueue needs PySpark 4.2 or newer, but this is '{version}': pip install \"jqueue[spark]\""
    for refused in (lambda: Older({"path": "queue.json"}), lambda: require_spark("4.2.0", version)):
        with pytest.raises(ImportError) as caught:
            refused()
        assert wanted == str(caught.value)


@pytest.mark.parametrize("version", ["4.2.0", "4.10.1", "4.2.0.dev3", "5.0"])
def test_a_recent_pyspark_is_accepted(version):
    require_spark(version)
