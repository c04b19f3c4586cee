"""The page in a real browser: it draws, sorts, fits a phone, asks nobody, and shows its tables without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skillgraft.report.figure_files import write_figure
from skillgraft.report.page import report
from skillgraft.report.sheet import Result

from .browsing import browser, need_browser
from .making import EVIL, curve, grid

FIGURES = 19
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


class Opened(NamedTuple):
    """A page, what its console wrote, and what it asked for beside its own file."""

    page: Any
    complaints: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    need_browser()
    with browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def file(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report([runs], tmp_path_factory.mktemp("page") / "page.html").path


def opened(chromium: Any, file: Path, *, size: dict[str, int] = DESKTOP, script: bool = True) -> Opened:
    context = chromium.new_context(viewport=size, java_script_enabled=script)
    page = context.new_page()
    found = Opened(page, [], [])
    page.on(
        "console",
        lambda message: found.complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("dialog", lambda dialog: found.complaints.append(f"a dialog: {dialog.message}"))
    page.goto(file.as_uri())
    if script:
        page.wait_for_selector("html[data-ready=true]")
        unfold(page)
    return found


def unfold(page: Any) -> None:
    """Open every section, as a reader would one after the other, and wait for their figures."""
    page.evaluate("document.querySelectorAll('details.section').forEach((each) => { each.open = true; })")
    page.wait_for_function("[...document.querySelectorAll('.plot')].every((each) => each.dataset.drawn === 'true')")


def test_the_first_screen_comes_first_and_the_rest_is_folded(chromium: Any, file: Path) -> None:
    page = chromium.new_context(viewport=DESKTOP).new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=true]")
    drawn = "[...document.querySelectorAll('.plot')].filter((each) => each.dataset.drawn).map((each) => each.id)"
    assert page.evaluate(drawn) == ["overview-scores", "overview-where"]
    assert page.evaluate("document.documentElement.scrollHeight") < 2.5 * DESKTOP["height"]
    assert not page.locator("#scores table").first.is_visible()
    page.click("nav a[href='#scores']")
    assert page.locator("#scores table").first.is_visible()
    page.locator("#where summary").first.click()
    page.wait_for_selector("#where-0[data-drawn=true]")


@pytest.fixture(scope="module")
def desktop(chromium: Any, file: Path) -> Opened:
    return opened(chromium, file)


def test_nothing_is_complained_about_and_nothing_fetched(desktop: Opened, file: Path) -> None:
    assert desktop.complaints == []
    assert desktop.requests == [file.as_uri()]


def test_every_figure_is_drawn(desktop: Opened) -> None:
    drawn = desktop.page.evaluate(
        """() => [...document.querySelectorAll(".plot")].map((place) => ({
            name: place.id,
            marks: place.querySelectorAll(".point, .points path, .hm image, .js-line").length,
            height: place.getBoundingClientRect().height,
        }))"""
    )
    assert len(drawn) == FIGURES
    assert [each["name"] for each in drawn if not each["marks"] or each["height"] < 100] == []


def test_names_from_files_are_read_as_text(desktop: Opened) -> None:
    assert EVIL in desktop.page.inner_text("#files")


def column(page: Any, caption: str, place: int) -> list[str]:
    found: list[str] = page.evaluate(
        """([caption, place]) => {
            const table = [...document.querySelectorAll("table")].find((each) => each.caption.textContent === caption);
            return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent);
        }""",
        [caption, place],
    )
    return found


def test_tables_sort_by_click_and_by_keyboard(desktop: Opened) -> None:
    page, caption = desktop.page, "Models, grafts and regions"
    table = page.locator("table", has=page.locator("caption", has_text=caption)).first
    entries = table.locator("thead th").nth(3)
    assert entries.get_attribute("aria-sort") is None
    entries.locator("button").click()
    assert entries.get_attribute("aria-sort") == "ascending"
    assert column(page, caption, 3) == ["2", "2", "4", "–", "–", "–"]
    entries.locator("button").focus()
    page.keyboard.press("Enter")
    assert entries.get_attribute("aria-sort") == "descending"
    assert column(page, caption, 3) == ["4", "2", "2", "–", "–", "–"]  # what has no number stays last
    names = table.locator("thead th").nth(0)
    names.locator("button").focus()
    page.keyboard.press("Space")
    assert (names.get_attribute("aria-sort"), entries.get_attribute("aria-sort")) == ("ascending", None)
    assert column(page, caption, 0) == sorted(column(page, caption, 0), key=str.lower)


def test_numbers_fold_away_under_their_figures_and_open_again(desktop: Opened) -> None:
    numbers = desktop.page.locator("#files details.numbers").first
    assert not numbers.locator("table").is_visible()
    numbers.locator("summary").click()
    assert numbers.locator("table").is_visible()


@pytest.fixture(scope="module")
def phone(chromium: Any, file: Path) -> Opened:
    return opened(chromium, file, size=PHONE)


def test_a_phone_does_not_scroll_sideways(phone: Opened) -> None:
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    wide = phone.page.evaluate(
        """() => [...document.querySelectorAll(".plot")].filter((plot) => plot.getBoundingClientRect().right > innerWidth)
            .map((plot) => plot.id)"""
    )
    assert wide == []
    assert phone.complaints == []


def test_figures_follow_the_window(phone: Opened) -> None:
    width = "document.querySelector('#files-sizes .main-svg').getBoundingClientRect().width"
    before = phone.page.evaluate(width)
    phone.page.set_viewport_size({"width": 800, "height": 900})
    phone.page.wait_for_timeout(500)
    assert before < PHONE["width"]
    assert phone.page.evaluate(width) > 700


def test_print_fits_the_paper(phone: Opened) -> None:
    phone.page.set_viewport_size({"width": 700, "height": 900})
    phone.page.emulate_media(media="print")
    assert not phone.page.locator("nav").is_visible()
    beyond = phone.page.evaluate(
        """() => [...document.querySelectorAll("main table, main .plot")].filter((each) => each.checkVisibility()
            && each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.textContent.slice(0, 40))"""
    )
    assert beyond == []
    phone.page.emulate_media(media="screen")


def test_without_javascript_the_tables_show(chromium: Any, file: Path) -> None:
    page = opened(chromium, file, script=False).page
    tables = page.locator("table")
    assert tables.count() > FIGURES
    assert all(tables.nth(place).is_visible() for place in range(tables.count()))
    assert page.locator("thead button").count() == 0
    assert not page.locator(".plot").first.is_visible()


def test_muted_text_has_contrast(desktop: Opened) -> None:
    """WCAG AA: 4.5 to 1 for every colour of text on white."""
    colours = desktop.page.evaluate(
        """() => [...new Set([...document.querySelectorAll("main *, header *")].filter((e) => e.checkVisibility() && e.textContent
            && !e.closest("svg") && !e.closest(".plot")).map((e) => getComputedStyle(e).color))]"""
    )
    assert colours
    for colour in colours:
        assert contrast_with_white(colour) >= 4.5, colour


def contrast_with_white(colour: str) -> float:
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_a_figure_file_draws_with_the_library_beside_it(chromium: Any, tmp_path: Path) -> None:
    write_figure(Result("r", "Result", (curve(), grid("heatmap"), grid())), tmp_path / "r", svg=False)
    figure = opened(chromium, tmp_path / "r.html")
    assert figure.complaints == []
    assert sorted(Path(url).name for url in figure.requests) == ["plotly.min.js", "r.html"]
    assert figure.page.locator(".plot .main-svg").count() >= 3
