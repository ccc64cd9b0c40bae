"""The dashboard in a real browser: live figures, actions, hostile strings, two operators, foreign sites."""

import asyncio
import json
import signal
import time
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.domain.job import Progress
from jqueue.operations import Enqueue, Heartbeat, RecordStep
from jqueue.server.serving import Settings, serve_until_stopped
from tests.cli.commands import PATIENCE
from tests.cli.test_serving import running
from tests.server.chromium import chromium
from tests.server.test_looking import fill

pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("chromium")]

MARKUP = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>'
BIDI = "abc\u202ecba"
HOSTILE = (MARKUP, "\"'><svg onload=window.broken=1>", BIDI, "javascript:window.broken=1", "{{7*7}}${7*7}", "x" * 400)
"""Names that somebody may give an entrypoint, a key or an id."""

LONG_AGO = "2026-01-01T00:00:00+00:00"

VIEWS = ("/", "/jobs", "/workers", "/schedules", "/limits", "/dead", "/store")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


def on(path, verb, *arguments, **options):
    """Carry out a verb as another program."""

    async def call():
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            return await getattr(queue, verb)(*arguments, **options)

    return asyncio.run(call())


def add(path, *operations):
    on(path, "apply", *operations)


def filled(path):
    async def call():
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            return await fill(queue)

    return asyncio.run(call())


@contextmanager
def opened(browser, path):
    """The dashboard of a queue in the browser, served by a thread: a process takes a second of CPU time to start."""
    links = SimpleQueue[str]()

    async def serve():
        serving.append((asyncio.get_running_loop(), asyncio.current_task()))
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            with suppress(asyncio.CancelledError):
                await serve_until_stopped(queue, Settings(), links.put)

    serving: list[Any] = []
    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    link = links.get(timeout=PATIENCE)
    try:
        browser.open(link)
        browser.see("live, version")
        yield link.partition("#")[0]
    finally:
        [(loop, task)] = serving
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def test_the_page_follows_the_queue_pauses_and_limits_an_entrypoint_and_undoes_it(browser, path):
    filled(path)
    with opened(browser, path):
        assert "token" not in browser.driver.current_url
        browser.see("Ready\n1", ".cards")
        on(path, "enqueue", "mail", b"")
        browser.see("Ready\n2", ".cards")
        browser.press("Pause", "main")
        browser.press("Pause", "dialog")
        browser.see("paused", "main table")
        browser.press("Undo", "#notes")
        browser.see("Undone", "#notes")
        assert {} == on(path, "read_state").entrypoints
        browser.go("/limits")
        browser.press("Limits", "main")
        browser.until(lambda: browser.all("#field-max_running"), "the form")[0].send_keys("3")
        browser.press("Set the limits", "dialog")
        browser.see("New limits", "#notes")
        assert [] == browser.log()


def test_entrypoints_with_problems_come_first_others_are_folded_and_columns_are_sorted(browser, path):
    add(path, *(Enqueue(f"e{each:02}", b"") for each in range(20) for _ in range(20 - each)))
    on(path, "pause", "e18")
    on(path, "nack", on(path, "dequeue", "e19")[0], error="no server", dead=True)

    def names():
        return [each.text for each in browser.all("tbody .named > a")]

    with opened(browser, path):
        browser.resize(1280)
        browser.until(lambda: names() == ["e19", "e18", *(f"e{each:02}" for each in range(13))], "the problems")
        browser.see("Show 5 more entrypoints: 25 ready jobs, no problems", "main")
        browser.press("Ready", "thead")
        browser.until(lambda: names() == [f"e{each:02}" for each in range(15)], "the largest")
        browser.press("Ready", "thead")
        browser.until(lambda: names()[:3] == ["e19", "e18", "e17"], "the smallest")
        browser.press("Entrypoint", "thead")
        browser.press("Show 5 more", "main")
        browser.until(lambda: names() == [f"e{each:02}" for each in range(20)], "all by name")
        assert [] == browser.log()


