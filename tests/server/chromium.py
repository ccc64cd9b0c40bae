"""A headless Chromium from the system's packages, driven by selenium. Without it, its tests are skipped."""

import shutil
import time
from contextlib import contextmanager

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
DEADLINE = 60.0
"""Seconds to wait for the page. A machine may be slow."""


def find_programs():
    """The paths of Chromium and its driver. Skips the test if they are not installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    return browser, driver


@contextmanager
def chromium(folder):
    """A `Browser` with an empty profile in a folder."""
    browser, driver = find_programs()
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driving = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(driving)
    finally:
        driving.quit()


class Browser:
    """The page as its user sees and uses it."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, url):
        self.driver.get("about:blank")
        self.log()  # what other pages have written
        self.driver.get(url)

    def go(self, place):
        """Go to another view of the page."""
        self.driver.execute_script("location.hash = arguments[0]", place)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def text(self, selector="body"):
        return "\n".join(self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((node) => node.innerText)", selector
        ))  # fmt: skip

    def until(self, condition, what):
        """The first true answer of a condition. Elements may vanish while it looks."""
        from selenium.common.exceptions import WebDriverException

        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            try:
                if found := condition():
                    return found
            except WebDriverException:
                pass
            time.sleep(0.1)  # each look lays the page out
        raise AssertionError(f"waited in vain for {what}; the page says: {self.text()[:2000]}; {self.log()}")

    def see(self, text, selector="body"):
        """Wait until the page shows a text."""
        self.until(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def button(self, text, within="body"):
        """Wait for a button whose label begins with a text."""
        return self.until(
            lambda: next(
                (each for each in self.all(f"{within} button") if each.is_displayed() and each.text.startswith(text)),
                None,
            ),
            f"a button {text!r}",
        )

    def press(self, text, within="body"):
        """Press a button, again if the page has replaced it meanwhile."""
        self.until(lambda: self.button(text, within).click() or True, f"a press of {text!r}")

    def resize(self, width, height=900):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def log(self):
        """Return the messages of the console: errors, and requests that the policy has refused."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
