"""A page that a real browser shows: opened at a width, asked by scripts, and its marks."""

import time
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.remote.webelement import WebElement

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


def opened(
    browser: webdriver.Chrome, page: Path, width: int = 1280, *features: dict[str, str], media: str = ""
) -> None:
    """Open a page at a width, and wait until all figures are drawn."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": list(features), "media": media})
    browser.get(page.as_uri())
    wait(browser, "document.body.dataset.drawn || !document.querySelector('figure[data-chart]')")


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