def test_a_job_shows_when_it_waited_and_ran_and_keeps_its_id_when_it_has_finished(browser, path):
    on(path, "configure", history=3600)
    on(path, "enqueue", "mail", b"", job_id="mail-7", max_attempts=3)
    for error in ("no server 1", "no server 2"):
        on(path, "nack", on(path, "dequeue", "mail")[0], error=error)
    [job] = on(path, "dequeue", "mail")
    with opened(browser, path):
        browser.go("/job?id=mail-7")
        browser.see("runs for", ".timeline")
        said = [each.text.split()[0] for each in browser.all(".timeline li")]
        assert ["waited", "ran"] * 2 + ["waited", "runs"] == said
        assert ["failed", "failed"] == [each for each in browser.text(".timeline").split() if each == "failed"]
        browser.see("no server 2", ".timeline")
        on(path, "apply_each", RecordStep(job, "charge"), Heartbeat((job,), progress=(Progress(3, 10, "page <3>"),)))
        browser.see("3 of 10, page <3>", ".facts")
        browser.see("charge", "main")
        on(path, "ack", job)
        browser.see("this job has finished", "main")
        browser.see("Job mail-7", "h1")
        assert "done" in browser.text(".timeline")
        assert [] == [line for line in browser.log() if "404" not in line]


def test_a_dialog_says_that_it_waits_and_trouble_of_the_server_or_the_store_is_told(browser, path):
    on(path, "enqueue", "mail", b"")
    with running(path) as (process, link):
        browser.open(link)
        browser.press("Pause…", "main")
        process.send_signal(signal.SIGSTOP)
        try:
            browser.press("Pause", "dialog")
            browser.see("Waiting 2 s", "dialog")
            assert [False] == [each.is_enabled() for each in browser.all("dialog .primary")]
            browser.see("no answer for 5 s", "#trouble")
        finally:
            process.send_signal(signal.SIGCONT)
        browser.see("Paused: mail", "#notes")
        browser.until(lambda: browser.text("#trouble") == "", "the end of the trouble")
        path.unlink()
        browser.see("restore it", "#trouble")


def test_the_question_for_a_token_stands_alone_and_its_error_goes_after_signing_in(browser, path):
    on(path, "enqueue", "mail", b"")
    with running(path) as (_, link):
        address, token = link.split("#token=")
        browser.driver.delete_all_cookies()
        browser.open(f"{address}#token=wrong")
        browser.see("the token is wrong", "#trouble")
        assert [] == [each for each in browser.all("#views, main, #live") if each.is_displayed()]
        field = browser.all("[name=token]")[0]
        field.send_keys("x")
        browser.press("Sign in", "#trouble")
        browser.see("the token is wrong", "#trouble")
        field.clear()
        field.send_keys(token)
        browser.press("Sign in", "#trouble")
        browser.see("Ready\n1", ".cards")
        assert "wrong" not in browser.text()
        browser.press("Sign out", "header")
        browser.see("you are not signed in", "#trouble")
        assert [] == [each for each in browser.all("#views, main, #sign-out") if each.is_displayed()]


def test_one_page_has_an_overview_of_several_queues_and_a_page_for_each(browser, path):
    other = path.with_name("other.json")
    on(path, "enqueue", "mail", b"")
    for number in range(3):
        on(other, "enqueue", "report", b"", job_id=f"r{number}")
    on(other, "nack", on(other, "dequeue", "report")[0], error="no server", dead=True)
    with running(path, other) as (_, link):
        browser.open(link)
        browser.resize(1280)
        browser.see("Ready\n1", ".cards")
        browser.go("/queues")
        browser.until(lambda: browser.text("tbody td:nth-child(2)").split() == ["1", "2"], "the figures of both")
        browser.all("tbody tr:nth-child(2) a")[0].click()
        browser.see("Ready\n2", ".cards")
        browser.go("/jobs?state=ready")
        browser.until(lambda: ids_shown(browser) == ["r1", "r2"], "its jobs")
        browser.all("tbody input")[0].click()
        browser.press("Cancel…", "main")
        browser.press("Cancel", "dialog")
        browser.see("Cancelled: r1", "#notes")
        browser.all("#name option")[0].click()
        browser.see("Ready\n1", ".cards")
        path.unlink()
        browser.driver.get(f"{link.partition('#')[0]}queues/1/#/queues")
        browser.see("restore it", "tbody tr:nth-child(1)")
        browser.until(lambda: browser.text("tbody td:nth-child(2)").split() == ["1"], "the other one")


