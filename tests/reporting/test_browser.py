"""The page in a real browser: Chromium without a window, driven by Selenium."""

import base64
import re
import shutil

import pytest

from pacdp.reporting import render_page
from pacdp.reporting.site_page import render_site_page
from pacdp.site import Site
from pacdp.site.status import read_status
from pacdp.storage import write_atomically
from tests.site.trial import make_trial

from .runs import compared

pytest.importorskip("selenium", reason="Chromium cannot be driven: selenium is not installed")
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--window-size=1200,900"),
)
METHODS = ("pac-dp", "cgm-median", "fedavg")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if BROWSER is None or DRIVER is None:
        pytest.skip("Chromium or chromedriver is not installed")
    options = ChromeOptions()
    options.binary_location = BROWSER
    for argument in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With both paths given nothing is looked for, and nothing is fetched.
    with Chrome(options=options, service=Service(DRIVER)) as driver:
        yield driver


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_atomically(
        path,
        render_page("Heart", compared(*METHODS), commands=["pacdp compare heart-personalised"]),
    )
    return path.as_uri()


@pytest.fixture
def opened(browser, address):
    """The page, fresh; whatever it complained about fails the test."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get(address)
    yield browser
    assert browser.get_log("browser") == []


def emulate(browser, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def rows(browser):
    """The clients that can be seen."""
    found = browser.find_elements(By.CSS_SELECTOR, ".clients tbody tr")
    return [row.find_element(By.TAG_NAME, "th").text for row in found if row.is_displayed()]


def tip(browser):
    shown = browser.find_element(By.ID, "tip")
    return shown.text if shown.is_displayed() else None


def in_view(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)


def background(browser):
    script = "return getComputedStyle(document.body).backgroundColor"
    return [int(part) for part in re.findall(r"\d+", browser.execute_script(script))[:3]]


def test_pointing_at_a_mark_shows_its_value(opened):
    mean = [run.history[2].metrics["accuracy"] for run in compared(*METHODS).groups["fedavg"]]
    point = opened.find_element(By.CSS_SELECTOR, "[data-tip^='fedavg, round 3']")
    in_view(opened, point)
    assert tip(opened) is None
    ActionChains(opened).move_to_element(point).perform()
    assert tip(opened).startswith(f"fedavg, round 3: {100 * sum(mean) / 2:.1f} ±")
    ActionChains(opened).move_to_element(opened.find_element(By.ID, "rounds-title")).perform()
    assert tip(opened) is None


def test_the_keyboard_reaches_every_mark(opened):
    figure = opened.find_element(By.ID, "figure-rounds")
    in_view(opened, figure)
    first, second = figure.find_elements(By.CSS_SELECTOR, "[data-tip]")[:2]
    stops = figure.find_elements(By.CSS_SELECTOR, "[data-tip][tabindex='0']")
    assert stops == [first]
    opened.execute_script("document.querySelector('#rounds-title').tabIndex = -1")
    opened.execute_script("document.querySelector('#rounds-title').focus()")
    ActionChains(opened).send_keys(Keys.TAB).perform()
    reached = opened.switch_to.active_element
    if reached != first:  # a box that scrolls may be a stop of its own
        ActionChains(opened).send_keys(Keys.TAB).perform()
    assert tip(opened) == first.get_attribute("data-tip")
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    assert opened.switch_to.active_element == second
    assert tip(opened) == second.get_attribute("data-tip")
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert tip(opened) is None


def test_the_filter_leaves_the_clients_that_fit(opened):
    assert len(rows(opened)) == 4
    box = opened.find_element(By.ID, "filter")
    box.send_keys("CLEVE")
    assert rows(opened) == ["cleveland"]
    count = opened.find_element(By.ID, "count")
    assert count.text == "1 of 4 clients"
    assert count.get_attribute("aria-live") == "polite"
    dim = opened.find_elements(By.CSS_SELECTOR, "[data-client].dim")
    assert dim
    assert {point.get_attribute("data-client") for point in dim}.isdisjoint({"cleveland"})
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("nobody")
    assert rows(opened) == []
    assert count.text == "0 of 4 clients"


def test_one_method_is_shown_at_a_time(opened):
    chosen = Select(opened.find_element(By.ID, "method"))
    assert [option.text for option in chosen.options] == list(METHODS)
    for number, name in enumerate(METHODS):
        chosen.select_by_visible_text(name)
        shown = [p for p in opened.find_elements(By.CSS_SELECTOR, ".panel") if p.is_displayed()]
        assert [panel.get_attribute("id") for panel in shown] == [f"arm-{number}"]
        assert len(rows(opened)) == 4


def test_columns_can_be_sorted(opened):
    for _ in range(2):  # up, and down again
        opened.find_element(By.CSS_SELECTOR, ".clients thead th:nth-child(2) button").click()
    assert rows(opened) == ["cleveland", "hungary", "long-beach", "switzerland"]
    head = opened.find_element(By.CSS_SELECTOR, ".clients thead th:nth-child(2)")
    assert head.get_attribute("aria-sort") == "descending"


def test_light_and_dark(opened):
    script = "return getComputedStyle(document.querySelector('#figure-rounds [data-tip]')).fill"
    emulate(opened, "light")
    light, series = background(opened), opened.execute_script(script)
    emulate(opened, "dark")
    assert min(light) > 200
    assert max(background(opened)) < 60
    assert opened.execute_script(script) != series


def test_a_narrow_screen_scrolls_inside_its_boxes(opened):
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert opened.execute_script("return document.documentElement.scrollWidth") == 360


def test_paper_is_light_and_has_no_controls(opened):
    emulate(opened, "dark")
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF-")
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [feature]})
    assert background(opened) == [255, 255, 255]
    for gone in ("controls", "plan"):
        assert not opened.find_element(By.ID, gone).is_displayed()
    assert opened.find_element(By.ID, "figure-rounds").is_displayed()


def test_nothing_is_asked_of_any_network(opened, address):
    opened.get_log("performance")
    opened.refresh()
    asked = re.findall(r'"Network\.requestWillBeSent".*?"url":"([^"]+)"', _log(opened))
    assert asked
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
    assert [url for url in asked if url.startswith("file")] == [address]


def _log(browser):
    return "\n".join(entry["message"] for entry in browser.get_log("performance"))


def test_without_a_script_everything_is_there(opened, address):
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened.get(address)
        assert len(rows(opened)) == 4 * len(METHODS)
        assert not opened.find_element(By.ID, "controls").is_displayed()
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_script_in_a_name_does_not_run(browser, tmp_path):
    evil = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    write_atomically(
        tmp_path / "evil.html",
        render_page(evil, {evil: compared("fixed", seeds=1).groups["fixed"]}, notes=[evil]),
    )
    browser.get((tmp_path / "evil.html").as_uri())
    assert browser.title == evil
    assert browser.get_log("browser") == []


def test_the_page_of_a_site_fits_a_telephone(browser, tmp_path):
    trial = make_trial(tmp_path)
    with Site(trial.settings) as site:
        site.answer(trial.broadcast(0))
        site.answer(b"")
        site.refusals.save()
    write_atomically(tmp_path / "site.html", render_site_page(read_status(trial.settings)))
    for width in (390, 1200):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        browser.get((tmp_path / "site.html").as_uri())
        script = "return document.documentElement.scrollWidth"
        assert browser.execute_script(script) <= width
        assert browser.get_log("browser") == []
