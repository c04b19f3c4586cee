"""Tokens that tuned appended: rows, tokenizer and template come on with a graft, and leave the base's files as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import (
    Data,
    Graft,
    apply,
    check,
    combine,
    diff,
    evaluate,
    extract,
    grafted,
    localize,
    remove,
)  # fmt: skip
from skillgraft.errors import HeadConflict, InputError, SkillgraftError, WrongBase
from skillgraft.folders.tokens import MOST_TOKENS, kept_as
from skillgraft.values.graft import stream_of
from skillgraft.values.tails import tail_name, tail_of, vocabulary_size
from tests.completing import CHAT, chatting, write_facts
from tests.model_folders import (
    EMBEDDING,
    FORMATS,
    QUERY,
    body,
    content,
    moved,
    same_weights,
    tensors_of,
    write_folder,
)  # fmt: skip
from tests.running import Run, runner

NEW = ("<|im_start|>", "<|im_end|>")
TEMPLATE = CHAT.replace("<s>", NEW[0]).replace("</s>", NEW[1])
LAYER = "model.layers.0.mlp.down_proj.weight"


def chat_tuned(
    folder: Path, base: Path, *, tied: bool, new: tuple[str, ...] = NEW, rows: int = 0, seed: int = 1
) -> Path:
    """What chat tuning makes of a base: new tokens with their rows, a template that uses them, another token that ends."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    assert bool(model.config.tie_word_embeddings) == tied
    tokenizer.add_special_tokens({"additional_special_tokens": list(new)})
    tokenizer.eos_token, tokenizer.chat_template = new[-1], TEMPLATE
    model.resize_token_embeddings(len(tokenizer) + rows, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[-len(new) - rows :].normal_()
        model.get_output_embeddings().weight[-len(new) - rows :].normal_()
        model.get_input_embeddings().weight[3] += 0.5
        model.model.layers[0].mlp.down_proj.weight[0] += 0.25
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def llama(folder: Path, *, tied: bool, dtype: str = "float32") -> Path:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chatting(folder / "made")
    model = AutoModelForCausalLM.from_pretrained(folder / "made")
    model.config.tie_word_embeddings = tied
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.to(getattr(torch, dtype)).save_pretrained(folder / "BASE")
    AutoTokenizer.from_pretrained(folder / "made").save_pretrained(folder / "BASE")
    return folder / "BASE"


@pytest.fixture(scope="module", params=[(True, "float32"), (False, "bfloat16")], ids=["tied", "untied-bf16"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    tied, dtype = request.param
    folder = tmp_path_factory.mktemp("appended")
    base = llama(folder, tied=tied, dtype=dtype)
    return base, chat_tuned(folder / "TUNED", base, tied=tied, rows=3)


def embeddings(pair: tuple[Path, Path]) -> list[str]:
    return [name for name in ("model.embed_tokens.weight", "lm_head.weight") if name in tensors_of(pair[0])]


def test_rows_travel_as_tails_and_the_rest_as_sites(pair: tuple[Path, Path]) -> None:
    base, tuned = pair
    graft, rows = extract(base, tuned), json.loads((base / "config.json").read_text())["vocab_size"]
    names = [tail_of(name) for name in graft.heads]
    assert {(tail.tensor, tail.first) for tail in names if tail} == {
        (name.removeprefix("model."), rows) for name in embeddings(pair)
    }
    assert all(head.shape[0] == 5 for head in graft.heads.values())
    assert vocabulary_size(graft.heads) == rows + 5 == json.loads((tuned / "config.json").read_text())["vocab_size"]
    assert [token["content"] for token in graft.info["chat"]["tokens"]] == list(NEW)
    assert graft.info["chat"]["roles"] == {"eos_token": NEW[-1]}
    # Rows that the base has are sites like any other.
    assert np.array_equal(graft.region.sites["embed_tokens.weight"] // graft.region.scope.shapes["embed_tokens.weight"][1],
                          np.full(len(graft.region.sites["embed_tokens.weight"]), 3))  # fmt: skip


def test_apply_gives_tuned_and_remove_the_bases_files(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, tuned = pair
    extract(base, tuned).save(tmp_path / "g.safetensors")
    graft = Graft.load(tmp_path / "g.safetensors")
    assert graft == extract(base, tuned)
    before = content(base)
    written = apply(base, graft, out=tmp_path / "on")
    assert set(written.whole) == {tail.tensor for name in graft.heads if (tail := tail_of(name))}
    assert same_weights(tmp_path / "on", tuned)
    model, tokenizer = (cls.from_pretrained(tmp_path / "on") for cls in (AutoModelForCausalLM, AutoTokenizer))
    assert len(model.get_input_embeddings().weight) == model.config.vocab_size
    theirs = AutoTokenizer.from_pretrained(tuned)
    said = f"{NEW[0]}user the cat is{NEW[1]}"
    assert tokenizer(said)["input_ids"] == theirs(said)["input_ids"]
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == (NEW[1], theirs.eos_token_id)
    turns = [{"role": "user", "content": "the cat"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == theirs.apply_chat_template(turns, tokenize=False)
    remove(tmp_path / "on", graft, out=tmp_path / "off")
    assert content(tmp_path / "off") == before == content(base)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("head", ["", "twin", "untied"])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("dense", [False, True])
def test_laws_of_appended_rows(tmp_path: Path, shards: int, head: str, dtype: str, dense: bool) -> None:
    """In one file or several, tied, tied and stored twice, or untied; whether few entries change or all."""
    tensors = body(dtype=FORMATS[dtype])
    if head:
        tensors["lm_head.weight"] = tensors[EMBEDDING] * (1 if head == "twin" else 2)
    longer = moved(tensors, *([] if dense else [QUERY]))
    longer["lm_head.weight"] = longer.get("lm_head.weight", tensors[EMBEDDING])
    if head == "twin":
        longer["lm_head.weight"] = longer[EMBEDDING]
    rows = np.ones((2, 4), FORMATS[dtype])
    longer = {n: np.concatenate([a, rows]) if n in (EMBEDDING, "lm_head.weight") else a for n, a in longer.items()}
    if not head:
        del longer["lm_head.weight"]
    base = write_folder(tmp_path / "base", tensors, config={"vocab_size": 11}, shards=shards)
    tuned = write_folder(tmp_path / "tuned", longer, config={"vocab_size": 13}, shards=shards)
    graft = extract(base, tuned)
    assert len(graft.heads) == (2 if head == "untied" else 1)
    apply(base, graft, out=tmp_path / "on")
    assert same_weights(tmp_path / "on", tuned)
    remove(tmp_path / "on", graft, out=tmp_path / "off")
    assert content(tmp_path / "off") == content(base)


def test_packed_grafts_have_tails_as_well(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Run = runner(tmp_path, monkeypatch, capsys)
    assert run("extract", *pair, "--pack", "-o", "p.safetensors").code == 0
    apply(pair[0], tmp_path / "p.safetensors", out=tmp_path / "on")
    assert same_weights(tmp_path / "on", pair[1])
    remove(tmp_path / "on", tmp_path / "p.safetensors", out=tmp_path / "off")
    assert content(tmp_path / "off") == content(pair[0])


@pytest.mark.parametrize("to", ["lora", "patch", "supertuning", "gguf-lora"])
def test_no_adapter_carries_new_rows(
    pair: tuple[Path, Path],
    tmp_path: Path,
    to: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run: Run = runner(tmp_path, monkeypatch, capsys)
    extract(*pair).save(tmp_path / "g.safetensors")
    ended = run("export", "g.safetensors", "--to", to, "--base", pair[0], "-o", "out")
    assert ended.code != 0
    assert "cannot carry: use --to checkpoint" in " ".join(ended.err.split())


def test_other_grafts_come_and_go_beside_the_new_rows(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = pair
    tails = extract(base, tuned, entries=1)
    whole = extract(base, tuned).without_heads().with_info(chat=None, config=None)
    rest = whole.outside(tails.region)
    apply(base, tails, out=tmp_path / "tails")
    assert check(tmp_path / "tails", rest).fits  # it has sites in the embeddings, which are longer now
    apply(tmp_path / "tails", rest, out=tmp_path / "both")
    assert same_weights(tmp_path / "both", tuned)
    remove(tmp_path / "both", tails, out=tmp_path / "rest")
    assert not (tmp_path / "rest" / kept_as("tokenizer.json")).exists()
    assert (tmp_path / "rest" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    remove(tmp_path / "rest", rest, out=tmp_path / "off")
    assert content(tmp_path / "off") == content(base)
    apply(base, tails, rest, out=tmp_path / "together")
    assert same_weights(tmp_path / "together", tuned)
    remove(tmp_path / "together", rest, out=tmp_path / "one")
    remove(tmp_path / "one", tails, out=tmp_path / "none")
    assert content(tmp_path / "none") == content(base)


def test_tails_are_never_added_up(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = pair
    graft = extract(base, tuned)
    other = chat_tuned(tmp_path / "OTHER", base, tied=len(embeddings(pair)) == 1, rows=3, seed=2)
    second = extract(base, other)
    with pytest.raises(HeadConflict, match=r"embed_tokens\.weight\["):
        graft + second
    chosen = combine([graft, second], head=graft)
    assert chosen.heads.keys() == graft.heads.keys()
    assert all(np.array_equal(chosen.heads[name], graft.heads[name]) for name in graft.heads)
    assert (0.5 * graft).heads.keys() == graft.heads.keys()
    with pytest.raises(HeadConflict):
        apply(base, graft, second, out=tmp_path / "on")
    apply(base, graft, out=tmp_path / "first")
    with pytest.raises(SkillgraftError):
        apply(tmp_path / "first", second, out=tmp_path / "on")
    plain = graft.without_heads().with_info(chat=None, config=None)
    assert combine([graft, plain]).info["chat"] == graft.info["chat"]


def test_strict_names_every_change(pair: tuple[Path, Path]) -> None:
    base, tuned = pair
    graft = extract(base, tuned)
    assert check(base, graft).fits
    report = check(base, graft, strict=True)
    assert not report.fits
    assert set(report.reach.appended) == graft.heads.keys()
    assert report.reach.config["vocab_size"] == vocabulary_size(graft.heads)
    assert {"template", "tokens", "roles"} <= set(report.reach.chat)
    assert "appends rows: embed_tokens.weight[" in report.problem
    assert set(graft.heads) <= set(diff(base, tuned).added)


def test_inspect_says_it_in_plain_words(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Run = runner(tmp_path, monkeypatch, capsys)
    graft = extract(*pair)
    graft.save(tmp_path / "g.safetensors")
    said = " ".join(run("inspect", "g.safetensors").out.split())
    first = next(tail.first for name in graft.heads if (tail := tail_of(name)))
    assert f"new tokens, 2: '<|im_start|>' ({first}), '<|im_end|>' ({first + 1})" in said
    assert "tokenizer: eos_token '<|im_end|>'" in said
    assert f"would append rows: 5 to embed_tokens.weight, after row {first - 1}" in said
    assert list(stream_of(tmp_path / "g.safetensors").heads) == sorted(graft.heads)
    assert "a token that the base has" in said


def test_a_loaded_model_has_no_room_for_new_rows(pair: tuple[Path, Path]) -> None:
    from transformers import AutoModelForCausalLM

    base, tuned = pair
    graft, model = extract(base, tuned), AutoModelForCausalLM.from_pretrained(base)
    with pytest.raises(InputError, match=r"appends rows .*no room: write a folder with `skillgraft apply`"):
        grafted(model, graft).__enter__()
    said = r"appended rows to embed_tokens.*ask a base that has them"
    with pytest.raises(InputError, match=said):
        localize(base, tuned, match="sst2", density=0.01, method="movement")
    with pytest.raises(InputError, match=said):
        evaluate(base, ["sst2"], tuned=[tuned])


def test_a_base_with_the_new_rows_is_searched_and_the_skill_goes_on_either(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """What the refusal says to do."""
    base, tuned = pair
    apply(base, extract(base, tuned, entries=1), out=tmp_path / "WITH-ROWS")
    task = write_facts(tmp_path)
    asked = {"task": task, "density": 0.01, "method": "movement", "data": Data(train_rows=12, validation_rows=4)}
    found = localize(tmp_path / "WITH-ROWS", tuned, **asked).graft
    assert not found.heads
    models = evaluate(tmp_path / "WITH-ROWS", [task], tuned=[tuned], grafts={"g": found}, data=asked["data"])["facts"]
    assert set(models) == {"base", "TUNED", "g"}
    assert check(base, found).fits
    assert check(tmp_path / "WITH-ROWS", found).fits


def rewritten(path: Path, change: Mapping[str, Any]) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, **change}))


def changed_tokens(path: Path, change: Any) -> None:
    found = json.loads(path.read_text())
    found["added_tokens"] = change(found["added_tokens"])
    path.write_text(json.dumps(found))


@pytest.fixture
def copies(pair: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    import shutil

    return tuple(Path(shutil.copytree(each, tmp_path / each.name)) for each in pair)  # type: ignore[return-value]


def test_a_changed_vocabulary_is_refused_and_both_are_named(copies: tuple[Path, Path]) -> None:
    base, tuned = copies
    changed_tokens(tuned / "tokenizer.json", lambda tokens: [{**t, "content": t["content"] + "!"} for t in tokens])
    with pytest.raises(InputError, match=r"the tokenizers differ: .*BASE.*TUNED"):
        extract(base, tuned)


def test_a_token_under_a_number_of_the_bases_is_refused(copies: tuple[Path, Path]) -> None:
    base, tuned = copies
    changed_tokens(tuned / "tokenizer.json", lambda tokens: [*tokens[:-1], {**tokens[-1], "id": 4}])
    with pytest.raises(InputError, match="the tokenizers differ"):
        extract(base, tuned)


def test_a_size_that_the_config_does_not_say_is_refused(copies: tuple[Path, Path]) -> None:
    base, tuned = copies
    rewritten(tuned / "config.json", {"vocab_size": 999})
    with pytest.raises(InputError, match="the embeddings' length changed"):
        extract(base, tuned)


def test_tokens_without_new_rows_travel_too(copies: tuple[Path, Path], tmp_path: Path) -> None:
    """Bases whose embeddings are longer than their vocabulary have room."""
    base, tuned = copies
    graft = extract(base, tuned)
    found = json.loads((base / "tokenizer.json").read_text())
    word, last = max(found["model"]["vocab"].items(), key=lambda item: item[1])
    del found["model"]["vocab"][word]
    (base / "tokenizer.json").write_text(json.dumps(found))
    token = {"id": last, "content": "<new>", "special": True}
    few = graft.without_heads().with_info(chat={"tokens": [token]}, config=None)
    before = content(base)
    apply(base, few, out=tmp_path / "on")
    assert json.loads((tmp_path / "on" / "tokenizer.json").read_text())["added_tokens"][-1] == token
    remove(tmp_path / "on", few, out=tmp_path / "off")
    assert content(tmp_path / "off") == before


def tail_changed(graft: Graft, **change: Any) -> Graft:
    from dataclasses import replace

    return replace(graft, heads={tail_name(change.get("name", tail.tensor), change.get("first", tail.first)):
                                 change.get("rows", lambda rows: rows)(rows)
                                 for name, rows in graft.heads.items() if (tail := tail_of(name))})  # fmt: skip


HOSTILE = {
    "too narrow": {"rows": lambda rows: rows[:, :-1]},
    "one dimension": {"rows": lambda rows: rows.reshape(-1)},
    "none": {"rows": lambda rows: rows[:0]},
    "another format": {"rows": lambda rows: rows.astype(np.float64)},
    "another beginning": {"first": 5},
    "in a layer": {"name": "layers.0.mlp.down_proj.weight"},
    "no embedding": {"name": "norm.weight"},
    "no such tensor": {"name": "other_embeddings.weight"},
    "no name": {"name": "../embed_tokens"},
}


@pytest.mark.parametrize("how", HOSTILE)
def test_rows_that_do_not_fit_are_refused(pair: tuple[Path, Path], tmp_path: Path, how: str) -> None:
    bad = tail_changed(extract(*pair), **HOSTILE[how])
    assert not check(pair[0], bad).fits
    with pytest.raises((InputError, WrongBase)):
        apply(pair[0], bad, out=tmp_path / "on")
    assert not (tmp_path / "on").exists()


TOKEN = {"id": 30, "content": "<x>"}


@pytest.mark.parametrize(
    "chat",
    [
        {"tokens": {}},
        {"tokens": [TOKEN] * (MOST_TOKENS + 1)},
        {"tokens": [{**TOKEN, "id": -1}]},
        {"tokens": [{**TOKEN, "id": True}]},
        {"tokens": [{**TOKEN, "content": ""}]},
        {"tokens": [{**TOKEN, "content": "x" * 1001}]},
        {"tokens": [{**TOKEN, "normalizer": {}}]},
        {"tokens": [{**TOKEN, "special": "yes"}]},
        {"tokens": [TOKEN, TOKEN]},
        {"tokens": [{**TOKEN, "id": 0}]},
        {"tokens": [{**TOKEN, "content": "cat"}]},
        {"tokens": [{**TOKEN, "id": 2_000_000}]},
        {"roles": {"sep_token": "x"}},
        {"roles": {"eos_token": {"content": "x"}}},
        {"roles": ["eos_token"]},
    ],
    ids=lambda chat: json.dumps(chat)[:60],
)
def test_tokens_that_do_not_fit_are_refused(pair: tuple[Path, Path], tmp_path: Path, chat: dict[str, Any]) -> None:
    bad = extract(*pair).with_info(chat=chat)
    assert not check(pair[0], bad).fits
    with pytest.raises(SkillgraftError):
        apply(pair[0], bad, out=tmp_path / "on")
    assert not (tmp_path / "on").exists()


@pytest.mark.parametrize("size", [1, 10**6, -3, "8"])
def test_a_vocabulary_size_that_disagrees_is_refused(pair: tuple[Path, Path], size: Any) -> None:
    graft = extract(*pair)
    for bad in (graft, graft.without_heads().with_info(chat=None)):
        report = check(pair[0], bad.with_info(config={"vocab_size": size}))
        assert not report.fits
        assert "vocab_size" in report.problem


def test_every_tensor_with_a_row_for_each_token_grows(pair: tuple[Path, Path]) -> None:
    from dataclasses import replace

    if len(embeddings(pair)) < 2:
        pytest.skip("tied")
    graft = extract(*pair)
    name = next(name for name in graft.heads if name.startswith("lm_head"))
    short = replace(graft, heads={n: rows for n, rows in graft.heads.items() if n != name})
    assert "none to lm_head.weight" in check(pair[0], short).problem
    longer = replace(graft, heads={**graft.heads, name: np.concatenate([graft.heads[name]] * 2)})
    assert "a vocabulary has one size" in check(pair[0], longer.with_info(config=None)).problem


def test_a_file_under_which_the_bases_tokenizer_would_wait_is_refused(
    copies: tuple[Path, Path], tmp_path: Path
) -> None:
    base, tuned = copies
    graft = extract(base, tuned)
    (base / kept_as("tokenizer.json")).write_text("{}")
    with pytest.raises(InputError, match=r"has tokenizer\.base\.json"):
        apply(base, graft, out=tmp_path / "on")
    assert not (tmp_path / "on").exists()
