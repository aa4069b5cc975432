"""Headless Chromium, driven through Selenium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
CHROMEDRIVER = "/usr/bin/chromedriver"


class Browser:
    """Headless Chromium with one window."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self.driver: Any = self._start()

    def _start(self) -> Any:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--user-data-dir={self._profile}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        return webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))

    def open(self, url: str, dark: bool = True, width: int = 1400, height: int = 900) -> None:
        """Show a page; in a new browser where the one before has died, as it does once in some thousand."""
        from selenium.common.exceptions import InvalidSessionIdException

        try:
            self._open(url, dark, width, height)
        except InvalidSessionIdException as died:
            print(f"browser: {died.msg}; once more in a new one")
            self.driver.quit()
            self.driver = self._start()
            self._open(url, dark, width, height)

    def _open(self, url: str, dark: bool, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")  # the page of the test before complains that its server is gone
        self.driver.get_log("browser")
        self.driver.get(url)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, test: str) -> str:
        return str(
            self.js(
                "const e = document.querySelector(`[data-testid=${arguments[0]}]`);"
                "return e && e.offsetParent !== null ? e.innerText : ''",
                test,
            )
        )

    def toggle(self, test: str, option: str) -> None:
        """Press the button of a toggle."""
        self.js(
            "[...document.querySelectorAll(`[data-testid=${arguments[0]}] button`)]"
            ".find((b) => b.innerText.trim() === arguments[1]).click()",
            test,
            option,
        )

    def frames(self, test: str) -> int:
        return int(
            self.js(
                "return document.querySelector(`[data-testid=${arguments[0]}]`)?.dataset.frames ?? 0", test
            )
        )

    def cell(self, nic: str, peer: str) -> dict[str, Any] | None:
        """What the heat map shows for a row and a column."""
        found = self.js(
            "const h = document.querySelector('[data-testid=heat]')?.ft?.drawer;"
            "if (!h?.rows) return null;"
            "const y = h.rows.findIndex((l) => l.text === arguments[0]);"
            "const x = h.cols.findIndex((l) => l.text === arguments[1]);"
            "const shown = h.chart.getOption().series[0].data.find((d) => d[0] === x && d[1] === y);"
            "const cell = h.cells.get(y * h.cols.length + x);"
            "return cell ? {metric: h.metric, value: cell[1], p50: cell[2], p99: cell[3], count: cell[5],"
            " lost: cell[6], bound: cell[7], drawn: shown ? shown[2] : null, x, y} : null",
            nic,
            peer,
        )
        return dict(found) if found else None

    def click_cell(self, nic: str, peer: str) -> None:
        """Click the middle of a cell with the mouse."""
        from selenium.webdriver.common.action_chains import ActionChains

        self.hover_cell(nic, peer)
        ActionChains(self.driver).click().perform()

    def hover_cell(self, nic: str, peer: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        cell = self.cell(nic, peer)
        assert cell is not None
        x, y = self.js(
            "const e = document.querySelector('[data-testid=heat] .ft-canvas');"
            "const b = e.getBoundingClientRect();"
            "const p = e.parentElement.ft.chart.convertToPixel({gridIndex: 0}, [arguments[0], arguments[1]]);"
            "return [b.left + p[0], b.top + p[1]]",
            cell["x"],
            cell["y"],
        )
        chain = ActionChains(self.driver)
        chain.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        chain.perform()

    def hover_point(self, test: str, series: str, point: int, click: bool = False) -> None:
        """Put the mouse on a data point of a chart's series, and click there."""
        from selenium.webdriver.common.action_chains import ActionChains

        x, y = self.js(
            "const e = document.querySelector(`[data-testid=${arguments[0]}]`);"
            "const c = e.querySelector('.ft-canvas');"
            "c.scrollIntoView({block: 'center'});"
            "const b = c.getBoundingClientRect(), chart = e.ft.chart;"
            "const s = chart.getOption().series.find((each) => each.id === arguments[1]);"
            "const p = chart.convertToPixel({gridIndex: 0}, s.data[arguments[2]].value);"
            "return [b.left + p[0], b.top + p[1]]",
            test,
            series,
            point,
        )
        chain = ActionChains(self.driver)
        chain.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        if click:
            chain.click()
        chain.perform()

    def tip(self, test: str) -> str:
        """The text of a chart's tooltip; '' where none is shown."""
        return str(
            self.js(
                "return [...document.querySelectorAll(`[data-testid=${arguments[0]}] .ft-canvas > div`)]"
                ".filter((e) => e.style.visibility !== 'hidden' && e.style.opacity !== '0')"
                ".map((e) => e.innerText).find((t) => t) || ''",
                test,
            )
        )

    def last(self, test: str) -> Any:
        """The frame that a chart shows."""
        return self.js(
            "return document.querySelector(`[data-testid=${arguments[0]}]`)?.ft?.drawer.last", test
        )

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
