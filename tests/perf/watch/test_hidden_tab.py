"""The live page in many tabs of one browser, which has six connections to a host."""

import pytest
from selenium import webdriver
from shown_page import wait
from watching import reading

from perf.watch import web
from tests.perf.report import test_browser as pages
from tests.perf.watch.test_stream import add, live

pytestmark = pages.pytestmark
browser = pages.browser
FIRST, TABS = "Number(document.body.dataset.readings) >= 1", 8


@pytest.mark.usefixtures("browser")
def test_more_tabs_than_connections(browser: webdriver.Chrome) -> None:
    """The seventh tab never got its page."""
    servers = live("a:1")
    add(servers, reading(100.0))
    browser.set_page_load_timeout(60)
    first = browser.current_window_handle
    with web.serving(servers, "127.0.0.1", 0, "") as address:
        for number in range(TABS):
            if number:
                browser.switch_to.new_window("tab")
            browser.get(address)
            wait(browser, FIRST)
        opened = set(browser.window_handles)
        add(servers, reading(101.0, 2))
        browser.switch_to.window(first)
        wait(browser, "views[0].signal('end') === 101000")
        for handle in opened - {first}:
            browser.switch_to.window(handle)
            browser.close()
        browser.switch_to.window(first)
        wait(browser, "source.readyState === EventSource.OPEN")
        servers.ended = True
        servers.told()
