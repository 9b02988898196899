"""
Make the picture of docs/console.md: a server at work, seen by Chromium.

    python -m tests.console.screenshot docs/console.png
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.console.browser import Browser
from tests.console.stage import staged

SECONDS = 50
"""Long enough for lines to be seen."""


def take(path: str) -> None:
    """Write the picture to *path*."""
    with tempfile.TemporaryDirectory() as folder, staged(Path(folder)) as (server, store):
        done = threading.Event()

        def publish() -> None:
            number = 0
            while not done.wait(0.05):
                number += 1
                store.publish_many("orders", [b"order"] * (5 + number % 40))
                store.publish_many("payments", [b'{"amount": 5}'] * (20 if number % 100 < 60 else 2))

        def consume() -> None:
            with store.subscribe("orders", "billing") as consumer:
                while not done.is_set():
                    for message in consumer.get_many(60, 0.5):
                        message.ack()

        browser = Browser(folder, width=1120, height=640)
        threads = [threading.Thread(target=work) for work in (publish, consume)]
        for thread in threads:
            thread.start()
        try:
            browser.driver.get(f"{server.address('http')}/console")
            browser.find("#token").send_keys("admin-token")
            browser.click("#token-dialog button.main")
            browser.size(1000, 430)
            time.sleep(SECONDS)
            browser.driver.save_screenshot(path)
        finally:
            done.set()
            for thread in threads:
                thread.join()
            browser.close()


if __name__ == "__main__":
    take(sys.argv[1])
