"""Choosing a readout, loading one model, and everything that is refused before weights are loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from skillgraft.errors import InputError
from skillgraft.opening.source import Source
from skillgraft.readouts import READOUTS, choose_readout
from tests.readouts.making import DIGITS, GAPS, PAIRS, SENTIMENT, films, gaps, open_readouts, pairs, scored, task_of

Folders = Callable[[str], Path]
NO_PROMPTS = SENTIMENT.split("[prompt.masked]")[0]
MASKED_ONLY = SENTIMENT.split("[prompt.causal]")[0]


@pytest.mark.parametrize(
    ("model", "text", "expected"),
    [
        ("bert", SENTIMENT, "masked"),
        ("roberta", PAIRS, "masked"),
        ("bert", NO_PROMPTS, "linear"),
        ("bert", GAPS, "text-head"),
        ("sentence_encoder", SENTIMENT, "text-head"),
        ("sentence_encoder", GAPS, "text-head"),
        ("sentence_encoder", MASKED_ONLY, "linear"),
        ("gpt2", SENTIMENT, "causal"),
        ("llama", GAPS, "choice"),
        ("gpt2", MASKED_ONLY, "linear"),
        ("t5", SENTIMENT, "choice"),
        ("t5", GAPS, "choice"),
        ("clip", DIGITS, "text-head"),
        ("clip", DIGITS.split("[describe]")[0], "linear"),
        ("clip", SENTIMENT, "text-head"),
        ("vit", DIGITS, "linear"),
    ],
)
def test_auto(folders: Folders, model: str, text: str, expected: str) -> None:
    name, reason = choose_readout(folders(model), task_of(text))
    assert name == expected
    assert reason


def test_auto_gives_up_on_choices_without_words(folders: Folders) -> None:
    bare = GAPS.split("[prompt.causal]")[0]
    with pytest.raises(InputError, match=r"no readout fits .* \(BertForMaskedLM\) and the multiple-choice task 'gaps'"):
        choose_readout(folders("bert"), task_of(bare))


def test_a_gguf_file_is_causal_without_being_read(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"no GGUF at all")
    assert choose_readout(tmp_path / "model.gguf", task_of(SENTIMENT))[0] == "causal"
    assert choose_readout(tmp_path, task_of(GAPS))[0] == "choice"


def test_unknown_readout(folders: Folders) -> None:
    with pytest.raises(InputError, match=r"no readout 'maskd': did you mean 'masked'\? Known: auto, masked, causal"):
        open_readouts(folders("bert"), [task_of(SENTIMENT)], readout="maskd")


def test_readouts_of_two_kinds_share_a_model(folders: Folders) -> None:
    opened = open_readouts(folders("gpt2"), [task_of(GAPS), task_of(SENTIMENT)])
    assert opened.name == "choice+causal"
    assert [readout.settings["readout"] for readout in opened.readouts] == ["choice", "causal"]
    assert [readout.task.name for readout in opened.readouts] == ["gaps", "films"]
    assert scored(opened, gaps()).shape == (3, 4)
    assert scored(opened, films(), 1).shape == (6, 2)


def test_tasks_that_need_different_models(folders: Folders) -> None:
    plain = task_of(NO_PROMPTS.replace('name = "films"', 'name = "plain"'))
    with pytest.raises(
        InputError, match=r"need different models: films \(masked\), plain \(linear\); give one readout"
    ):
        open_readouts(folders("bert"), [task_of(SENTIMENT), plain])


def test_tasks_of_one_name(folders: Folders) -> None:
    """Results go by name: one of the two would be lost."""
    with pytest.raises(InputError, match="each name once, found films, films"):
        open_readouts(folders("bert"), [task_of(SENTIMENT), task_of(NO_PROMPTS)])


def test_no_task(folders: Folders) -> None:
    with pytest.raises(InputError, match="expected at least one task and each name once, found none"):
        open_readouts(folders("bert"), [])


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in a test with this must fail before weights are loaded."""

    def load(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(Source, "load", load)


@pytest.mark.usefixtures("no_weights")
class TestRefusedBeforeWeightsAreLoaded:
    def test_no_tokenizer(self, folders: Folders, tmp_path: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            shutil.copy(folders("bert") / name, tmp_path)
        with pytest.raises(InputError, match=rf"{tmp_path} has no tokenizer: looked for tokenizer.json, vocab.txt"):
            open_readouts(tmp_path, [task_of(SENTIMENT)])

    def test_an_empty_tokenizer(self, folders: Folders, tmp_path: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            shutil.copy(folders("bert") / name, tmp_path)
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
        with pytest.raises(InputError, match="has no tokenizer"):
            open_readouts(tmp_path, [task_of(SENTIMENT)])

    def test_no_image_processor(self, folders: Folders, tmp_path: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            shutil.copy(folders("vit") / name, tmp_path)
        with pytest.raises(InputError, match=r"no image processor: looked for preprocessor_config.json"):
            open_readouts(tmp_path, [task_of(DIGITS)])

    def test_pickled_weights(self, folders: Folders, tmp_path: Path) -> None:
        shutil.copytree(folders("bert"), tmp_path, dirs_exist_ok=True)
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
        with pytest.raises(InputError, match=r"pytorch_model.bin, a pickle.* convert it: python -c"):
            open_readouts(tmp_path, [task_of(SENTIMENT)])

    def test_words_of_several_tokens(self, folders: Folders) -> None:
        task = task_of(SENTIMENT.replace('"terrible"', '"terrible bad"', 1))
        with pytest.raises(InputError, match="'terrible bad' is 2 tokens here"):
            open_readouts(folders("bert"), [task])

    def test_a_template_that_does_not_fit(self, folders: Folders) -> None:
        with pytest.raises(InputError, match="the template alone takes 6 tokens, but max_length is 5"):
            open_readouts(folders("bert"), [task_of(SENTIMENT)], max_length=5)

    def test_more_tokens_than_the_model_reads(self, folders: Folders) -> None:
        with pytest.raises(InputError, match=r"max_length is 65, but .* reads at most 64 tokens"):
            open_readouts(folders("roberta"), [task_of(SENTIMENT)], max_length=65)

    @pytest.mark.parametrize("option", ["max_length", "pad_multiple"])
    def test_options_above_0(self, folders: Folders, option: str) -> None:
        with pytest.raises(InputError, match=f"{option} must be a whole number above 0; found 0"):
            open_readouts(folders("bert"), [task_of(SENTIMENT)], **{option: 0})

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"nowhere: there is no such model folder or .gguf file"):
            open_readouts(tmp_path / "nowhere", [task_of(SENTIMENT)])
        with pytest.raises(InputError, match=r"./nowhere: there is no such model folder"):
            open_readouts("./nowhere", [task_of(SENTIMENT)])

    def test_no_such_hub_name(self) -> None:
        with pytest.raises(
            InputError,
            match=r"nobody/nothing is not in the cache, and the hub cannot be reached: connect, or give a local folder",
        ):
            open_readouts("nobody/nothing", [task_of(SENTIMENT)])

    def test_no_config(self, folders: Folders, tmp_path: Path) -> None:
        shutil.copy(folders("bert") / "model.safetensors", tmp_path)
        with pytest.raises(InputError, match=r"has no config.json; expected a model folder"):
            open_readouts(tmp_path, [task_of(SENTIMENT)])

    def test_an_unknown_model_type(self, folders: Folders, tmp_path: Path) -> None:
        shutil.copytree(folders("bert"), tmp_path, dirs_exist_ok=True)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "berd", "architectures": ["BerdForMaskedLM"]}))
        with pytest.raises(InputError, match=r"the configuration cannot be read from this folder: .*berd"):
            open_readouts(tmp_path, [task_of(SENTIMENT)])

    def test_gguf_without_its_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("skillgraft.opening.source.importlib.util.find_spec", lambda _name: None)
        (tmp_path / "small.gguf").write_bytes(b"")
        with pytest.raises(InputError, match=r"small.gguf needs the package gguf: pip install 'skillgraft\[gguf\]'"):
            open_readouts(tmp_path, [task_of(SENTIMENT)])

    def test_two_gguf_files(self, tmp_path: Path) -> None:
        for name in ("a.gguf", "b.gguf"):
            (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match=r"has 2 .gguf files: a.gguf, b.gguf; name the one to load"):
            open_readouts(tmp_path, [task_of(SENTIMENT)])


