"""The page of a report is complete, self-contained, and safe with hostile names. It is made without Spark."""

import re
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from jqueue.spark.report.columns import EntrypointFigures
from jqueue.spark.report.plots import MARKS, MOST_BARS, Times, entrypoint_bars, ranges, scale_of
from jqueue.spark.report.sections import MOST_ROWS, OPEN_ROWS
from tests.spark.report.plain_report import NAMES, Line, plain_report, some_lines

pytestmark = pytest.mark.wide

VOID = {"meta", "link", "br", "hr", "img", "input"}
REFERENCES = {"src", "href", "srcset", "action", "data", "poster", "xlink:href", "background", "formaction", "ping"}


class Page(HTMLParser):
    """A parsed page, which must be well formed."""

    def __init__(self, text):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert [] == self.open

    def handle_starttag(self, tag, attrs):
        assert len(attrs) == len(dict(attrs)), f"an attribute of {tag} stands twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag == self.open.pop()

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def text_of(self, tag):
        return [text.strip() for where, text in self.texts if where == tag and text.strip()]

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(report, tmp_path):
    place = report.to_html(tmp_path / "report.html")
    return Page(place.read_text(encoding="utf-8"))


HOSTILE = (
    "<script>alert(1)</script>",
    "</style><script>alert(2)</script>",
    '" onmouseover="alert(3)',
    "' autofocus onfocus='alert(4)",
    "{{ 7 * 191 }}{% raw %}",
    "&lt;b&gt;",
    "<!--",
    "]]>",
    "javascript:alert(5)",
    "\x1b[31m\u202e\x00",
)


