"""The page in a real browser: side by side, sliders, two skills at once, files dropped, errors in words, keyboard, phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillgraft.files.graft_file import save
from tests.report.browsing import browser, need_browser

from .serving import Running, films, pets, running, skill, write_skills

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 400, "height": 860}
DROP = """([name, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], name));
  dispatchEvent(new DragEvent("dragover", { dataTransfer: data, bubbles: true, cancelable: true }));
  dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    need_browser()
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def labels(encoder_base: Path, tmp_path: Path) -> Iterator[Running]:
    grafts = {"films": films(encoder_base, 1), "other": films(encoder_base, 2), "pets": pets(encoder_base, 3)}
    with running(encoder_base, write_skills(tmp_path / "skills", grafts), page=True) as run:
        yield run


class Page:
    """The studio of a server, with everything its console says beside what the test expects."""

    def __init__(self, chromium: Any, run: Running, size: dict[str, int] = DESKTOP) -> None:
        self.page = chromium.new_context(viewport=size).new_page()
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", lambda line: line.type in ("error", "warning") and self.complaints.append(line.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda one: one.url.startswith(run.url) or self.elsewhere.append(one.url))
        self.page.goto(run.url)
        self.page.wait_for_selector("html[data-ready=true]")

    def answers(self) -> dict[str, Any]:
        """Title → what the card answers, once no card is busy."""
        self.page.wait_for_function("() => !document.querySelector('.answer.busy')")
        cards = self.page.query_selector_all(".answer")
        return {
            card.query_selector("h3").text_content(): json.loads(card.get_attribute("data-answer") or "null")
            for card in cards
        }

    def until(self, condition: str) -> None:
        self.page.wait_for_function(condition)


def test_base_and_skills_answer_side_by_side(chromium: Any, labels: Running) -> None:
    studio = Page(chromium, labels)
    answers = studio.answers()
    assert list(answers) == ["base (base)", "films", "other", "films+other"]
    assert len({json.dumps(each) for each in answers.values()}) == 4
    assert all(sum(each.values()) == pytest.approx(1) for each in answers.values())
    digests = [held.digest[:8] for held in labels.service.shelf.held.values()]
    feet = studio.page.locator(".answer .made").all_text_contents()
    assert feet == ["no graft", f"{digests[0]} × 1", f"{digests[1]} × 1", f"{digests[0]} × 1{digests[1]} × 1"]
    bars = studio.page.locator(".answer").nth(1).locator("b").all_text_contents()
    assert [bar.rpartition(" ")[2] for bar in bars] == ["%", "%"]
    assert (studio.complaints, studio.elsewhere) == ([], [])


def test_a_slider_changes_the_answer(chromium: Any, labels: Running) -> None:
    studio = Page(chromium, labels)
    before = studio.answers()
    slider = studio.page.locator("#scale-films")
    slider.focus()
    for _ in range(8):
        studio.page.keyboard.press("ArrowLeft")
    studio.until("() => document.querySelector('#scale-films + output').textContent === '0.60'")
    studio.until(
        "() => [...document.querySelectorAll('.answer h3')].some((each) => each.textContent === '0.6*films+other')"
    )
    after = studio.answers()
    assert after["films"] != before["films"]
    assert after["0.6*films+other"] != before["films+other"]
    assert (after["base (base)"], after["other"]) == (before["base (base)"], before["other"])
    assert studio.complaints == []


def test_another_question_is_asked(chromium: Any, labels: Running) -> None:
    studio = Page(chromium, labels)
    studio.page.locator("#skill-other").uncheck()
    studio.page.locator("#skill-pets").check()
    studio.page.locator("#task").select_option("pets")
    studio.until("() => document.querySelectorAll('.answer .bar').length === 12")
    assert all(set(each) == {"cat", "dog", "mouse"} for each in studio.answers().values())
    assert studio.page.locator("#question-label").text_content() == "Text, one line each: text_a, text_b"
    studio.page.locator("#question").fill("the cat\nthe dog")
    studio.page.wait_for_function("() => document.querySelector('#command').textContent.includes('the dog')")
    command = studio.page.locator("#command").text_content()
    assert '"input":{"text_a":"the cat","text_b":"the dog"}' in command
    assert studio.complaints == []


@pytest.mark.parametrize("how", ["dropped", "chosen"])
def test_a_file_is_held(chromium: Any, labels: Running, encoder_base: Path, tmp_path: Path, how: str) -> None:
    studio = Page(chromium, labels)
    file = tmp_path / "my new skill.safetensors"
    save(films(encoder_base, 9), file)
    if how == "dropped":
        studio.page.evaluate(DROP, [file.name, list(file.read_bytes())])
    else:
        studio.page.locator("#file").set_input_files(file)
    studio.page.wait_for_selector("#skill-my-new-skill:checked")
    studio.until("() => document.querySelectorAll('.answer').length === 5")
    assert "my-new-skill" in labels.service.shelf.held
    assert "films+other+my-new-skill" in studio.answers()
    assert studio.complaints == []


