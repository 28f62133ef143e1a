"""The pages in a real browser: what a reader sees, points at and reaches with the keyboard."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from shown_page import CUT, REACHABLE, mark, opened, script, wait
from studies import CHOSEN, study

from perf.pack.__main__ import main as pack
from perf.records import file
from perf.report.__main__ import main as report
from perf.report.command import summarise, write_html
from perf.report.study.evidence import Evidence
from perf.report.study.report import sections
from perf.report.study.report import write_html as write_study
from perf.why.__main__ import main as why
from tests.perf.report.sweep.test_timeline import ALONE, TOGETHER
from tests.perf.report.test_report import fill

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
AXE = Path(__file__).parents[3] / ".venv" / "axe.min.js"
needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver: make system")
pytestmark = [pytest.mark.slow, needs_browser]
WHY = (
    *("python_batched_service", "--config-name", "separate", "--mix", "20,30,40", "--concurrency", "16"),
    *("--service-ms", "10+0.2"),
)
THREE_MODELS = Path(__file__).parents[3] / "perf" / "pack" / "plans" / "three_models.toml"
GRID = Path(__file__).parents[3] / "perf" / "studies" / "results" / "grid"
WIDTHS = (390, 768, 1280)
# Vega dims marks to this opacity.
DIM = "0.12"


NAMES = ("sweep", "study", "thinned", "why", "packing", "index")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind: of a sweep with two timelines, of studies with and without intervals, and of programs."""
    folder = fill(tmp_path_factory.mktemp("browser"))
    for each in (ALONE, TOGETHER):
        file.write(each, folder / each.file_name)
    evidence = Evidence(study=study(), name="study")
    thinned = Evidence.read(GRID / "simulated_accelerator.closed-32.throughput.p99-55ms.json")
    made = {
        "sweep": write_html(summarise(folder), folder),
        "study": write_study(evidence, sections(evidence), folder),
        "thinned": write_study(thinned, sections(thinned), folder),
        "why": folder / "why.html",
        "packing": folder / "packed" / "placement.html",
        "index": folder / "index.html",
    }
    assert why([*WHY, "--html", str(made["why"])]) == 0
    assert pack([str(THREE_MODELS), "--out", str(folder / "packed")]) == 0
    study().write(folder / "records" / "study.json")
    assert report(["--index", str(folder / "records"), "--out", str(folder)]) == 0
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """One headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_cut_and_the_console_is_silent(browser: webdriver.Chrome, pages: dict[str, Path], name: str) -> None:
    for width in WIDTHS:
        opened(browser, pages[name], width)
        assert script(browser, "return document.documentElement.scrollWidth") <= width
        assert script(browser, CUT) == [], width
    assert pages[name].stat().st_size <= 2_000_000
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_pointing_at_a_mark_shows_what_the_record_holds(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    ActionChains(browser).move_to_element(mark(browser, "1-m-throughput", "dynamic")).perform()
    text = wait(browser, "document.querySelector('#vg-tooltip-element.visible')?.innerText")
    for shown in ("dynamic", "2 requests in flight, 2 rows each", "317.8 (95 %: 317.7 to 317.8)", "3.47"):
        assert shown in text


def test_a_click_shows_one_configuration_in_all_figures(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    # All seven figures of the model and the timeline have marks of the baseline; the gain has none.
    faint = f"""[...document.querySelectorAll("figure[data-chart]")].filter(
      (figure) => [...figure.querySelectorAll('[opacity="{DIM}"]')].some(
        (each) => each.__data__?.datum?.configuration === "baseline")).length"""
    ActionChains(browser).click(mark(browser, "1-m-throughput", "dynamic")).perform()
    wait(browser, "document.body.dataset.picked === 'dynamic'")
    wait(browser, f"{faint} === 7")
    assert script(browser, f"return {faint.replace('baseline', 'dynamic')}") == 0
    pressed = script(browser, "return document.querySelector('[data-configuration=dynamic]').ariaPressed")
    assert pressed == "true"
    assert script(browser, "return document.querySelectorAll('tr.faint[data-configuration=baseline]').length") == 2
    browser.find_element(By.CSS_SELECTOR, "button[data-all]").click()
    wait(browser, "document.body.dataset.picked === ''")


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_reaches_everything(browser: webdriver.Chrome, pages: dict[str, Path], name: str) -> None:
    opened(browser, pages[name])
    reachable = script(browser, REACHABLE)
    script(browser, "window.reached = new Set(); addEventListener('focusin', (event) => reached.add(event.target))")
    ActionChains(browser).send_keys(Keys.TAB * (reachable + 3)).perform()
    assert script(browser, "return reached.size") == reachable > 0


def test_the_arrow_keys_go_through_the_marks(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    place = browser.find_element(By.CSS_SELECTOR, 'figure[data-chart="1-m-throughput"] .chart')
    place.send_keys(Keys.ARROW_RIGHT)
    assert "baseline" in wait(browser, "document.querySelector('#vg-tooltip-element.visible')?.innerText")
    place.send_keys(Keys.ENTER)
    wait(browser, "document.body.dataset.picked === 'baseline'")


def test_a_button_zooms_on_the_tail(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["study"])
    figure = browser.find_element(By.CSS_SELECTOR, 'figure[data-chart="tail"]')
    labels = "[...document.querySelectorAll('figure[data-chart=tail] .role-axis-label text')].map((e) => e.textContent)"
    assert "95" in script(browser, f"return {labels}")
    figure.find_elements(By.CSS_SELECTOR, "button[data-zoom]")[2].click()
    wait(browser, f"!{labels}.includes('95') && {labels}.includes('99')")


def test_a_list_shows_a_configuration_without_a_role(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["study"])
    options = browser.find_elements(By.CSS_SELECTOR, "select[data-configurations] option")
    names = [each.get_attribute("value") for each in options[1:]]
    # Twelve were simulated, of which the chosen and the current one have switches.
    assert len(names) == 10
    assert str(CHOSEN) not in names
    options[1].click()
    wait(browser, f"document.body.dataset.picked === '{names[0]}'")


def test_the_timeline_of_a_queue_names_the_rule_of_each_batch(
    browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    opened(browser, pages["why"])
    rule = "the next request has another shape of INPUT"
    ActionChains(browser).move_to_element(mark(browser, "timeline", rule)).perform()
    text = wait(browser, "document.querySelector('#vg-tooltip-element.visible')?.innerText")
    # The first request alone: the second has another length. An execution of one row of 20 takes 10 + 0.2 x 20 / 30 ms.
    for shown in (rule, "1 of 16", "[20] then [30]", "10.1 ms"):
        assert shown in text
    ActionChains(browser).click(mark(browser, "timeline", rule)).perform()
    wait(browser, f"document.body.dataset.picked === '{rule}'")


def test_the_cycle_of_a_device_shows_the_plan(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    placed = json.loads((pages["packing"].parent / "placement.json").read_text())
    share = next(each for each in placed["nodes"][0]["shares"] if each["model"] == "reader")
    opened(browser, pages["packing"])
    ActionChains(browser).move_to_element(mark(browser, "cycle", "reader")).perform()
    text = wait(browser, "document.querySelector('#vg-tooltip-element.visible')?.innerText")
    for shown in (f"{share['batch']} rows", f"{share['exec_ms']:.4g} ms", "40 requests/s"):
        assert shown in text


def test_the_index_leads_to_a_page(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["index"])
    browser.find_element(By.CSS_SELECTOR, "a[href$='.html']").click()
    wait(browser, "document.body.dataset.drawn || document.querySelector('h1')")
    assert browser.current_url != pages["index"].as_uri()
    assert "p99" in browser.find_element(By.TAG_NAME, "h1").text


def test_paper_is_white_in_a_dark_theme(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    background = "return getComputedStyle(document.body).backgroundColor"
    opened(browser, pages["sweep"], 1280, dark)
    assert script(browser, background) == "rgb(21, 24, 28)"
    opened(browser, pages["sweep"], 1280, dark, media="print")
    assert script(browser, background) == "rgb(255, 255, 255)"


def test_figures_are_drawn_one_by_one_and_paper_gets_all(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    """Here the pause after the first figure never ends."""
    endless = "window.MessageChannel = class { port1 = {}; port2 = { postMessage() {} } }"
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": endless})
    figures, drawn = ("figure[data-chart]", "figure[data-chart] svg")
    try:
        browser.get(pages["sweep"].as_uri())
        wait(browser, f"document.querySelector('{drawn}')")
        assert script(browser, f"return document.querySelectorAll('{drawn}').length") == 1
        assert script(browser, "return document.body.dataset.drawn") is None
        browser.print_page()
        count = script(browser, f"return document.querySelectorAll('{figures}').length")
        assert script(browser, f"return document.querySelectorAll('{drawn}').length") == count == 8
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.mark.skipif(not AXE.exists(), reason=f"no {AXE.name}: make test fetches it with npm")
@pytest.mark.parametrize("name", NAMES)
def test_the_rules_of_accessibility_find_nothing_serious(
    browser: webdriver.Chrome, pages: dict[str, Path], name: str
) -> None:
    for theme in ("light", "dark"):
        opened(browser, pages[name], 390, {"name": "prefers-color-scheme", "value": theme})
        script(browser, AXE.read_text())
        found = browser.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run(document).then((all) => done(all.violations))"
        )
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == [], theme
