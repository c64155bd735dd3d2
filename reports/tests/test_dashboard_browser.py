"""The page in a real browser: opened from disk, by keyboard, with nothing loaded from anywhere."""

import json
import shutil

import pytest

from reports.dashboard import build
from reports.judging import judge
from reports.simulate.made_histories import acknowledged, hostile, plain

webdriver = pytest.importorskip("selenium.webdriver", reason="not run: selenium is not installed")
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
    driver.set_page_load_timeout(180)
    driver.set_script_timeout(180)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    history = plain(folder)
    return build(judge(history), history, folder / "out").as_uri()


@pytest.fixture
def page(browser, address):
    return opened(browser, address)


def opened(browser, address, view=""):
    browser.get("about:blank")
    browser.get(address + view)
    return browser


def until(page, condition):
    """Wait until a condition holds; a generous deadline, because machines that test are busy."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(page, 120).until(lambda _: condition())


def shown(page, selector):
    return [each for each in page.find_elements("css selector", selector) if each.is_displayed()]


def choose(page, form, name, value):
    from selenium.webdriver.support.ui import Select

    Select(page.find_element("css selector", f"{form} select[name='{name}']")).select_by_value(value)


def quiet(page):
    """No complaint in the console, and no request but for files of the page."""
    assert [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:", "chrome:", "about:", "blob:"))] == []
    return asked


def test_every_view_opens_from_disk_without_an_error_and_asks_nobody_for_anything(page):
    assert page.find_element("tag name", "h1").text.endswith("1 series slower")
    for view in ("trends", "guarantees", "compare", "machines", "history", "exports", "tonight"):
        page.find_element("css selector", f"#views a[href='#{view}']").click()
        until(page, lambda view=view: [each.get_attribute("id") for each in shown(page, "section.view")] == [view])
    asked = quiet(page)
    assert any(url.endswith("style.css") for url in asked)


def test_the_log_that_the_test_above_reads_does_show_errors_and_requests(browser, tmp_path):
    address = "http://127.0.0.1:9/missing.png"
    (tmp_path / "bad.html").write_text(f"<img src='{address}'><script>throw new Error('seen')</script>")
    browser.get((tmp_path / "bad.html").as_uri())
    assert any("seen" in entry["message"] for entry in browser.get_log("browser"))
    assert address in "".join(entry["message"] for entry in browser.get_log("performance"))


def test_series_can_be_filtered_sorted_and_saved(browser, address):
    page = opened(browser, address, "#trends")
    every = len(shown(page, "#t-series tr.row"))
    choose(page, "#trends", "workload", "cell002")
    choose(page, "#trends", "basis", "ratio")
    found = shown(page, "#t-series tr.row")
    assert len(found) == 2  # over torch, and over itself
    assert all("cell002" in row.text for row in found)
    saved = page.execute_script("return Page.saved(document.getElementById('t-series'), 'csv')")
    head, *lines = saved.splitlines()
    assert head.startswith("key,State,Series,Latest")
    assert len(lines) == 2
    assert all("cell002" in line for line in lines)
    choose(page, "#trends", "state", "acknowledged")
    assert shown(page, "#trends .nothing")
    page.find_element("css selector", "#trends .nothing button").click()
    until(page, lambda: len(shown(page, "#t-series tr.row")) == every)
    for direction in ("ascending", "descending"):
        page.find_element("xpath", "//*[@id='t-series']//button[text()='Latest']").click()
        assert shown(page, f"#t-series th[aria-sort='{direction}']")
        values = [cell.get_attribute("data-v") for cell in shown(page, "#t-series tr.row td:nth-child(3)")]
        numbers = [float(value) for value in values if value]
        assert len(numbers) > 10
        assert numbers == sorted(numbers, reverse=direction == "descending")
        assert "" not in values[: len(numbers)]
    told = json.loads(page.execute_script("return Page.saved(document.getElementById('t-series'), 'json')"))
    assert len(told["rows"]) == every
    quiet(page)


def test_a_trend_opens_by_keyboard_and_tells_any_night(browser, address):
    from selenium.webdriver.common.keys import Keys

    page = opened(browser, address, "#trends")
    button = page.find_element("css selector", "#t-series button.open")
    assert "cell000" in button.text  # what alarms comes first
    page.execute_script("arguments[0].focus()", button)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    until(page, lambda: shown(page, "svg.chart"))
    assert button.get_attribute("aria-expanded") == "true"
    assert "1 change found" in shown(page, "svg.chart")[0].get_attribute("aria-label")
    assert page.find_elements("css selector", "svg.chart line.change.confirmed")
    slider, readout = shown(page, "input[type=range]")[0], shown(page, ".readout output")[0]
    latest = readout.text
    assert "confirmed" in latest
    slider.send_keys(Keys.ARROW_LEFT)
    assert readout.text != latest
    assert slider.get_attribute("aria-valuetext") == readout.text
    assert shown(page, ".readout a[href$='perf.jsonl']")
    assert "Mann-Whitney" in page.find_element("css selector", ".judged").get_attribute("textContent")
    button.send_keys(Keys.ENTER)
    assert not shown(page, "svg.chart")
    quiet(page)


def test_any_two_nights_can_be_compared(browser, address):
    page = opened(browser, address, "#compare")
    rows = until(page, lambda: shown(page, "#t-compare tr.row"))
    assert len(rows) > 10
    from selenium.webdriver.support.ui import Select

    before = Select(page.find_element("name", "night-a"))
    before.select_by_index(20)  # before the slow-down
    choose(page, "#compare", "only", "apart")
    until(page, lambda: any("cell000" in row.text for row in shown(page, "#t-compare tr.slower")))
    summary = page.find_element("id", "compared").text
    page.find_element("id", "swap").click()
    until(page, lambda: any("cell000" in row.text for row in shown(page, "#t-compare tr.faster")))
    assert page.find_element("id", "compared").text.split(";")[0] == summary.split(";")[0]
    quiet(page)


def test_the_matrix_filters_and_shows_the_history_of_a_clause(browser, address):
    page = opened(browser, address, "#clause=JOIN-002")
    strips = until(page, lambda: shown(page, "svg.strip"))
    assert len(strips) == 2
    assert "impl · gloo · 2" in strips[0].get_attribute("aria-label")
    choose(page, "#guarantees", "subject", "torch")
    assert not shown(page, "#t-matrix td[data-subject=impl]")
    choose(page, "#guarantees", "states", "broken")
    assert not shown(page, "#t-matrix tr.row")
    quiet(page)


@pytest.mark.parametrize("view", ["#%", "#series=gone", "#clause=%E0%A4%A", "#tonight?state=new", "#nowhere"])
def test_an_address_that_names_nothing_shows_a_view_all_the_same(browser, address, view):
    page = opened(browser, address, view)
    assert len(shown(page, "section.view")) == 1
    quiet(page)


def test_an_address_with_filters_sets_them(browser, address):
    page = opened(browser, address, "#trends?state=confirmed&machine=0")
    rows = shown(page, "#t-series tr.row")
    assert rows
    assert all("confirmed" in row.text for row in rows)


def test_texts_that_are_script_do_nothing(browser, tmp_path):
    history = hostile(tmp_path)
    acknowledged(history, "<img src=x onerror=window.hacked=1>")
    address = build(judge(history), history, tmp_path / "out").as_uri()
    page = opened(browser, address, "#trends")
    for button in shown(page, "#t-series button.open"):
        button.click()
    until(page, lambda: len(shown(page, "svg.chart")) == len(shown(page, "#t-series tr.row")) > 0)
    for view in ("#compare", "#guarantees", "#clause=JOIN-002", "#tonight"):
        page.execute_script("location.hash = arguments[0]", view)
    until(page, lambda: page.execute_script("return document.querySelectorAll('svg.strip').length"))
    assert page.execute_script("return window.hacked") is None
    assert not page.find_elements("tag name", "img")
    assert "<img src=x" in page.find_element("id", "trends").get_attribute("textContent")
    quiet(page)


def test_a_long_name_of_what_else_changed_leaves_room_for_what_it_was_and_is(browser, tmp_path):
    history = hostile(tmp_path)
    page = opened(browser, build(judge(history), history, tmp_path / "out").as_uri())
    assert page.execute_script("return document.documentElement.scrollWidth") <= 1200
    assert all(value.size["width"] > 100 for value in page.find_elements("css selector", "#tonight .finding dd"))


@pytest.mark.parametrize("width", [360, 1200])
def test_no_view_is_wider_than_the_screen(browser, address, width):
    page = opened(browser, address, "#trends")
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.find_element("css selector", "#t-series button.open").click()
        until(page, lambda: shown(page, "svg.chart"))
        for view in ("trends", "tonight", "guarantees", "compare", "machines", "history", "exports"):
            page.execute_script("location.hash = arguments[0]", view)
            until(page, lambda view=view: shown(page, f"#{view}"))
            assert page.execute_script("return document.documentElement.scrollWidth") <= width, view
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_readers_colours(page, scheme):
    wish = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
    colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(colour.split("(")[1].split(",")[0])
    assert red > 200 if scheme == "light" else red < 60


def test_every_control_of_the_first_view_can_be_reached_by_tab(page):
    from selenium.webdriver.common.keys import Keys

    reached = []
    page.find_element("tag name", "body").click()
    for _ in range(40):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.switch_to.active_element.text)
    for name in ("Compare", "Trend", "copy"):
        assert any(text.startswith(name) for text in reached), name
