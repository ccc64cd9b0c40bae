"""Object storage adapters, one file each. A queue needs only their `read` and `write`."""

from typing import TYPE_CHECKING

from jqueue._submodules import imported_at_first_use

if not TYPE_CHECKING:
    __getattr__ = imported_at_first_use(__name__)
