"""Queues in the files of older programs (vsqs, dirq, TextQueue), which can keep working on them beside jqueue."""

from typing import TYPE_CHECKING

from jqueue._submodules import imported_at_first_use

if not TYPE_CHECKING:
    __getattr__ = imported_at_first_use(__name__)