def test_errors_are_shown_in_words(chromium: Any, labels: Running, writer_base: Path, tmp_path: Path) -> None:
    studio = Page(chromium, labels)
    for name, data in (("evil<img src=x>", b"no graft"), ("alien", _bytes(skill(writer_base, 1), tmp_path))):
        studio.page.evaluate(DROP, [f"{name}.safetensors", list(data)])
        studio.page.wait_for_selector("#problem:not([hidden])")
        said = studio.page.locator("#problem p").text_content()
        assert said.startswith(f"{name}.safetensors is not held: ")
        assert said.count(".safetensors") == 1, said
        studio.page.locator("#problem button").click()
    assert studio.page.locator("img").count() == 0
    labels.service.shelf.held["films"].uses += 1  # it stays in the bank; the name goes
    labels.service.shelf.held.pop("films")
    studio.page.locator("#go").click()
    studio.page.wait_for_selector("#problem:not([hidden])")
    assert "no skill 'films' is held" in studio.page.locator("#problem p").text_content()
    refused = [line for line in studio.complaints if "422" not in line and "404" not in line]  # the browser's own lines
    assert refused == []


def _bytes(graft: Any, folder: Path) -> bytes:
    save(graft, folder / "alien.safetensors")
    return (folder / "alien.safetensors").read_bytes()


def test_the_keyboard_alone_suffices(chromium: Any, labels: Running) -> None:
    studio = Page(chromium, labels)
    page = studio.page

    def tab_to(selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{selector} cannot be reached")

    tab_to("#skill-pets")
    page.keyboard.press("Space")
    page.wait_for_selector("#skill-pets:checked")
    tab_to("#scale-pets")
    assert page.get_by_role("slider", name="Scale of pets").count() == 1
    page.keyboard.press("ArrowRight")
    tab_to("#file")
    tab_to("#question")
    page.keyboard.press("Control+A")
    page.keyboard.type("quick red mouse")
    page.keyboard.press("Control+Enter")
    tab_to("#task")
    tab_to("#go")
    page.keyboard.press("Enter")
    assert "films+other+1.05*pets" in studio.answers()
    assert studio.complaints == []


def test_it_fits_a_phone(chromium: Any, labels: Running) -> None:
    studio = Page(chromium, labels, PHONE)
    studio.answers()
    assert studio.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    small = studio.page.evaluate(
        """() => [...document.querySelectorAll("button, select, input[type=range]")]
            .filter((each) => each.offsetParent)
            .map((each) => each.getBoundingClientRect())
            .filter((box) => box.right > innerWidth || box.height < 14).length"""
    )
    assert small == 0
    assert studio.complaints == []


def test_texts_stream_in_side_by_side(chromium: Any, writer_base: Path, tmp_path: Path) -> None:
    skills = write_skills(tmp_path / "skills", {"bash": skill(writer_base, 1), "french": skill(writer_base, 2)})
    with running(writer_base, skills, page=True) as run:
        studio = Page(chromium, run)
        studio.page.locator("#tokens").fill("40")
        studio.page.locator("#go").click()
        studio.page.wait_for_function("() => !document.querySelector('.answer.busy')")
        titles = studio.page.locator(".answer h3").all_text_contents()
        assert titles == ["base (base)", "bash", "french", "bash+french"]
        assert studio.page.locator(".answer[aria-busy=true]").count() == 0
        texts = studio.page.locator(".answer .text").all_text_contents()
        assert len(set(texts)) == 4
        assert studio.complaints == []


def test_a_page_without_skills_says_what_to_do(chromium: Any, encoder_base: Path, tmp_path: Path) -> None:
    with running(encoder_base, write_skills(tmp_path / "skills", {}), page=True) as run:
        studio = Page(chromium, run)
        assert studio.page.locator("#no-skills").is_visible()
        assert "drop its file on the page" in studio.page.locator(".answer p").text_content()
        assert not studio.page.locator("#same").is_visible()
        file = tmp_path / "films.safetensors"
        save(films(encoder_base, 1), file)
        studio.page.locator("#file").set_input_files(file)
        studio.until("() => document.querySelectorAll('.answer .bar').length === 4")
        assert studio.page.locator("#same").is_visible()
        assert studio.complaints == []


def test_a_key_is_asked_for(chromium: Any, encoder_base: Path, tmp_path: Path) -> None:
    from skillgraft.serve.guard import Guard

    skills = write_skills(tmp_path / "skills", {"films": films(encoder_base, 1)})
    with running(encoder_base, skills, page=True, guard=Guard.of("127.0.0.1", key="0123456789abcdef")) as run:
        studio = Page(chromium, run)
        studio.page.locator("#key-text").fill("0123456789abcdef")
        studio.page.locator("#key button").click()
        studio.page.wait_for_selector("#skill-films:checked")
        assert "films" in studio.answers()


def test_there_is_a_page_for_everything_that_is_named(labels: Running) -> None:
    import httpx2 as httpx

    page = httpx.get(labels.url).text
    assert "https://" not in page
    for path in ("/studio/style.css", "/studio/script.js", "/studio/charts.js"):
        assert path in page or path == "/studio/charts.js"
        answer = httpx.get(labels.url + path)
        assert (answer.status_code, "charset=utf-8" in answer.headers["content-type"]) == (200, True)
