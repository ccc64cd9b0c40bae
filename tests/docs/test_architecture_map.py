"""The rooms in the architecture page and the files in the files page match the docstrings of the modules."""

import pytest

from tests.docs.architecture_map import PAGES, as_it_should_be


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_maps_match_the_docstrings_of_the_modules(page):
    assert as_it_should_be(page) == page.read_text(encoding="utf-8"), "python -m tests.docs.architecture_map writes it"