def test_every_view_names_its_controls_and_is_no_wider_than_the_window(browser, path):
    ids = filled(path)
    nameless = """const name = (node) => (node.getAttribute("aria-label") || node.innerText
        || node.labels?.[0]?.innerText || "").trim();
        return [...document.querySelectorAll("button, a, input, select, svg[role=slider]")]
          .filter((node) => node.offsetParent !== null && !name(node)).map((node) => node.outerHTML)"""
    with opened(browser, path):
        for place in (*VIEWS, f"/job?id={ids['dead']}"):
            browser.go(place)
            browser.until(lambda: len(browser.all("main h1")) == 1, "a heading")
            browser.until(lambda: "Loading" not in browser.text("main"), "the view")
            assert [] == browser.driver.execute_script(nameless)
            for width in (360, 1920):
                browser.resize(width)
                over = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
                assert over <= 0, (width, place)


def test_actions_on_a_job_an_entry_and_a_group_ask_first_and_are_done(browser, path):
    for number, entrypoint in enumerate(("mail", "mail", "redriven", "removed")):
        on(path, "enqueue", entrypoint, b"", job_id=f"{entrypoint}-{number}")
        [job] = on(path, "dequeue", entrypoint)
        on(path, "nack", job, error=f"no server {number}", dead=True)
    dead = {job.entrypoint: job.id for job in on(path, "read_state").jobs}
    running = on(path, "enqueue", "running", b"").id
    on(path, "dequeue", "running")
    on(path, "schedule", "nightly", "0 3 * * *", "report")
    with opened(browser, path):
        browser.resize(1280)
        for place, button, question, confirm, done in (
            (f"/job?id={running}", "Stop…", f"{running} of running", "Stop", "Told to stop: "),
            (
                f"/job?id={dead['redriven']}",
                "Queue again…",
                "Failures are forgotten",
                "Queue again",
                "Queued again: redriven",
            ),
            (f"/job?id={dead['removed']}", "Remove…", "payload goes too", "Remove", "Removed: removed"),
            ("/schedules", "Run now…", "nightly of report", "Add the job", "Added job: "),
            ("/schedules", "Remove…", "nightly of report", "Remove the entry", "Removed the cron entry: nightly"),
            ("/dead", "Queue again…", "Queue these 2 jobs again?", "Queue again", "Queued again: 2"),
        ):
            browser.go(place)
            browser.press(button, "main")
            browser.see(question, "dialog")
            browser.press(confirm, "dialog")
            browser.see(done, "#notes")
    state = on(path, "read_state")
    assert ["mail", "mail", "redriven", "report"] == sorted(job.entrypoint for job in state.queued_jobs())
    assert [True] == [job.cancel_requested for job in state.in_progress_jobs()]
    assert 5 == len(state.jobs)
    assert [] == on(path, "schedules")


def test_jobs_are_selected_by_clicks_by_a_range_and_by_the_filter_and_changed_together(browser, path):
    from selenium.webdriver import ActionChains, Keys

    add(path, *(Enqueue("mail", b"", job_id=f"m{number:02}") for number in range(60)), Enqueue("other", b"", delay=60))
    with opened(browser, path):
        browser.go("/jobs?entrypoint=mail&state=ready")
        boxes = browser.until(lambda: len(found := browser.all("tbody input")) == 50 and found, "50 boxes")
        boxes[2].click()
        browser.see("1 selected", ".selection")
        ActionChains(browser.driver).key_down(Keys.SHIFT).click(boxes[4]).key_up(Keys.SHIFT).perform()
        browser.see("3 selected", ".selection")
        browser.press("Priority…", ".selection")
        browser.until(lambda: browser.all("#field-priority"), "the form")[0].send_keys("-4", Keys.ENTER)
        browser.see("New priority: 3", "#notes")
        jobs = on(path, "read_state").jobs
        assert ["m02", "m03", "m04"] == [job.id for job in jobs if job.priority == -4]
        browser.until(lambda: [each.text for each in browser.all("main td a.id")][:2] == ["m02", "m03"], "the order")
        browser.all(".selection input")[0].click()
        browser.until(lambda: len(browser.all(".selection input")) == 2, "all that match")
        browser.all(".selection input")[1].click()
        browser.press("Cancel…", ".selection")
        browser.see("Cancel these 60 jobs?", "dialog")
        browser.press("Cancel", "dialog")
        browser.see("Cancelled: 60", "#notes")
        assert ["other"] == [job.entrypoint for job in on(path, "read_state").jobs]
        assert [] == browser.log()


