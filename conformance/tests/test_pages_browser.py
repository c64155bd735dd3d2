"""The page in a real browser: opened from disk, by keyboard, with nothing loaded from anywhere."""

import json
import shutil

import pytest

from conformance.pages.write import write

from .made_records import ROWS, lay, row

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="not run: no Chromium with chromedriver on PATH")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for word in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", f"--user-data-dir={profile}", "--window-size=1200,900",
    ):  # fmt: skip
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(120)
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, tmp_path):
    """The page of a record with two subjects, just opened."""
    others = [row("JOIN-001", subject="mine"), row("JOIN-002", "crashed", subject="mine", witness="<b>signal</b> 11")]
    write([lay(tmp_path / "conformance.jsonl", [*ROWS, *others])], tmp_path)
    browser.get((tmp_path / "index.html").as_uri())
    return browser


def ids(page):
    """The clauses that are shown."""
    found = page.find_elements("css selector", "tbody.clause")
    return [each.get_attribute("id") for each in found if each.is_displayed()]


def choose(page, field, value):
    from selenium.webdriver.support.ui import Select

    Select(page.find_element("id", field)).select_by_value(value)


def test_it_opens_from_disk_without_an_error_and_asks_nobody_for_anything(page):
    assert ids(page) == ["JOIN-001", "JOIN-002", "ZERO-001", "ZERO-002"]
    assert page.find_element("tag name", "h1").text == "1 clause broken that no list expects"
    assert [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
    assert asked, "the browser's log shows no request at all, not even for the page"
    assert [url for url in asked if not url.startswith(("file:", "data:", "chrome:", "about:"))] == []


def test_the_log_that_the_test_above_reads_does_show_errors_and_requests(browser, tmp_path):
    address = "http://127.0.0.1:9/missing.png"
    (tmp_path / "bad.html").write_text(f"<img src='{address}'><script>throw new Error('seen')</script>")
    browser.get((tmp_path / "bad.html").as_uri())
    assert any("seen" in entry["message"] for entry in browser.get_log("browser"))
    assert address in "".join(entry["message"] for entry in browser.get_log("performance"))


def test_filters_leave_what_fits(page):
    choose(page, "f-area", "D")
    assert ids(page) == ["ZERO-001", "ZERO-002"]
    assert page.find_element("id", "count").text == "2 of 4 clauses"
    choose(page, "f-level", "LIMIT")
    assert ids(page) == ["ZERO-002"]
    page.find_element("id", "clear").click()
    assert len(ids(page)) == 4
    choose(page, "f-outcome", "ended-hung")
    assert ids(page) == ["JOIN-002"]
    choose(page, "f-subject", "1")  # mine did not hang
    assert ids(page) == []
    assert page.find_element("id", "nothing").is_displayed()
    choose(page, "f-outcome", "ended-crashed")
    assert ids(page) == ["JOIN-002"]
    hidden = page.find_elements("css selector", "#JOIN-002 td.c0")
    assert hidden
    assert not any(each.is_displayed() for each in hidden)


def test_search_looks_into_witnesses_and_the_slash_key_leads_to_it(page):
    page.find_element("tag name", "body").send_keys("/")
    assert page.switch_to.active_element.get_attribute("id") == "f-text"
    page.switch_to.active_element.send_keys("SIGNAL 11")
    assert ids(page) == ["JOIN-002"]


def test_a_clause_opens_and_closes_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    button = page.find_element("css selector", "#JOIN-002 button.open")
    evidence = page.find_element("id", "more-JOIN-002")
    assert not evidence.is_displayed()
    page.execute_script("arguments[0].focus()", button)
    for key in (Keys.ENTER, Keys.SPACE):
        shown = not evidence.is_displayed()
        page.switch_to.active_element.send_keys(key)
        assert evidence.is_displayed() is shown
        assert button.get_attribute("aria-expanded") == str(shown).lower()
    button.click()
    assert "<b>signal</b> 11" in evidence.text


def test_every_control_can_be_reached_by_tab(page):
    from selenium.webdriver.common.keys import Keys

    reached = set()
    page.find_element("tag name", "body").click()
    for _ in range(40):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(page.switch_to.active_element.get_attribute("id") or page.switch_to.active_element.text)
    assert {"f-text", "f-area", "f-level", "f-outcome", "f-subject", "expand", "JOIN-001"} <= reached


def test_an_address_with_a_clause_opens_it(page):
    address = page.current_url
    page.get("about:blank")
    page.get(f"{address}#ZERO-002")
    assert page.find_element("id", "more-ZERO-002").is_displayed()
    assert not page.find_element("id", "more-ZERO-001").is_displayed()


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(page, width):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.find_element("id", "expand").click()
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_readers_colours(page, scheme):
    wish = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
    colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(colour.split("(")[1].split(",")[0])
    assert red > 200 if scheme == "light" else red < 60
