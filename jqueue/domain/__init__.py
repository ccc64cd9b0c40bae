"""The model of a queue and the rules for changing it: jobs, operations, errors. No I/O, no clock, no asyncio."""

from typing import TYPE_CHECKING

from jqueue._submodules import imported_at_first_use

if not TYPE_CHECKING:
    __getattr__ = imported_at_first_use(__name__)