def ids_shown(browser):
    return [each.text for each in browser.all("main td a.id")]


def test_one_line_of_filters_suggests_what_there_is_and_finds_the_one_job(browser, path):
    from selenium.webdriver import Keys

    for number in range(3):
        payload = json.dumps({"to": f"bob{number}", "order": {"id": number}}).encode()
        on(path, "enqueue", "mail", payload, job_id=f"m{number}", unique_key=f"a key:{number}")
    on(path, "enqueue", "report", b"\xff\x00", job_id="r0")
    with opened(browser, path):
        browser.go("/jobs")
        browser.see('"to": "bob1"', "main table")
        browser.see("ready\n4", ".filters")
        line = browser.all("[name=line]")[0]

        def offered(typed):
            line.clear()
            line.send_keys(typed)
            options = "return [...arguments[0].list.options].map((each) => each.value)"
            return browser.driver.execute_script(options, line)

        assert {"entrypoint:", "key:", "error:", "payload:", "args.to:"} <= set(offered("a"))
        assert ["bob entrypoint:mail", "bob entrypoint:report"] == offered("bob entrypoint:")
        assert ['key:"a key:0"', 'key:"a key:1"', 'key:"a key:2"'] == offered("key:")
        for typed, found in (
            ('key:"a key:1"', ["m1"]),
            ("args.order.id:2 entrypoint:mail", ["m2"]),
            ("payload:BOB0", ["m0"]),
            ('"a key"', ["m0", "m1", "m2"]),
            ("entrypoint:report older:0s", ["r0"]),
        ):
            line.clear()
            line.send_keys(typed, Keys.ENTER)
            browser.until(lambda found=found: ids_shown(browser) == found, typed)
            browser.driver.refresh()  # the address has it all
            browser.until(lambda found=found: ids_shown(browser) == found, typed)
            line = browser.all("[name=line]")[0]
            assert typed.strip('"') in line.get_attribute("value").replace("older:0", "older:0s"), typed
        assert [] == browser.log()


def test_rows_do_not_move_while_they_are_pointed_at_or_selected(browser, path):
    from selenium.webdriver import ActionChains

    add(path, *(Enqueue("mail", b"", job_id=f"m{number:02}") for number in range(3)))
    before, after = ["m00", "m01", "m02"], ["n00", "m00", "m01", "m02"]
    with opened(browser, path):
        browser.resize(1280)
        browser.go("/jobs")
        browser.until(lambda: ids_shown(browser) == before, "the list")
        place = "return document.querySelector('tbody tr').getBoundingClientRect().top"
        top = browser.driver.execute_script(place)
        ActionChains(browser.driver).move_to_element(browser.all("tbody tr")[1]).perform()
        on(path, "enqueue", "mail", b"", priority=-1, job_id="n00")
        browser.see("stands still", "main")
        assert (before, top) == (ids_shown(browser), browser.driver.execute_script(place))
        ActionChains(browser.driver).move_to_element(browser.all("main h1")[0]).perform()
        browser.until(lambda: ids_shown(browser) == after, "the news")
        browser.all("tbody input")[0].click()
        ActionChains(browser.driver).move_to_element(browser.all("main h1")[0]).perform()
        on(path, "enqueue", "mail", b"", priority=-2, job_id="o00")
        browser.see("version 3", "header")
        assert (after, top) == (ids_shown(browser), browser.driver.execute_script(place))
        browser.all("tbody input")[0].click()
        ActionChains(browser.driver).move_to_element(browser.all("main h1")[0]).perform()
        browser.until(lambda: ids_shown(browser) == ["o00", *after], "the news")


