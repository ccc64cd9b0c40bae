"""The page in a real browser, if there is one: it loads nothing, runs no script, and fits the screen."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from jqueue.spark.report.page import page_of
from tests.spark.report.plain_report import plain_report, some_lines
from tests.spark.report.test_past_page import TIMES, past_with

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --hide-scrollbars"
)
"""Flags without which the browser contacts its maker's servers."""

pytestmark = [pytest.mark.full, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


def browse(page, tmp_path, *flags):
    command = [str(CHROMIUM), *QUIET.split(), f"--user-data-dir={tmp_path / 'profile'}", *flags, Path(page).as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


NO_RUNS = {name: None for name in TIMES if name.endswith("_run")}

MEASURE = """
<script>
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(
    each => !each.closest(".scroll") && each.getBoundingClientRect().right > innerWidth + 1
  );
  document.body.dataset.found = JSON.stringify({
    width: document.documentElement.scrollWidth,
    inner: innerWidth,
    wide: wide.map(each => each.tagName + "." + each.className),
    figures: document.querySelectorAll("figure").length,
    plots: [...document.querySelectorAll("figure.wide")].map(each => Math.round(each.getBoundingClientRect().width)),
    bars: [...document.querySelectorAll("rect.ready")].filter(each => each.getBoundingClientRect().width).length,
    alerted: window.alerted === true,
  });
});
</script>
"""
"""A script that measures the page. The page itself allows no scripts, so it is added to a copy without the policy."""


def measured(page, tmp_path, width):
    """Measure a copy of the page without its policy, in a frame with the width of a screen."""
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text(encoding="utf-8"))
    (tmp_path / "measured.html").write_text(text.replace("</head>", MEASURE + "</head>"), encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        f'<iframe id="f" width="{width}" height="800" style="border:0" src="measured.html"></iframe>'
        "<script>onload = () => setTimeout(() => { document.body.dataset.found = "
        'document.getElementById("f").contentDocument.body.dataset.found; }, 100)</script>'
    )
    seen = browse(
        tmp_path / "frame.html", tmp_path, "--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom"
    )
    found = re.search(r'data-found="([^"]*)"', seen.stdout)
    assert found, seen.stderr
    return json.loads(found[1].replace("&quot;", '"'))


@pytest.fixture
def page(tmp_path):
    queues = ("/queues/<img src=x onerror=window.alerted=true>.json", "/queues/" + "long" * 60 + ".json")
    return plain_report(some_lines(5, 600, queues=queues), queues).to_html(tmp_path / "report.html")


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_the_width_of_the_screen(page, tmp_path, width):
    found = measured(page, tmp_path, width)

    assert width == found["inner"]
    assert [] == found["wide"]
    assert found["width"] <= width
    assert 7 == found["figures"]
    assert found["bars"] > 5
    assert not found["alerted"]


@pytest.mark.parametrize(("width", "of_times"), [(400, 1), (1280, 1), (1280, 2)])
def test_two_plots_over_time_have_the_same_width(tmp_path, width, of_times):
    past = past_with(60, 5, places=(0, 1, 7))
    windows = tuple(each if of_times == 2 else each._replace(**NO_RUNS) for each in past.windows)
    (tmp_path / "past.html").write_text(page_of(None, replace(past, windows=windows)), encoding="utf-8")
    found = measured(tmp_path / "past.html", tmp_path, width)
    assert [] == found["wide"]
    assert 1 + of_times == len(found["plots"])
    assert 1 == len(set(found["plots"]))


def test_the_browser_logs_no_message_for_the_page(page, tmp_path):
    seen = browse(page, tmp_path, "--dump-dom", "--host-resolver-rules=MAP * ~NOTFOUND")

    assert "<h1>Queue report</h1>" in seen.stdout
    assert [] == [line for line in seen.stderr.splitlines() if "CONSOLE" in line]


def test_the_policy_of_the_page_blocks_injected_scripts(page, tmp_path):
    evil = tmp_path / "evil.html"
    text = page.read_text(encoding="utf-8").replace("</body>", "<script>document.title = 'evil'</script></body>")
    evil.write_text(text, encoding="utf-8")

    seen = browse(evil, tmp_path, "--dump-dom")

    assert "<title>evil</title>" not in seen.stdout
    assert "Content Security Policy" in seen.stderr
