"""A simulation of several processes on one store, under every fault there is, from one seed.

from jqueue.testing.simulation import Settings, run_seed

run_seed(7, Settings(rate=0.2))
"""

from jqueue.testing.simulation.auditor import Violation
from jqueue.testing.simulation.network import FaultKind
from jqueue.testing.simulation.runner import Report, Settings, run_seed

__all__ = ["FaultKind", "Report", "Settings", "Violation", "run_seed"]
