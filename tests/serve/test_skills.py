"""Skills are asked, come, change and go while the server runs; what is under way ends with the skill it began with."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import torch

from skillgraft.files.graft_file import load, save
from skillgraft.live.grafted import grafted

from .serving import Running, client, films, pets, running, skill, write_skills

TEXTS = ["the film was fine", "dull", "quick red mouse"]


def post(run: Running, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{run.url}/v1/{path}", json=body, timeout=30)


def until(true: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("model", ["films", "other-films", "films+0.5*other-films", "-1*films"])
def test_labels_are_those_of_the_grafted_model(labeller: Running, model: str) -> None:
    answer = post(labeller, "classify", model=model, input=TEXTS).json()
    question = labeller.service.shelf.held["films"].question
    graft = None
    for made in answer["skills"]:
        term = load(labeller.folder.path / f"{made['name']}.safetensors")
        assert term.digest == made["digest"]
        graft = made["scale"] * term if graft is None else graft + made["scale"] * term
    expected = _alone(labeller, graft, question)
    for row, scores in zip(answer["data"], expected, strict=True):
        assert list(row["probabilities"].values()) == pytest.approx(scores, abs=1e-5)
        assert row["label"] == question.labels[max(range(2), key=lambda label: scores[label])]


def _alone(run: Running, graft: Any, question: Any) -> list[list[float]]:
    """Each text by itself on the base with the graft, on the model's thread while nothing else runs."""

    def ask() -> list[list[float]]:
        with torch.no_grad(), grafted(run.service.model, graft) as model:
            rows = [question.encode(text) for text in TEXTS]
            scores = [question.readout.scores(model, question.readout.collate([row]))[0] for row in rows]
            return [torch.softmax(each.double(), -1).tolist() for each in scores]

    return list(run.service.engine.run(ask).result(30))


def test_the_base_answers_a_skills_question_when_asked_to(labeller: Running) -> None:
    answer = post(labeller, "classify", model="base", task="films", input="the film").json()
    assert (answer["skills"], set(answer["data"][0]["probabilities"])) == ([], {"bad", "good"})
    refused = post(labeller, "classify", model="base", input="the film")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_classifier")


def test_a_row_of_several_fields(labeller: Running) -> None:
    answer = post(labeller, "classify", model="pets", input={"text_a": "quick", "text_b": "mouse"})
    assert set(answer.json()["data"][0]["probabilities"]) == {"cat", "dog", "mouse"}
    assert "text_a, text_b" in post(labeller, "classify", model="pets", input="quick").json()["error"]["message"]
    wrong = post(labeller, "classify", model="pets", input={"text_a": "x", "text": "y"})
    assert wrong.status_code == 400


def test_skills_of_different_questions_need_a_task(labeller: Running) -> None:
    refused = post(labeller, "classify", model="films+pets", input="the")
    assert refused.json()["error"]["code"] == "ambiguous_task"
    answer = post(labeller, "classify", model="films+pets", task="films", input="the")
    assert set(answer.json()["data"][0]["probabilities"]) == {"bad", "good"}


@pytest.fixture
def fresh(encoder_base: Path, tmp_path: Path) -> Iterator[Running]:
    skills = write_skills(tmp_path / "skills", {"films": films(encoder_base, 1)})
    with running(encoder_base, skills) as run:
        yield run


def put(run: Running, name: str, data: bytes) -> httpx.Response:
    return httpx.put(f"{run.url}/v1/skills/{name}", content=data, timeout=30)


def content(graft: Any, folder: Path) -> bytes:
    save(graft, folder / "upload.safetensors", overwrite=True)
    return (folder / "upload.safetensors").read_bytes()


def test_skills_are_put_replaced_and_deleted(fresh: Running, encoder_base: Path, tmp_path: Path) -> None:
    first, second = films(encoder_base, 5), films(encoder_base, 6)
    assert put(fresh, "new", content(first, tmp_path)).status_code == 201
    assert post(fresh, "classify", model="new", input="the").json()["skills"][0]["digest"] == first.digest
    assert put(fresh, "new", content(second, tmp_path)).status_code == 200
    assert post(fresh, "classify", model="new", input="the").json()["skills"][0]["digest"] == second.digest
    assert httpx.delete(f"{fresh.url}/v1/skills/new").json()["deleted"]
    assert post(fresh, "classify", model="new", input="the").status_code == 404
    assert httpx.delete(f"{fresh.url}/v1/skills/new").status_code == 404


