"""The dashboard in a real browser: live figures, actions, hostile strings, two operators, foreign sites."""

import asyncio
import json
import re
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.operations import Enqueue
from jqueue.server.static_page import static_page
from tests.cli.test_serving import running
from tests.server.chromium import chromium
from tests.server.test_looking import fill
from tests.tiny_segments import spilled, tiny_queue

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


def filled(path):
    async def call():
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            return await fill(queue)

    return asyncio.run(call())


@contextmanager
def opened(browser, path):
    """The dashboard of a queue in the browser."""
    with running(path) as (_, link):
        browser.open(link)
        browser.see("live, version")
        yield link.partition("#")[0]


def test_the_token_leaves_the_address_and_the_page_follows_the_queue(browser, path):
    filled(path)
    with opened(browser, path):
        assert "token" not in browser.driver.current_url
        browser.see("Ready\n1", ".cards")
        on(path, "enqueue", "mail", b"")
        browser.see("Ready\n2", ".cards")
        assert [] == browser.log()


def test_every_view_has_one_heading_one_main_part_and_names_for_its_controls(browser, path):
    ids = filled(path)
    with opened(browser, path):
        for place in (*VIEWS, f"/job?id={ids['dead']}"):
            browser.go(place)
            browser.until(lambda: len(browser.all("main h1")) == 1, "a heading")
            nameless = browser.driver.execute_script(
                """const name = (node) => (node.getAttribute("aria-label") || node.innerText
                     || node.labels?.[0]?.innerText || "").trim();
                   return [...document.querySelectorAll("button, a, input, select, svg[role=img], table")]
                     .filter((node) => node.offsetParent !== null && node.nodeName !== "TABLE" && !name(node))
                     .map((node) => node.outerHTML)"""
            )
            assert [] == nameless
            assert 1 == len(browser.all("main"))
            wide = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0


def test_a_missing_segment_is_named_in_every_view_and_other_jobs_can_be_cancelled(browser, path):
    async def fill_segments():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            await queue.enqueue_many([Enqueue("report", b"") for _ in range(3)])
            await spilled(queue)
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            return await queue.enqueue("mail", b"")

    job = asyncio.run(fill_segments())
    [lost] = path.with_name("queue.json.segments").iterdir()
    lost.unlink()
    with opened(browser, path):
        for place in VIEWS:
            browser.go(place)
            browser.see(
                f"Segment .segments/{lost.name} (report) cannot be read, and 3 jobs in it wait", "main .warning"
            )
        browser.go("/jobs")
        browser.see(job.id, "main table")
        browser.press("Cancel", "main table")
        browser.press("Cancel", "dialog")
        browser.see("Cancelled the job", "#notes")


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
        browser.see("Cancelled the job", "#notes")
        assert on(path, "find", job.id) is None


def test_a_pause_is_undone_with_a_button(browser, path):
    filled(path)
    with opened(browser, path):
        browser.press("Pause", "main")
        browser.press("Pause", "dialog")
        browser.see("paused", "main table")
        browser.press("Undo", "#notes")
        browser.see("Undone", "#notes")
        assert {} == on(path, "read_state").entrypoints


def test_limits_are_set_in_a_form(browser, path):
    on(path, "enqueue", "mail", b"")
    with opened(browser, path):
        browser.go("/limits")
        browser.press("Limits", "main")
        browser.until(lambda: browser.all("#field-running"), "the form")[0].send_keys("3")
        browser.press("Set the limits", "dialog")
        browser.see("New limits", "#notes")
        browser.press("Another entrypoint", "main")
        browser.until(lambda: browser.all("#field-entrypoint"), "the form")[0].send_keys("later")
        browser.all("#field-running")[0].send_keys("1")
        browser.press("Set the limits", "dialog")
        browser.see("New limits for later", "#notes")
        assert 1 == on(path, "read_state").entrypoints["later"].max_running
        assert 3 == on(path, "read_state").entrypoints["mail"].max_running


def test_the_page_says_when_its_server_is_gone_and_goes_on_when_it_is_back(browser, path):
    filled(path)
    with running(path) as (_, link):
        browser.open(link)
        browser.see("live, version")
        port = str(urlsplit(link).port)
    browser.see("not up to date")
    browser.see("is it still running?", "#trouble")
    browser.see("Ready\n1", ".cards")
    with running(path, "--port", port) as (_, link):
        browser.see("you are not signed in", "#trouble")
        token = urlsplit(link).fragment.removeprefix("token=")
        browser.until(lambda: browser.all("#trouble input"), "the question")[0].send_keys(token)
        browser.press("Sign in")
        browser.see("live, version")
        assert "" == browser.text("#trouble").strip()