def test_hub_names_and_folders_are_one_call(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders("bert").parent)
    opened = open_readouts(folders("bert").name, [task_of(SENTIMENT)])
    assert torch.equal(scored(opened, films()), scored(open_readouts(folders("bert"), [task_of(SENTIMENT)]), films()))


def test_a_model_without_language_model_head(folders: Folders) -> None:
    with pytest.raises(InputError, match=r"has no language-model head: cls.predictions.* use the linear or"):
        open_readouts(folders("sentence_encoder"), [task_of(SENTIMENT)], readout="masked")


def test_a_body_that_is_not_in_the_files(folders: Folders, tmp_path: Path) -> None:
    shutil.copytree(folders("bert"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    for name in ("masked", "linear", "text-head"):
        with pytest.raises(InputError, match=r"cannot be loaded as a Bert\w+: .*layer.2.attention.* not in its files"):
            open_readouts(tmp_path, [task_of(SENTIMENT)], readout=name)


def test_a_model_of_the_wrong_kind(folders: Folders) -> None:
    with pytest.raises(InputError, match="a vit model cannot be loaded with transformers' AutoModelForMaskedLM"):
        Source.of(folders("vit")).load("AutoModelForMaskedLM")


def test_float32_unless_asked(folders: Folders) -> None:
    task = task_of(SENTIMENT)
    assert open_readouts(folders("bert"), [task]).model.dtype == torch.float32
    half = open_readouts(folders("bert"), [task], dtype=torch.bfloat16)
    assert half.model.dtype == torch.bfloat16
    readout = half.readouts[0]
    assert readout.scores(half.model, readout.collate(readout.encode(films()))).dtype == torch.bfloat16


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_is_an_argument(folders: Folders, attention: str) -> None:
    opened = open_readouts(folders("bert"), [task_of(SENTIMENT)], attention=attention)
    assert opened.model.config._attn_implementation == attention
    torch.testing.assert_close(
        scored(opened, films()),
        scored(open_readouts(folders("bert"), [task_of(SENTIMENT)]), films()),
        atol=1e-5,
        rtol=1e-5,
    )


def test_transformers_is_as_loud_afterwards_as_before(folders: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    open_readouts(folders("bert"), [task_of(SENTIMENT)], readout="linear")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert "".join(capfd.readouterr()) == ""


def test_the_model_is_in_eval_mode(folders: Folders) -> None:
    assert not open_readouts(folders("bert"), [task_of(SENTIMENT)]).model.training


def test_every_readout_keeps_the_protocol(folders: Folders) -> None:
    homes = {"masked": "bert", "causal": "gpt2", "choice": "t5", "linear": "bert", "text-head": "sentence_encoder"}
    assert homes.keys() == READOUTS.keys() - {"prototypes", "completion"}  # of other rows, in files of their own
    for name, home in homes.items():
        (readout,) = open_readouts(folders(home), [task_of(SENTIMENT)], readout=name).readouts
        assert json.loads(json.dumps(readout.settings)) == readout.settings
        assert readout.settings["readout"] == name
        rows = readout.encode(films())
        batch = readout.collate(rows)
        assert all(isinstance(value, torch.Tensor) for value in batch.values())
        assert batch["labels"].tolist() == [0, 1, 0, 1, 0, 1]
        assert [row.label for row in rows] == [0, 1, 0, 1, 0, 1]
        assert batch["input_ids"].shape[1] == max(row.length for row in rows)
        assert readout.encode(films([])) == []


def test_padding_to_a_multiple(folders: Folders) -> None:
    opened = open_readouts(folders("bert"), [task_of(PAIRS)], pad_multiple=8, max_length=14)
    readout = opened.readouts[0]
    rows = readout.encode(pairs())
    widths = [readout.collate([row])["input_ids"].shape[1] for row in rows]
    assert [row.length for row in rows] == [11, 14, 8]
    assert widths == [14, 14, 8]  # never beyond max_length, which the model may not be able to read


def test_a_fields_own_limit_binds_below_max_length(folders: Folders) -> None:
    task = task_of(SENTIMENT.replace("{text} it was", "{text|limit:3} it was"))
    (readout,) = open_readouts(folders("bert"), [task]).readouts
    rows = readout.encode(films(["a b c d e f g", "a b c"]))
    assert [readout.text.tokenizer.decode(row.inputs["input_ids"]) for row in rows] == [
        "[CLS] a b c it was [MASK]. [SEP]"
    ] * 2


def test_a_decoder_without_special_tokens_reads_an_empty_text(folders: Folders) -> None:
    opened = open_readouts(folders("gpt2"), [task_of(NO_PROMPTS)])
    (row,) = opened.readouts[0].encode(films([""]))
    assert row.length == 1
    assert scored(opened, films(["", "fine"])).isfinite().all()


def test_no_code_that_comes_with_a_model_is_run(folders: Folders, tmp_path: Path) -> None:
    shutil.copytree(folders("bert"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    remote = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps({**config, **remote}))
    (tmp_path / "own.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(InputError, match="the configuration cannot be read"):
        open_readouts(tmp_path, [task_of(SENTIMENT)])
