"""A simulation of several processes on one store, with every kind of fault. The seed makes a run repeatable.

from jqueue.testing.simulation import Settings, run_seeds

run_seeds(range(100), Settings(make_storage=MyStorage))
"""

from jqueue.testing.simulation.calls import Violation
from jqueue.testing.simulation.many import run_seeds
from jqueue.testing.simulation.network import FaultKind
from jqueue.testing.simulation.runner import Report, Settings, run_seed

__all__ = ["FaultKind", "Report", "Settings", "Violation", "run_seed", "run_seeds"]