def test_a_job_and_a_cron_entry_are_added_and_a_wrong_value_can_be_corrected(browser, path):
    on(path, "enqueue", "mail", b"")
    with opened(browser, path):
        browser.go("/jobs")
        browser.press("Add a job…", "main")
        browser.until(lambda: browser.all("#field-entrypoint"), "the form")[0].send_keys("report")
        browser.all("#field-payload")[0].send_keys('{"day": 7')
        browser.all("#field-json")[0].click()
        browser.press("Add the job", "dialog")
        browser.see("not JSON (line 1, column 10)", "dialog")
        browser.all("#field-payload")[0].send_keys("}")
        browser.press("Add the job", "dialog")
        browser.see("Added job: ", "#notes")
        assert b'{"day": 7}' in [job.payload for job in on(path, "read_state").jobs]
        browser.go("/schedules")
        browser.press("Add a cron entry…", "main")
        for name, text in (("name", "nightly"), ("cron", "0 3 * *"), ("entrypoint", "report")):
            browser.until(lambda name=name: browser.all(f"#field-{name}"), "the form")[0].send_keys(text)
        browser.press("Set the entry", "dialog")
        browser.see("wrong number of fields", "dialog")
        browser.all("#field-cron")[0].send_keys(" *")
        browser.press("Set the entry", "dialog")
        browser.see("0 3 * * *", "main table")
        assert ["nightly"] == [entry.name for entry in on(path, "schedules")]


def test_charts_are_read_and_a_range_is_chosen_with_keys_and_with_the_mouse(browser, path):
    from selenium.webdriver import ActionChains, Keys

    filled(path)
    with opened(browser, path):
        chart = "main .chart svg"

        def attribute(selector, name):
            return browser.driver.execute_script(
                "return document.querySelector(arguments[0]).getAttribute(arguments[1])", selector, name
            )

        browser.until(lambda: "L" in attribute(f"{chart} .line", "d"), "a line")
        browser.driver.execute_script(f"document.querySelector('{chart}').focus()")
        ActionChains(browser.driver).send_keys(Keys.HOME).perform()
        browser.until(lambda: "ago: queued" in attribute(chart, "aria-valuetext"), "the first value")
        ActionChains(browser.driver).key_down(Keys.SHIFT).send_keys(Keys.RIGHT).key_up(Keys.SHIFT).send_keys(
            Keys.ENTER
        ).perform()
        browser.see("Show the whole time", "main")
        ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
        browser.until(lambda: "Show the whole time" not in browser.text("main"), "the whole time")
        svg = browser.all(chart)[0]
        ActionChains(browser.driver).move_to_element_with_offset(svg, -140, 0).click_and_hold().move_by_offset(
            150, 0
        ).perform()
        browser.until(lambda: browser.all(f"{chart} .range"), "the range")
        ActionChains(browser.driver).release().perform()
        browser.press("Show the whole time", "main")
        assert [] == browser.log()


def test_keys_alone_cancel_a_job_and_focus_comes_back(browser, path):
    from selenium.webdriver import ActionChains, Keys

    job = on(path, "enqueue", "mail", b"")
    with opened(browser, path):
        browser.go(f"/job?id={job.id}")
        browser.button("Cancel", "main")
        browser.driver.execute_script("document.querySelector('main .row-actions button').focus()")
        ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
        browser.see("This cannot be undone", "dialog")
        ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
        browser.until(lambda: not browser.all("dialog"), "the dialog to close")
        assert browser.driver.switch_to.active_element.text.startswith("Cancel")
        assert on(path, "find", job.id) is not None
        ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
        browser.see("This cannot be undone", "dialog")
        ActionChains(browser.driver).send_keys(Keys.TAB, Keys.ENTER).perform()
        browser.see("Cancelled: ", "#notes")
        assert on(path, "find", job.id) is None