def test_the_page_is_well_formed_and_has_no_external_references(tmp_path):
    lines = some_lines(3, 400, queues=("s3://bucket/a.json", "s3://bucket/b.json"))
    page = page_of(plain_report(lines, ("s3://bucket/a.json", "s3://bucket/b.json")), tmp_path)

    references = [(tag, value) for tag, found in page.tags for name, value in found.items() if name in REFERENCES]
    assert [("link", "data:,")] == references
    [style] = page.text_of("style")
    assert not re.search(r"url\(|@import|expression", style)
    assert [] == page.named("script") == page.named("iframe") == page.named("object")
    policy = next(each["content"] for each in page.named("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "script" not in policy


def test_hostile_names_are_shown_as_text(tmp_path):
    queues = tuple(f"/queues/{name}" for name in HOSTILE)
    lines = [
        Line(queue, name, status="dead", attempt=1, error="TimeoutError: ")
        for queue, name in zip(queues, HOSTILE, strict=True)
    ]
    page = page_of(plain_report(lines, queues), tmp_path)

    assert [] == page.named("script") == page.named("b")
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "autofocus"]
    shown = set(page.text_of("span"))
    assert {*HOSTILE[:-1], "\\x1b[31m\\u202e\\x00"} <= shown
    assert "1337" not in "".join(text for _, text in page.texts)


def test_every_plot_has_a_description_and_a_table(tmp_path):
    page = page_of(plain_report(some_lines(4, 300, queues=("q",))), tmp_path)

    told = [each["aria-label"] for _, each in page.tags if each.get("role") == "img"]
    assert 7 == len(told) == len(page.named("figure"))
    assert all(len(words) > 40 for words in told)
    assert ["Entrypoints", "Waiting", "Finished", "Attempts", "Errors"] == page.text_of("summary")
    assert 5 == len(page.named("table")) == len(page.named("section"))
    assert {"col", "row"} == {each.get("scope") for each in page.named("th")}
    assert ["en"] == [each.get("lang") for each in page.named("html")]
    assert any(each.get("name") == "viewport" for each in page.named("meta"))


def test_the_page_shows_the_figures_of_the_report(tmp_path):
    lines = [Line("q", "mail") for _ in range(1234)] + [Line("q", "mail", status="dead", error="ValueError: 451")] * 2
    page = page_of(plain_report(lines), tmp_path)

    assert ["1,234", "0", "0", "2", "0", "0 s", "0"] == page.text_of("dd")
    assert ["2 jobs are dead, most often because of ValueError (2)."] == page.text_of("li")[:1]
    assert "451" not in "".join(text for _, text in page.texts)
    widths = [each["width"] for each in page.named("rect") if each.get("class") in ("ready", "dead")]
    assert ["99.838%", "0.162%", "100.0%"] == widths


def test_failed_jobs_that_wait_for_a_retry_are_summarised(tmp_path):
    lines = [Line("q", "mail", attempt=1, error="timed out after 3 s")] * 3
    page = page_of(plain_report([*lines, Line("q", "mail", attempt=1, error="ValueError: 451")]), tmp_path)
    assert [
        "4 jobs have failed and are waiting for another try or already in it, most often because of timeout (3)."
    ] == page.text_of("li")[:1]


def test_a_small_count_is_visible_beside_a_large_one():
    place = scale_of([1_000_000, 500, 5, 1, 0])
    lengths = [place(count) for count in (1_000_000, 500, 5, 1, 0)]
    assert sorted(lengths, reverse=True) == lengths
    assert (100, 0) == (lengths[0], lengths[-1])
    assert lengths[-2] > 4


def test_counts_of_similar_size_have_proportional_bars():
    assert [100, 50, 10] == [scale_of([200, 100, 20])(count) for count in (200, 100, 20)]


def test_the_parts_of_a_bar_are_proportional_at_any_scale():
    standings = (
        EntrypointFigures("q", "a", jobs=1000, ready=1000),
        EntrypointFigures("q", "b", jobs=10, ready=5, dead=5),
    )
    _, small = entrypoint_bars(standings, {"q": "q"})
    ready, dead = small.pieces
    assert ready.length == dead.length > 10


def test_queues_without_jobs_are_listed(tmp_path):
    page = page_of(plain_report([], ("/a.json", "/b.json")), tmp_path)

    assert ["There are no jobs.", "/a.json", "/b.json"] == page.text_of("li")
    assert [] == page.named("section")


def test_long_tables_are_collapsed_and_cut_and_plots_show_the_largest(tmp_path):
    many = [Line("q", f"e{number:05}", attempt=number % 3) for number in range(MOST_ROWS + 5)]
    page = page_of(plain_report(many), tmp_path)

    assert all("open" not in each for each in page.named("details"))
    assert "And 5 more." in page.text_of("p")
    assert f"{MOST_ROWS + 5 - MOST_BARS} entrypoints with fewer jobs: in the table only." in page.text_of("p")

    few = page_of(plain_report(many[:OPEN_ROWS]), tmp_path)
    assert all("open" in each for each in few.named("details"))


def test_a_range_is_placed_by_the_marks_of_its_axis():
    made = ranges([Times("long", 0.1, 10.0, 999.0), Times("short", 0.1, 0.1, 1.0)])

    assert made is not None
    marks = {words: place for place, words in made.marks}
    assert {"100 ms", "1 s", "10 s", "10 min"} == set(marks)
    long, short = made.rows
    assert ("long", 0.0, marks["10 s"], "100 ms, 10 s, 17 min") == (long.name, long.middle, long.high, long.description)
    assert marks["10 min"] < long.most < 100
    assert ("short", 0.0, 0.0, marks["1 s"]) == short[:4]


EDGES = [(0.0, 0.0, 0.0), (1e-9, 1.0, 1e12), (3.0, 3.0, 3.0), (86400.0, 86400.0, 1e9), (max(MARKS),) * 3]


@pytest.mark.parametrize("others", [[], [Times("f", 1.0, 2.0, 3.0)]])
@pytest.mark.parametrize("times", EDGES)
def test_ranges_of_any_durations_are_on_their_axis(times, others):
    made = ranges([Times("e", *times), *others])

    assert made is not None
    assert 1 + len(others) == len(made.rows)
    for row in made.rows:
        assert 0 <= row.middle <= row.high <= row.most <= 100
    places = [place for place, _ in made.marks]
    assert places == sorted(places)
    assert {words for _, words in made.marks} <= set(MARKS.values())
    assert all(later - earlier >= 20 for earlier, later in pairwise(places))


def test_a_plot_without_times_is_left_out():
    assert ranges([]) is None


def test_unusual_names_are_shown_completely(tmp_path):
    page = page_of(plain_report([Line(entrypoint=name) for name in NAMES]), tmp_path)
    assert set(NAMES) <= set(page.text_of("span"))


def test_a_missing_jinja_gives_a_one_line_error(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "jqueue.spark.report.page", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)

    with pytest.raises(ImportError) as raised:
        plain_report([]).to_html(tmp_path / "report.html")
    assert 'the page of a report needs Jinja: pip install "jqueue[report]"' == str(raised.value)
