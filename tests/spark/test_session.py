"""The version of PySpark, and the interpreter that a session runs."""

import os
import subprocess
import sys

import pytest

from pyspark_jqueue import DefaultSource


@pytest.mark.parametrize("version", ["4.1.4", "4.0.0.dev1", "3.5.7"])
def test_an_outdated_pyspark_is_refused_with_the_required_version(version):
    older = type("Older", (DefaultSource,), {"pyspark_version": version})
    with pytest.raises(ImportError) as caught:
        older({"path": "queue.json"})
    wanted = f"jqueue needs PySpark 4.2 or newer, but this is '{version}': pip install \"jqueue[spark]\""
    assert wanted == str(caught.value)
    for recent in ("4.2.0", "4.10.1", "5.0"):
        type("Newer", (DefaultSource,), {"pyspark_version": recent})({"path": "queue.json"})


def test_jqueue_spark_is_imported_without_pyspark_until_it_is_used():
    program = "import sys, jqueue.spark; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))
