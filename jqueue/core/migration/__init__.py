"""The move of jobs from one queue to another."""

from typing import TYPE_CHECKING

from jqueue._submodules import imported_at_first_use

if not TYPE_CHECKING:
    __getattr__ = imported_at_first_use(__name__)