def hostile_queue():
    """A queue with hostile names everywhere, as a person with access to the store could write it."""
    jobs, entrypoints, schedules, workers = {}, {}, {}, {}
    for number, name in enumerate(HOSTILE):
        line = {"entrypoint": name, "payload": "PHNjcmlwdD4=", "headers": {name: name}, "sequence": number + 1}
        died = {"status": "dead", "error": f"{name}\u001b[31m\r\nforged", "attempt": 1, "dead_at": LONG_AGO}
        held = {"status": "in_progress", "holder": name, "attempt": 1, "claim_timeout": 3600.0}
        jobs[f"q{number}{name}"] = {**line, "unique_key": name}
        jobs[f"d{number}{name}"] = {**line, **died, "errors": [[1, LONG_AGO, name]]}
        jobs[f"r{number}{name}"] = {**line, **held, "heartbeat_at": LONG_AGO, "concurrency_key": name}
        entrypoints[name] = {"max_running": 1}
        schedules[name] = {"cron": "0 3 * * *", "entrypoint": name, "payload": "", "next_at": LONG_AGO}
        seen = {"started": time.time(), "at": time.time(), "entrypoints": [name, *HOSTILE], "version": "2.0.0"}
        workers[f"w{number}"] = {**seen, "name": name, "host": name, "pid": 1234567, "slots": 4}
    header = {"format": 2, "version": 7, "queue": "q", "critical": []}
    return {**header, "entrypoints": entrypoints, "schedules": schedules, "workers": workers, "jobs": jobs}


CUT = """return [...document.querySelectorAll("main *:not(.unseen, thead)")].filter((node) =>
    getComputedStyle(node).overflowX === "hidden" && node.closest("[title]") === null && !node.querySelector("[title]")
    && (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1))
    .map((node) => node.outerHTML)"""
"""Elements that are cut and have no tooltip."""
BROKEN = """return [...document.querySelectorAll("td code, td .whole")].filter((node) =>
    node.offsetHeight > 1.8 * parseFloat(getComputedStyle(node).fontSize)).map((node) => node.outerHTML)"""
"""Cron expressions and addresses of workers on more than one line."""


def test_hostile_strings_are_text_in_every_view(browser, path):
    path.write_text(json.dumps(hostile_queue()))
    with opened(browser, path):
        for place in VIEWS:
            browser.go(place)
            browser.until(lambda: len(browser.all("main h1")) == 1, "a heading")
            browser.until(lambda: "Loading" not in browser.text("main"), "the view")
            seen = browser.driver.execute_script("return document.body.textContent")
            assert place == "/store" or MARKUP in seen
            for width in (360, 1280):
                browser.resize(width)
                assert ([], []) == tuple(map(browser.driver.execute_script, (CUT, BROKEN))), place
            assert "\u202e" not in seen
            assert "\u001b" not in seen
            assert not browser.all("main img, main script, main svg[onload]")
        browser.go("/jobs?text=abc&state=ready")
        browser.see("abc\\u202ecba", "main table")
        browser.all("main td a.id")[0].click()
        browser.press("Show the payload", "main")
        browser.see("<script>", "main pre")
        browser.press("Cancel", "main")
        browser.see("q2abc\\u202ecba", "dialog")
        assert browser.driver.execute_script("return window.broken") is None
        assert [] == [line for line in browser.log() if "Content Security" in line or "alert" in line]


def test_another_site_cannot_frame_the_page_nor_send_an_action(browser, path, tmp_path):
    job = on(path, "enqueue", "mail", b"")
    with opened(browser, path) as address:
        action = f"{address}api/actions/cancel"

        def visit(content):
            (tmp_path / "evil.html").write_text(content)
            browser.open((tmp_path / "evil.html").as_uri())

        visit(f"<iframe src='{address}'></iframe>")
        browser.until(lambda: any("frame" in line for line in browser.log()), "the refusal of the frame")
        visit(
            f"<form method=post enctype=text/plain action='{action}'><input name='{{\"id\":\"{job.id}\"}}'></form>"
            "<script>document.forms[0].submit()</script>"
        )
        browser.see("another site")
        visit(
            f"<script>fetch('{action}', {{method: 'POST', credentials: 'include', body: '{{}}',"
            "headers: {'X-Jqueue-Dashboard': '1'}})"
            ".then(() => document.title = 'sent', () => document.title = 'refused')</script>"
        )
        browser.until(lambda: browser.driver.title == "refused", "the refusal of the script")
        assert on(path, "find", job.id) is not None