def test_the_page_says_that_it_is_not_up_to_date_while_its_server_hangs(browser, path):
    filled(path)
    with running(path) as (process, link):
        browser.open(link)
        browser.see("live, version")
        process.send_signal(signal.SIGSTOP)
        try:
            browser.see("not up to date", "#live")
            browser.see("There has been no answer for 5 s", "#trouble")
            browser.see(" UTC.", "#trouble")
        finally:
            process.send_signal(signal.SIGCONT)
        browser.see("live, version", "#live")
        assert "" == browser.text("#trouble").strip()


@pytest.mark.parametrize("query", ["state=x", "order=x", "start=x"])
def test_a_filter_that_is_refused_is_named_where_the_jobs_would_be(browser, path, query):
    filled(path)
    with opened(browser, path):
        browser.go(f"/jobs?{query}")
        browser.until(lambda: browser.all("main .warning"), "the reason")
        assert "Loading" not in browser.text("main")
        browser.go("/jobs")
        browser.until(lambda: browser.all("main tbody tr"), "the jobs")
        assert not browser.all("main .warning")


def test_times_have_their_zone_and_failures_are_those_of_users(browser, path):
    ids = filled(path)
    with opened(browser, path):
        browser.go(f"/job?id={ids['completed']}")
        browser.see("Attempts\n1\n", "main .facts")
        assert 2 == len(re.findall(r"\d\d:\d\d:\d\d UTC", browser.text("main .facts")))


def test_a_heading_gets_the_focus_without_a_frame(browser, path):
    filled(path)
    with opened(browser, path):
        browser.go("/jobs")
        browser.until(lambda: browser.driver.switch_to.active_element.tag_name == "h1", "the focus")
        style = "return getComputedStyle(document.activeElement).outlineStyle"
        assert "none" == browser.driver.execute_script(style)


