"""The pictures of the studio in docs/serving.md: a server, a browser, one picture wide and one of a phone.

python examples/studio_pictures.py BASE SKILLS -o docs
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TEXT = "The food was cold and nobody came to help us."
PICTURES = {
    "studio": {"viewport": {"width": 1280, "height": 1120}, "color_scheme": "light"},
    "studio-phone": {"viewport": {"width": 400, "height": 1180}, "color_scheme": "dark", "has_touch": True, "is_mobile": True},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures of the studio.")
    parser.add_argument("base")
    parser.add_argument("skills", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--name", default="MiniLM")
    given = parser.parse_args()
    words = ["studio", given.base, "--skills", str(given.skills), "--name", given.name, "--port", "0", "--json"]
    server = subprocess.Popen([sys.executable, "-m", "skillgraft", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        take(json.loads(server.stdout.readline())["url"], given.out)
    finally:
        server.terminate()
        server.wait(60)


def take(url: str, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as home:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"], env={"HOME": home})
        for name, look in PICTURES.items():
            page = browser.new_context(**look).new_page()
            page.goto(url)
            page.wait_for_selector("html[data-ready=true]")
            arrange(page, phone=name != "studio")
            page.screenshot(path=out / f"{name}.png")
        browser.close()
    for name in PICTURES:
        smaller(out / f"{name}.png")


def arrange(page: Any, *, phone: bool) -> None:
    """Two skills, one of them at another scale."""
    page.locator("#question").fill(TEXT)
    page.locator("#scale-questions").fill("0.6")
    page.locator("#task").select_option("reviews")
    page.wait_for_timeout(1000)
    page.wait_for_function("() => !document.querySelector('.answer.busy')")
    page.wait_for_timeout(500)
    if phone:
        page.locator("#ask").scroll_into_view_if_needed()
        page.evaluate("document.querySelector('#ask').scrollIntoView()")


def smaller(file: Path) -> None:
    """128 colours are enough for a page."""
    from PIL import Image

    with Image.open(file) as picture:
        picture.convert("RGB").quantize(128).save(file, optimize=True)


if __name__ == "__main__":
    main()
