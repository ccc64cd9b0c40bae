"""docs/reference/state-machine.md shows exactly the transitions of the transition table.

`python tests/docs/test_state_machine.py` writes them into the page.
"""

from pathlib import Path

from jqueue.domain.job import JobStatus
from jqueue.domain.transitions import TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "state-machine.md"
BEGIN, END = "<!-- from the transition table -->\n", "<!-- end -->\n"


def generated() -> str:
    """The table, as the page shows it."""

    def name(status: JobStatus | None) -> str:
        return "not in the queue" if status is None else str(status)

    rows = [
        f"| {name(before)} | {verb} | {' or '.join(map(name, after))} |"
        for (before, verb), after in TRANSITIONS.items()
    ]
    table = "\n".join(["| from | verb | to |", "| --- | --- | --- |", *rows])
    return f"\n{table}\n\n"


def test_the_page_shows_the_transition_table():
    text = PAGE.read_text(encoding="utf-8")
    assert generated() == text.partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + generated() + END + rest.partition(END)[2], encoding="utf-8")