def test_charts_fill_their_rows_and_tell_the_values_under_the_pointer(browser, path):
    from selenium.webdriver import ActionChains

    async def fill_hour():
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            await queue.configure(history=3600)
            await queue.enqueue("mail", b"")
            await queue.ack((await queue.dequeue())[0])
            await queue.enqueue("mail", b"")

    asyncio.run(fill_hour())
    tops = "return [...document.querySelectorAll('.chart')].map((each) => each.getBoundingClientRect().top)"
    with opened(browser, path):
        browser.until(lambda: any(each.get_attribute("d") for each in browser.all(".dot")), "a lone point")
        for width, columns in ((1280, 2), (1600, 4), (390, 1)):
            browser.resize(width)
            assert {columns} == set(Counter(browser.driver.execute_script(tops)).values())
        browser.resize(1280)
        browser.see("queued 1", ".legend")
        drawing = browser.all(".chart svg")[0]
        ActionChains(browser.driver).move_to_element_with_offset(drawing, 3 - drawing.size["width"] // 2, 0).perform()
        browser.see("queued 0", ".legend")
        ActionChains(browser.driver).move_to_element(browser.all("h1")[0]).perform()
        browser.see("queued 1", ".legend")


def test_names_stay_whole_many_errors_stay_short_and_all_tabs_are_in_view(browser, path):
    async def fill_groups():
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            for number in range(57):
                await queue.enqueue("sync_customer", b"")
                error = "KeyError: " + chr(97 + number % 26) * (number // 26 + 1) + " in a row of a table" * 9
                await queue.nack((await queue.dequeue())[0], error=error, dead=True)
            await queue.enqueue("sync_customer", b"")
            await queue.pause("sync_customer")

    asyncio.run(fill_groups())
    with opened(browser, path):
        browser.resize(1280)
        browser.see("paused", "main table")
        browser.go("/dead")
        browser.until(lambda: len(browser.all("main tbody tr")) == 20, "the first groups")
        high = browser.driver.execute_script(
            "return [document.documentElement.scrollHeight, document.querySelector('td > bdi').offsetHeight]"
        )
        assert high[0] < 2000
        assert high[1] < 30
        browser.all("main .pager a")[0].click()
        browser.until(lambda: len(browser.all("main tbody tr")) == 57, "all groups")
        browser.resize(390)
        tabs = "return [...document.querySelectorAll('#views a')].map((each) => each.getBoundingClientRect().right)"
        assert max(browser.driver.execute_script(tabs)) <= 390


def test_two_operators_at_once_and_the_slower_one_is_told(browser, path):
    job = on(path, "enqueue", "mail", b"")
    with opened(browser, path) as address:
        first = browser.driver.current_window_handle
        browser.go(f"/job?id={job.id}")
        browser.press("Cancel", "main")
        browser.see("This cannot be undone", "dialog")
        browser.driver.switch_to.new_window("tab")
        second = browser.driver.current_window_handle
        browser.open(f"{address}#/job?id={job.id}")
        browser.press("Cancel", "main")
        browser.press("Cancel the job", "dialog")
        browser.see("Cancelled the job", "#notes")
        browser.driver.close()
        browser.driver.switch_to.window(first)
        assert second not in browser.driver.window_handles
        browser.press("Cancel the job", "dialog")
        browser.see("Nothing was done", "#alerts")


def hostile_queue():
    """A queue with hostile names everywhere, as a person with access to the store could write it."""
    content: dict[str, Any] = {
        "format": 2,
        "version": 7,
        "queue": "q",
        "critical": [],
        "entrypoints": {},
        "schedules": {},
        "jobs": {},
    }
    for number, name in enumerate(HOSTILE):
        line = {"entrypoint": name, "payload": "PHNjcmlwdD4=", "headers": {name: name}, "sequence": number + 1}
        died = {"status": "dead", "error": f"{name}\u001b[31m\r\nforged", "attempt": 1, "dead_at": LONG_AGO}
        held = {
            "status": "in_progress",
            "holder": name,
            "attempt": 1,
            "claim_timeout": 3600.0,
            "heartbeat_at": LONG_AGO,
        }
        content["jobs"][f"q{number}{name}"] = {**line, "unique_key": name}
        content["jobs"][f"d{number}{name}"] = {**line, **died, "errors": [[1, LONG_AGO, name]]}
        content["jobs"][f"r{number}{name}"] = {**line, **held, "concurrency_key": name}
        content["entrypoints"][name] = {"max_running": 1}
        content["schedules"][name] = {"cron": "0 3 * * *", "entrypoint": name, "payload": "", "next_at": LONG_AGO}
    return content


def test_hostile_strings_are_text_in_every_view(browser, path):
    path.write_text(json.dumps(hostile_queue()))
    with opened(browser, path):
        for place in VIEWS:
            browser.go(place)
            browser.until(lambda: len(browser.all("main h1")) == 1, "a heading")
            browser.until(lambda: "Loading" not in browser.text("main"), "the view")
            seen = browser.driver.execute_script("return document.body.textContent")
            if place not in ("/workers", "/store"):
                assert MARKUP in seen
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


class Site(BaseHTTPRequestHandler):
    """Another site, or a store with one object: what it answers is set by each test."""

    protocol_version = "HTTP/1.1"  # a browser keeps no etag of an older one
    answers: ClassVar[dict] = {}
    seen: ClassVar[list] = []

    def do_GET(self):
        status, headers, body = self.answers.get(self.path.partition("?")[0], (404, {}, b""))
        etag = headers.get("ETag")
        if etag and self.headers.get("If-None-Match") == etag:
            status, body = 304, b""
        self.seen.append((self.path, status, self.headers.get("Origin")))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def site(**answers):
    """A site on this machine: yields its address and its handler."""
    handler = type(
        "Handler", (Site,), {"answers": {f"/{name}": answer for name, answer in answers.items()}, "seen": []}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def html(text):
    return 200, {"Content-Type": "text/html"}, text.encode()


def test_another_site_cannot_frame_the_page_nor_send_an_action(browser, path):
    job = on(path, "enqueue", "mail", b"")
    with opened(browser, path) as address, site() as (evil, handler):
        handler.answers["/frame"] = html(f"<iframe src='{address}' onload='window.loaded = 1'></iframe>")
        browser.open(f"{evil}/frame")
        browser.until(lambda: browser.driver.execute_script("return window.loaded"), "the frame")
        browser.until(lambda: any("frame" in line for line in browser.log()), "the refusal of the frame")
        action = f"{address}api/actions/cancel"
        handler.answers["/form"] = html(
            f"<form method=post enctype=text/plain action='{action}'><input name='{{\"id\":\"{job.id}\"}}'></form>"
            "<script>document.forms[0].submit()</script>"
        )
        browser.open(f"{evil}/form")
        browser.see("another site")
        handler.answers["/script"] = html(
            f"<script>fetch('{action}', {{method: 'POST', credentials: 'include', body: '{{}}',"
            "headers: {'X-Jqueue-Dashboard': '1'}})"
            ".then(() => document.title = 'sent', () => document.title = 'refused')</script>"
        )
        browser.open(f"{evil}/script")
        browser.until(lambda: browser.driver.title == "refused", "the refusal of the script")
        assert on(path, "find", job.id) is not None


def stored(path, **headers):
    return 200, {"ETag": '"1"', "Access-Control-Allow-Origin": "*", **headers}, path.read_bytes()


def test_the_page_without_a_server_reads_the_object_of_another_site_and_follows_it(browser, path):
    filled(path)
    with site() as (bucket, store), site() as (home, pages):
        store.answers["/queue.json"] = stored(path)
        pages.answers["/page.html"] = html(static_page(f"{bucket}/queue.json?X-Signature=hunter2"))
        browser.open(f"{home}/page.html")
        browser.see("Ready\n1", ".cards")
        browser.until(lambda: [status for _, status, _ in store.seen].count(304) >= 2, "unchanged answers")
        assert "hunter2" not in browser.text()
        on(path, "enqueue", "mail", b"")
        store.answers["/queue.json"] = stored(path, ETag='"2"')
        browser.see("Ready\n2", ".cards")
        for place in VIEWS:
            browser.go(place)
            browser.until(lambda: len(browser.all("main h1")) == 1, "a heading")
            browser.until(lambda: "Loading" not in browser.text("main"), "the view")
            assert not [each for each in browser.all("main td button") if each.is_displayed()]
        browser.go("/jobs?state=dead")
        browser.until(lambda: browser.all("main td a.id"), "the dead job")[0].click()
        browser.press("Show the payload", "main")
        browser.see("hunter2", "main pre")
        assert [] == browser.log()


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (200, {"Access-Control-Allow-Origin": None}, b"", "CORS"),
        (403, {}, b"", "presigned URL has perhaps expired"),
        (404, {}, b"", "there is no object"),
        (200, {}, b"hello", "not JSON"),
        (200, {}, b'{"format": 3, "jobs": {}}', "format 3"),
        (200, {}, b'{"format": 2, "critical": ["wormholes"], "jobs": {}}', "wormholes"),
        (200, {}, b'{"jobs": []}', "jqueue 1.0.0"),
    ],
)
def test_the_page_without_a_server_says_why_it_cannot_read(browser, status, headers, body, said):
    allowed = {"Access-Control-Allow-Origin": "*", **headers}
    answer = status, {name: value for name, value in allowed.items() if value}, body
    with site(**{"queue.json": answer}) as (bucket, _), site() as (home, pages):
        pages.answers["/page.html"] = html(static_page(""))
        browser.open(f"{home}/page.html")
        browser.see("public or presigned URL", "#trouble")
        browser.until(lambda: browser.all("#trouble input"), "the question")[0].send_keys(f"{bucket}/queue.json")
        browser.press("Read it")
        browser.see(said, "#trouble")


@pytest.mark.parametrize("jobs", [0, 10, 3000])
def test_no_view_is_wider_than_the_window(browser, path, jobs):
    async def add():
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            await queue.configure(dead_retention=3600)
            await queue.enqueue_many([Enqueue(f"entrypoint-{number % 7}", b"") for number in range(jobs)])

    asyncio.run(add())
    with opened(browser, path):
        for width in (360, 1024, 1920):
            browser.resize(width)
            for scheme in ("light", "dark"):
                browser.prefer(scheme)
                for place in VIEWS:
                    browser.go(place)
                    browser.until(lambda: len(browser.all("main h1")) == 1, "a heading")
                    browser.until(lambda: "Loading" not in browser.text("main"), "the view")
                    over = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
                    assert over <= 0, (width, place)
        browser.go("/jobs")
        browser.until(lambda: len(browser.all("main tbody tr")) == min(jobs, 50), "a page of jobs")
