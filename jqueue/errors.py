"""Every error that jqueue raises. Those that most programs catch can be imported from `jqueue`, too."""

from jqueue.domain.errors import *  # noqa: F403
from jqueue.domain.errors import __all__ as __all__