def test_a_graft_that_does_not_fit_is_refused_and_the_others_stay(
    fresh: Running, writer_base: Path, tmp_path: Path
) -> None:
    for data, word in ((content(skill(writer_base, 1), tmp_path), ""), (b"no graft", "new.safetensors")):
        refused = put(fresh, "new", data)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "graft_refused")
        assert word in refused.json()["error"]["message"]
        assert "/tmp" not in refused.json()["error"]["message"]
    for name, status in (("base", 409), ("a%20b", 400), ("..%2Fa", 404)):
        assert put(fresh, name, b"x").status_code in (status, 422 if name == "base" else status)
    assert [held["id"] for held in httpx.get(f"{fresh.url}/v1/skills").json()["skills"]] == ["films"]
    assert post(fresh, "classify", model="films", input="the").status_code == 200


def test_the_folder_is_watched(fresh: Running, encoder_base: Path) -> None:
    folder, shelf = fresh.folder.path, fresh.service.shelf
    write_skills(folder, {"late": films(encoder_base, 7)})
    (folder / "broken.safetensors").write_bytes(b"no graft")
    (folder / "bad name.safetensors").write_bytes(b"")
    until(lambda: "late" in shelf.held and len(fresh.folder.refused) == 2)
    found = httpx.get(f"{fresh.url}/v1/skills").json()
    assert {each["file"] for each in found["refused"]} == {"broken.safetensors", "bad name.safetensors"}
    assert not any(str(folder) in each["why"] for each in found["refused"])
    write_skills(folder, {"broken": pets(encoder_base, 8)})
    (folder / "late.safetensors").unlink()
    until(lambda: "broken" in shelf.held and "late" not in shelf.held)
    assert "films" in shelf.held


def test_a_request_ends_with_the_skill_it_began_with(writer_base: Path, tmp_path: Path) -> None:
    """A skill is replaced and deleted while its text is written: the text is that of the first graft, to the end."""
    first, second = skill(writer_base, 1), skill(writer_base, 2)
    with running(writer_base, write_skills(tmp_path / "skills", {"s": first})) as run:
        settings = {"model": "s", "prompt": "the cat", "max_tokens": 120, "temperature": 0}
        ask = client(run)
        whole = ask.completions.create(**settings).choices[0].text
        stream = ask.completions.create(**settings, stream=True)
        chunks = [next(stream)]
        assert put(run, "s", content(second, tmp_path)).status_code == 200
        other = ask.completions.create(**settings)
        httpx.delete(f"{run.url}/v1/skills/s")
        chunks += stream
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole != other.choices[0].text
        assert {chunk.skills[0]["digest"] for chunk in chunks} == {first.digest}
        assert other.skills[0]["digest"] == second.digest
        bank = run.service.shelf.bank
        until(lambda: not bank.names)


def test_a_client_that_goes_away_frees_its_row(writer: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = writer.service.engine
    write = engine._write

    def slowly() -> None:  # so that a text is still being written when its reader goes
        time.sleep(0.02)
        write()

    monkeypatch.setattr(engine, "_write", slowly)
    with httpx.stream(
        "POST", f"{writer.url}/v1/completions",
        json={"model": "bash", "prompt": "the", "max_tokens": 240, "stream": True}, timeout=30,
    ) as answer:  # fmt: skip
        next(answer.iter_lines())
        assert len(engine._writing) == 1
    until(lambda: not engine._writing)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{writer.url}/v1/completions",
            json={"model": "bash", "prompt": "the", "max_tokens": 240, "n": 8},
            timeout=0.1,
        )
    until(lambda: not engine._writing and not engine._waiting)
    assert all(held.uses == 0 for held in writer.service.shelf.held.values())


def test_requests_share_batches(writer: Running) -> None:
    """Texts that are asked for one after the other are written side by side."""
    answers: list[Any] = []

    def ask(model: str) -> None:
        answers.append(client(writer).completions.create(model=model, prompt="the", max_tokens=100, temperature=0))

    threads = [threading.Thread(target=ask, args=(model,)) for model in ("base", "bash", "french", "bash+french") * 2]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, len(writer.service.engine._writing))
        time.sleep(0.002)
    assert most > 2
    by_model: dict[str, set[str]] = {}
    for answer in answers:
        by_model.setdefault(answer.model, set()).add(answer.choices[0].text)
    assert {model: len(texts) for model, texts in by_model.items()} == dict.fromkeys(
        ("base", "bash", "french", "bash+french"), 1
    )
    assert len(set.union(*by_model.values())) == 4


def test_metrics_count_what_happened(labeller: Running) -> None:
    post(labeller, "classify", model="films", input=TEXTS)
    post(labeller, "classify", model="nobody", input=TEXTS)
    httpx.get(f"{labeller.url}/v1/models/x/../../secret")
    lines = httpx.get(f"{labeller.url}/metrics").text.splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert values['skillgraft_requests_total{path="/v1/classify",status="200"}'] >= 1
    assert values['skillgraft_requests_total{path="/v1/classify",status="404"}'] >= 1
    assert values['skillgraft_batch_rows_count{kind="read"}'] >= 1
    assert values["skillgraft_skills"] == 3
    assert json.dumps(sorted(values)).count("secret") == 0
