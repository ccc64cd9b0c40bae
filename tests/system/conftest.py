"""Fixtures of tests/interop that the tests with programs outside Python use as well."""

import pytest

from tests.interop.conftest import ours
from tests.interop.formats.conftest import unpacked

__all__ = ["ours", "unpacked"]

pytest.register_assert_rewrite("tests.interop.formats.dirq_contract", "tests.interop.formats.mixed")
