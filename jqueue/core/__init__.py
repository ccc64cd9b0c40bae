"""The compare-and-set engine and the queues built on it."""

from typing import TYPE_CHECKING

from jqueue._submodules import imported_at_first_use

if not TYPE_CHECKING:
    __getattr__ = imported_at_first_use(__name__)
