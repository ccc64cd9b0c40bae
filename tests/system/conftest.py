"""What the tests beside other programs share with those beside the originals of Python."""

import pytest

from tests.interop.conftest import ours
from tests.interop.formats.conftest import unpacked

__all__ = ["ours", "unpacked"]

pytest.register_assert_rewrite("tests.interop.formats.dirq_contract", "tests.interop.formats.dirq_killed")
