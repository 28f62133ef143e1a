"""The pages in a real browser: what a reader sees, points at and reaches with the keyboard."""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from studies import CHOSEN, study

from perf.records import file
from perf.report.command import summarise, write_html
from perf.report.study.evidence import Evidence
from perf.report.study.report import sections
from perf.report.study.report import write_html as write_study
from tests.perf.report.sweep.test_timeline import ALONE, TOGETHER
from tests.perf.report.test_report import fill

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
AXE = Path(__file__).parents[3] / ".venv" / "axe.min.js"
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver: make system")
WIDTHS = (390, 768, 1280)
# Vega dims marks to this opacity.
DIM = "0.12"
CUT = """
const cut = [];
for (const svg of document.querySelectorAll(".chart svg")) {
  const whole = svg.getBoundingClientRect();
  if (whole.right > innerWidth + 1) cut.push("a figure");
  for (const text of svg.querySelectorAll("text")) {
    const box = text.getBoundingClientRect();
    if (!text.textContent || getComputedStyle(text).opacity === "0") continue;
    const across = box.left >= whole.left - 2 && box.right <= whole.right + 2;
    if (!across || box.top < whole.top - 2 || box.bottom > whole.bottom + 2) cut.push(text.textContent);
    if (parseFloat(getComputedStyle(text).fontSize) < 11) cut.push("small: " + text.textContent);
  }
}
for (const each of document.querySelectorAll("main *")) {
  const frame = each.closest(".scroll, pre");
  if (each.checkVisibility() && !each.closest("svg") && !frame && each.getBoundingClientRect().right > innerWidth + 1)
    cut.push(each.tagName + " " + each.className);
}
for (const frame of document.querySelectorAll(".scroll"))
  if (frame.checkVisibility() && frame.scrollWidth > frame.clientWidth + 1 && !frame.classList.contains("more"))
    cut.push("a table without a hint");
return cut;
"""
REACHABLE = """
const groups = new Set();
return [...document.querySelectorAll("button, select, input, a[href], summary, [tabindex='0']")].filter((each) => {
  if (!each.checkVisibility() || each.disabled) return false;
  if (each.type !== "radio") return true;
  if (groups.has(each.name)) return false;
  return groups.add(each.name);
}).length;
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a sweep with two timelines, and that of a study."""
    folder = fill(tmp_path_factory.mktemp("browser"))
    for each in (ALONE, TOGETHER):
        file.write(each, folder / each.file_name)
    evidence = Evidence(study=study(), name="study")
    return {
        "sweep": write_html(summarise(folder), folder),
        "study": write_study(evidence, sections(evidence), folder),
    }


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


def opened(
    browser: webdriver.Chrome, page: Path, width: int = 1280, *features: dict[str, str], media: str = ""
) -> None:
    """Open a page at a width, and wait until all figures are drawn."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": list(features), "media": media})
    browser.get(page.as_uri())
    wait(browser, "document.body.dataset.drawn")


def wait(browser: webdriver.Chrome, condition: str) -> Any:
    """The value of a condition as soon as it holds."""
    end = time.monotonic() + 60
    while not (value := browser.execute_script(f"return {condition}")):
        assert time.monotonic() < end, condition
        time.sleep(0.05)
    return value


def script(browser: webdriver.Chrome, text: str, *arguments: object) -> Any:
    return browser.execute_script(text, *arguments)


def mark(browser: webdriver.Chrome, figure: str, configuration: str) -> WebElement:
    """The first mark of a configuration with a text for readers."""
    found = script(
        browser,
        """const [figure, name] = arguments;
        const place = document.querySelector(`figure[data-chart="${figure}"] .chart`);
        place.scrollIntoView({block: "center"});
        return [...place.querySelectorAll("path, rect")].find(
          (each) => each.__data__?.tooltip && each.__data__.datum?.configuration === name)""",
        figure,
        configuration,
    )
    assert isinstance(found, WebElement)
    return found


@pytest.mark.parametrize("name", ["sweep", "study"])
def test_nothing_is_cut_and_the_console_is_silent(browser: webdriver.Chrome, pages: dict[str, Path], name: str) -> None:
    for width in WIDTHS:
        opened(browser, pages[name], width)
        assert script(browser, "return document.documentElement.scrollWidth") <= width
        assert script(browser, CUT) == [], width
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_pointing_at_a_mark_shows_what_the_record_holds(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    ActionChains(browser).move_to_element(mark(browser, "1-m-throughput", "dynamic")).perform()
    text = wait(browser, "document.querySelector('#vg-tooltip-element.visible')?.innerText")
    for shown in ("dynamic", "2 requests in flight, 2 rows each", "317.8 (95 %: 317.7 to 317.8)", "3.47"):
        assert shown in text


def test_a_click_shows_one_configuration_in_all_figures(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    faint = f"""const figures = [...document.querySelectorAll("figure[data-chart]")];
      return figures.map((figure) => [...new Set([...figure.querySelectorAll('[opacity="{DIM}"]')].flatMap(
        (each) => each.__data__?.datum?.configuration ?? []))].join())"""
    ActionChains(browser).click(mark(browser, "1-m-throughput", "dynamic")).perform()
    wait(browser, "document.body.dataset.picked === 'dynamic'")
    deadline = time.monotonic() + 30
    # All seven figures of the model and the timeline have marks of the baseline; the gain has none.
    while (found := script(browser, faint)).count("baseline") < 7 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sorted(found) == ["", *["baseline"] * 7]
    pressed = script(browser, "return document.querySelector('[data-configuration=dynamic]').ariaPressed")
    assert pressed == "true"
    assert script(browser, "return document.querySelectorAll('tr.faint[data-configuration=baseline]').length") == 2
    browser.find_element(By.CSS_SELECTOR, "button[data-all]").click()
    wait(browser, "document.body.dataset.picked === ''")


def test_the_keyboard_reaches_everything(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    for page in pages.values():
        opened(browser, page)
        reachable = script(browser, REACHABLE)
        script(browser, "window.reached = new Set(); addEventListener('focusin', (event) => reached.add(event.target))")
        ActionChains(browser).send_keys(Keys.TAB * (reachable + 3)).perform()
        assert script(browser, "return reached.size") == reachable


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


def test_paper_is_white_in_a_dark_theme(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    background = "return getComputedStyle(document.body).backgroundColor"
    opened(browser, pages["sweep"], 1280, dark)
    assert script(browser, background) == "rgb(21, 24, 28)"
    opened(browser, pages["sweep"], 1280, dark, media="print")
    assert script(browser, background) == "rgb(255, 255, 255)"


@pytest.mark.skipif(not AXE.exists(), reason=f"no {AXE.name}: make test fetches it with npm")
def test_the_rules_of_accessibility_find_nothing_serious(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    for page, theme in zip(pages.values(), ("light", "dark"), strict=True):
        opened(browser, page, 390, {"name": "prefers-color-scheme", "value": theme})
        script(browser, AXE.read_text())
        found = browser.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run(document).then((all) => done(all.violations))"
        )
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == [], (page.name, theme)


def test_a_study_without_figures_has_no_script(tmp_path: Path) -> None:
    nothing = replace(study(), chosen=None, trials=(), predictions=(), steps=(), space={}, limit="", after_pbtxt="")
    evidence = Evidence(study=nothing, name="study")
    text = write_study(evidence, sections(evidence), tmp_path).read_text()
    assert "<script" not in text
    assert len(text) < 20_000
