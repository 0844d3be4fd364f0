"""A window of a real browser."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium.webdriver.common.action_chains import ActionChains

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """One window; its driver is selenium's."""

    driver: Any

    def open(
        self, page: Path | str, *, width: int = 1000, scheme: str = "light", scripts: bool = True
    ) -> None:
        self._tell("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._tell("Emulation.setDeviceMetricsOverride",
                   width=width, height=900, deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self.prefer(scheme)
        for log in ("browser", "performance"):
            self.driver.get_log(log)  # what was logged before is another page's
        self.driver.get(page if isinstance(page, str) else page.absolute().as_uri())

    def prefer(self, scheme: str, medium: str = "") -> None:
        """Say which colours the user prefers, and whether the page is on screen or on paper."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._tell("Emulation.setEmulatedMedia", media=medium, features=features)

    def ask(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        for key in keys:
            ActionChains(self.driver, duration=0).send_keys(key).perform()

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses of everything that was asked for since the page was opened."""
        events = [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        messages = [event["message"] for event in events]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def printed(self) -> bytes:
        return base64.b64decode(self._tell("Page.printToPDF", printBackground=True)["data"])

    def _tell(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)
