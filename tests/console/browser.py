"""A real Chromium without a window, and what it asked for and complained about."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

if TYPE_CHECKING:
    from collections.abc import Callable

    from selenium.webdriver.remote.webelement import WebElement

PATIENCE_S = 60.0
ARGUMENTS = (
    # Tests run as root, in containers with a small /dev/shm.
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run", "--no-proxy-server",
    # What Chromium does by itself is not the page's doing.
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps", "--no-pings",
)  # fmt: skip


def missing() -> str | None:
    """Why there can be no browser here; None if there can."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} must be installed: scripts/install-crash-tools" if absent else None


class Browser:
    """One browser with one tab. Every look waits until it holds."""

    def __init__(self, folder: str, *, width: int = 1200, height: int = 800) -> None:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or "chromium"
        for argument in (*ARGUMENTS, f"--user-data-dir={folder}/profile", f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(shutil.which("chromedriver"), log_output=os.devnull)
        self.driver = Chrome(options=options, service=service)
        self.driver.set_page_load_timeout(PATIENCE_S)
        self.driver.set_script_timeout(PATIENCE_S)

    def close(self) -> None:
        self.driver.quit()

    def until(self, holds: Callable[[], Any]) -> Any:
        """What *holds* gives once it is true; elements may be replaced while it looks."""

        def look(_: object) -> Any:
            return holds()

        return WebDriverWait(self.driver, PATIENCE_S, 0.05, ignored_exceptions=[Exception]).until(look)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str, text: str | None = None) -> WebElement:
        """The element, once it can be seen; with *text*, the one that says just that."""

        def look() -> WebElement | None:
            for one in self.driver.find_elements(By.CSS_SELECTOR, selector):
                if one.is_displayed() and (text is None or one.text.strip() == text):
                    return one
            return None

        found: WebElement = self.until(look)
        return found

    def click(self, selector: str, text: str | None = None) -> None:
        """Click it once it can be clicked."""

        def clicked() -> bool:
            self.find(selector, text).click()
            return True

        self.until(clicked)

    def text(self, selector: str) -> str:
        """What it says, seen or not, as it is."""
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def rows(self) -> list[list[str]]:
        """The cells of the view's table, as they are now."""
        found: list[list[str]] = self.run(
            "return [...document.querySelectorAll('#view tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        return found

    def size(self, width: int, height: int) -> None:
        """As small as a telephone, which no window can be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        """Prefer `dark` or `light`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def complaints(self) -> list[str]:
        """What the console of the browser has said since the last look: errors, and violations of the policy."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]

    def hosts(self) -> set[str]:
        """Where requests went since the last look."""
        urls = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
        # Chromium draws its own parts, the calendar of a field for one, from data: and chrome: URLs.
        return {urlsplit(url).netloc for url in urls if urlsplit(url).scheme not in ("data", "chrome", "chrome-untrusted")}
