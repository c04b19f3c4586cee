"""A new user who looks at results in a browser, and one who follows the README in Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.journeys.terminal import Terminal
from tests.model_folders import same_weights
from tests.report.browsing import browser, need_browser
from tests.test_docs_tasks import write_example
from tests.test_readme import README, blocks, models  # noqa: F401

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

pytestmark = pytest.mark.long


@pytest.mark.parametrize("width", [1280, 400])
def test_the_report_fits_a_screen_and_a_phone(
    terminal: Terminal, width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Journey 8: one page; what came out stands on its first screen, and nothing runs over the edge."""
    need_browser()
    write_example(terminal.folder)
    tuning = "--shots 3 --optimizer adamw --lr 1e-3 --batch-size 4 --steps 20"
    terminal(f"skillgraft finetune BASE --task reviews.toml {tuning} -o TUNED")
    terminal(
        "skillgraft localize BASE TUNED --task reviews.toml --shots 3 --steps 5 --density 0.01 -o skill.safetensors"
    )
    terminal("skillgraft evaluate BASE --task reviews.toml --tuned TUNED --graft skill.safetensors --save answers")
    terminal("skillgraft report skill.safetensors answers -o page.html")
    with browser(tmp_path_factory.mktemp("b")) as chromium:  # a short name: sockets take no long ones
        page = chromium.new_page(viewport={"width": width, "height": 800})
        page.goto((terminal.folder / "page.html").as_uri())
        page.wait_for_timeout(1500)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        first = page.locator("p.skill").first
        assert "skill" in first.inner_text()
        assert first.bounding_box()["y"] < 800
        page.screenshot(path=terminal.folder / f"page-{width}.png", full_page=True)


def test_the_readme_in_python(models: Path, terminal: Terminal) -> None:
    """Journey 10: the README's Python, pasted block by block into one program, beside a live model."""
    for model in models.iterdir():
        (terminal.folder / model.name).symlink_to(model)
    program = "\n\n".join(blocks(README, "python"))
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=terminal.folder, capture_output=True, text=True, check=False, timeout=900
    )
    assert ended.returncode == 0, ended.stderr
    assert same_weights(terminal.folder / "BACK", terminal.folder / "BASE")
    assert terminal("skillgraft inspect skill.safetensors").startswith("skill.safetensors: ")
