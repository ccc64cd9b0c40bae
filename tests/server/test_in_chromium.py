"""The dashboard in a real browser: live figures, actions, hostile strings, two operators, foreign sites."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.server.static_page import static_page
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
        browser.until(lambda: browser.all("#field-running"), "the form")[0].send_keys("3")
        browser.press("Set the limits", "dialog")
        browser.see("New limits", "#notes")
        assert [] == browser.log()


def test_every_view_names_its_controls_and_is_no_wider_than_the_window(browser, path):
    ids = filled(path)
    nameless = """const name = (node) => (node.getAttribute("aria-label") || node.innerText
        || node.labels?.[0]?.innerText || "").trim();
        return [...document.querySelectorAll("button, a, input, select, svg[role=img]")]
          .filter((node) => node.offsetParent !== null && !name(node)).map((node) => node.outerHTML)"""
    with opened(browser, path):
        for width in (360, 1920):
            browser.resize(width)
            for place in (*VIEWS, f"/job?id={ids['dead']}"):
                browser.go(place)
                browser.until(lambda: len(browser.all("main h1")) == 1, "a heading")
                browser.until(lambda: "Loading" not in browser.text("main"), "the view")
                assert [] == browser.driver.execute_script(nameless)
                over = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
                assert over <= 0, (width, place)


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
