"""The live page in a real browser, beside a real server: a load that starts, a process that is killed, and an end."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import wait_until
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from shown_page import CUT, REACHABLE, script, wait

from clients import Model
from serve.launcher import Server, Settings, launch
from serve.server_flags import LATENCIES
from tests.perf.report import test_browser as pages
from tests.perf.report.test_browser import AXE, WIDTHS

MODEL = "simulated_accelerator"
ROOT = Path(__file__).parents[3]
pytestmark = [pages.needs_browser, pytest.mark.server]
browser = pages.browser
ROWS = """const [figure, line] = arguments;
const at = [...document.querySelectorAll("figure[data-chart]")].findIndex((each) => each.dataset.chart === figure);
return views[at].data("rows").filter((row) => (row.line ?? row.kind) === line);"""


class Watching:
    """`perf.watch --serve` as a process."""

    def __init__(self, *servers: Server) -> None:
        places = [word for each in servers for word in ("--url", each.grpc_url, "--metrics", each.metrics_url)]
        command = [sys.executable, "-m", "perf.watch", *places, "--every", "0.5", "--serve", "0"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        printed, _ = self.process.communicate(timeout=60)
        return printed


def show(browser: webdriver.Chrome, address: str, width: int = 1280, theme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features, "media": ""})
    browser.get(address)
    wait(browser, "Number(document.body.dataset.readings) >= 2")


def send(server: Server, *rows: int) -> None:
    """One after the other, so that each is an execution."""
    with Model(MODEL, url=server.grpc_url, transport="grpc") as model:
        for count in rows:
            model.predict(np.zeros((count, 1, 32, 100), np.float32))


def executions(browser: webdriver.Chrome) -> dict[str, int]:
    """All executions in the map of batch sizes, by size."""
    found: dict[str, int] = {}
    for cell in script(browser, ROWS, "batches", "cell"):
        size = f"{cell['least'] + 0.5:.0f}"
        found[size] = found.get(size, 0) + cell["executions"]
    return found


def table(browser: webdriver.Chrome, name: str) -> list[dict[str, str]]:
    rows: list[list[str]] = script(
        browser,
        """return [...document.querySelectorAll(`#${arguments[0]} tr`)].map(
          (row) => [...row.cells].map((cell) => cell.textContent))""",
        name,
    )
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def test_a_watch_from_a_first_load_to_the_end_of_its_server(browser: webdriver.Chrome) -> None:
    """The server is the test's own: it ends it, and kills a process of it."""
    with ExitStack() as stack, ExitStack() as running:
        server = running.enter_context(launch(Settings(models=(MODEL,), exporter=True, arguments=LATENCIES)))
        watching = Watching(server)
        stack.callback(watching.process.kill)
        show(browser, watching.address)
        assert executions(browser) == {}
        send(server, 1, 3, 3, 8)
        assert wait_until(lambda: executions(browser) == {"1": 1, "3": 2, "8": 1}, seconds=60)
        wait(browser, "[...document.querySelectorAll('#models th')].length")
        assert wait_until(lambda: bool(script(browser, ROWS, "distribution", "line")), seconds=60)
        # 20 ms + 0.5 ms a row.
        assert min(row["value"] for row in script(browser, ROWS, "distribution", "line")) >= 20.5
        nothing_is_cut_and_everything_is_reached(browser, watching.address)
        processes = table(browser, "processes")
        assert {row["of"] for row in processes} == {"tritonserver", MODEL}
        victim = next(row["process"] for row in processes if row["of"] == MODEL)
        os.kill(int(victim), signal.SIGKILL)
        death = f"{MODEL}: process {victim} died"
        wait(browser, f"document.querySelector('#events').textContent.includes('{death}')")
        marks = script(browser, "return views[0].data('marks').map((mark) => [mark.kind, mark.values])")
        assert ["death", death] in marks
        running.close()
        wait(browser, "document.querySelector('#servers').textContent.includes('no answer for')")
        assert table(browser, "models")[0]["requests/s"] == "no answer"
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
        printed = watching.end()
        assert watching.process.returncode == 0
        assert death in printed
        wait(browser, "document.querySelector('#connection').textContent.includes('does not answer')")
        browser.get("about:blank")


def nothing_is_cut_and_everything_is_reached(browser: webdriver.Chrome, address: str) -> None:
    for width, theme in zip(WIDTHS, ("light", "dark", "light"), strict=True):
        show(browser, address, width, theme)
        wait(browser, "document.querySelectorAll('#processes td').length")
        assert script(browser, "return document.documentElement.scrollWidth") <= width
        assert script(browser, CUT) == [], width
        assert serious(browser) == [], (width, theme)
    reachable = script(browser, REACHABLE)
    script(browser, "window.reached = new Set(); addEventListener('focusin', (event) => reached.add(event.target))")
    ActionChains(browser).send_keys(Keys.TAB * (reachable + 3)).perform()
    assert script(browser, "return reached.size") == reachable
    hour = browser.find_element(By.CSS_SELECTOR, "button[data-span='3600.0']")
    hour.send_keys(Keys.ENTER)
    wait(browser, "views[0].signal('end') - views[0].signal('begin') === 3600000")
    # What ran before the page was opened is in its window.
    assert executions(browser) == {"1": 1, "3": 2, "8": 1}


def serious(browser: webdriver.Chrome) -> list[Any]:
    if not AXE.exists():
        return []
    script(browser, AXE.read_text())
    found = browser.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run(document).then((all) => done(all.violations))"
    )
    return [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]
