"""The map of files in docs/architecture.md says what the modules say of themselves."""

from tests.docs.architecture_map import PAGE, page


def test_the_map_is_that_of_the_modules():
    assert page() == PAGE.read_text(encoding="utf-8"), "python -m tests.docs.architecture_map writes it anew"
