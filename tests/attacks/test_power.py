"""Metadata has no power: what a graft replaces, adds, takes away, sets and renames is a closed list, proved before any write."""

from __future__ import annotations

import json

import numpy as np
import pytest

from skillgraft.errors import InputError, SkillgraftError
from skillgraft.folders import apply as folders_apply
from skillgraft.folders.apply import apply, check, remove
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.folders.reach import refuse_what_cannot_be_undone
from skillgraft.values import permitted
from tests.attacks.hostile import graft_of_nothing, with_power
from tests.model_folders import DENSE, EMBEDDING, QUERY, body, content, moved, numbers, write_folder, write_pair


def refused(base, graft, match, out):
    """Neither check nor apply lets it through, and nothing is written."""
    before = content(base)
    report = check(base, Named(graft, "g"))
    assert not report.fits
    with pytest.raises(InputError, match=match) as error:
        apply(base, Named(graft, "g"), out=out)
    assert report.problem == str(error.value)
    assert not out.exists()
    assert content(base) == before


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        (QUERY, (4, 4), "lies in a layer"),
        (EMBEDDING, (11, 4), "is an embedding"),
        ("embeddings.LayerNorm.weight", (4,), "is an embedding"),
        ("encoder.layer.7.output.dense.weight", (4, 4), "lies in a layer"),
        ("encoder.layer.0.classifier.weight", (2, 4), "lies in a layer"),
        ("embeddings.pooler.weight", (2, 4), "is an embedding"),
        (f"bert.{QUERY}", (4, 4), "lies in a layer"),
        ("norm.weight", (4,), "is no head"),
        ("classifier\n.weight", (2, 4), "is no name of a tensor"),
        ("../classifier.weight", (2, 4), "is no name of a tensor"),
        ("classifier." + "x" * 300, (2, 4), "is no name of a tensor"),
    ],
)
def test_a_body_tensor_is_never_replaced_or_added(prefix, name, shape, why, tmp_path):
    base = write_folder(tmp_path / "base", body(prefix=prefix, **{f"{prefix}norm__weight": (4,)}))
    refused(base, graft_of_nothing({name: numbers(shape, seed=9)}), f"whole, which {why}", tmp_path / "on")


@pytest.mark.parametrize("name", [QUERY, EMBEDDING, "norm.weight", "embeddings.LayerNorm.weight"])
def test_a_body_tensor_is_never_taken_away(name, tmp_path):
    base = write_folder(tmp_path / "base", body(norm__weight=(4,)))
    refused(base, graft_of_nothing(removed=[name]), "would take away", tmp_path / "on")


def test_whole_numbers_do_not_stand_in_for_weights(tmp_path):
    base = write_folder(tmp_path / "base", body())
    refused(base, graft_of_nothing({QUERY: np.zeros((4, 4), np.int64)}), "lies in a layer", tmp_path / "on")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"auto_map": {"AutoModel": "evil--x.Y"}}, "not among the keys"),
        ({"_name_or_path": "../../etc"}, "not among the keys"),
        ({"tokenizer_class": "Evil"}, "not among the keys"),
        ({"rms_norm_eps": 1.0}, "not among the keys"),
        ({"vocab_size": 5}, "must be what its new rows make: it brings none"),
        ({"architectures": ["a b"]}, "list of class names"),
        ({"architectures": "BertModel"}, "list of class names"),
        ({"pad_token_id": -1}, "a token's number"),
        ({"pad_token_id": "0"}, "a token's number"),
        ({"tie_word_embeddings": 1}, "true or false"),
        ({"problem_type": "x"}, "one of None, regression"),
        ({"id2label": {"zero": "a"}}, "class numbers with their labels"),
        ({"id2label": {"0": 5}}, "class numbers with their labels"),
        ({"id2label": [1]}, "class numbers with their labels"),
    ],
)
def test_config_keys_are_a_closed_list(config, why, tmp_path):
    base = write_folder(tmp_path / "base", body())
    refused(base, graft_of_nothing(config=config), rf"in config\.json, which .*{why}", tmp_path / "on")


ROWS = np.ones((2, 4), np.float32)
VOCABULARY = {"vocab_size": 11}


@pytest.mark.parametrize(
    ("name", "rows", "why"),
    [
        (f"{EMBEDDING}[11:]", ROWS[:, :3], r"the rows have \[2, 3\]"),
        (f"{EMBEDDING}[11:]", ROWS[0], r"the rows have \[4\]"),
        (f"{EMBEDDING}[11:]", ROWS.astype(np.float64), "the rows hold float64"),
        (f"{EMBEDDING}[11:]", ROWS.astype(np.int64), "the rows hold int64"),
        (f"{EMBEDDING}[11:]", ROWS[:0], r"the rows have \[0, 4\]"),
        (f"{EMBEDDING}[5:]", ROWS, "has 11 rows"),
        (f"{QUERY}[4:]", ROWS, "lies in a layer"),
        ("embeddings.LayerNorm.weight[4:]", ROWS[0], "has 4 rows, while config.json"),
        ("classifier.weight[2:]", ROWS, "neither an embedding nor the LM head"),
        ("other_embeddings.weight[11:]", ROWS, "does not have"),
        (f"../{EMBEDDING}[11:]", ROWS, "is no name of a tensor"),
        (f"{EMBEDDING}[11:][13:]", ROWS, "is no name of a tensor"),
        (f"{EMBEDDING}[0:]", ROWS, "is no name of a tensor"),
        (f"{EMBEDDING}[11:12]", ROWS, "is no name of a tensor"),
    ],
)
def test_rows_are_appended_to_embeddings_alone_and_as_they_are(name, rows, why, tmp_path):
    base = write_folder(tmp_path / "base", body(), config=VOCABULARY)
    refused(base, graft_of_nothing({name: rows}), why, tmp_path / "on")


@pytest.mark.parametrize("first", [13, 14, 900])
def test_a_ledger_that_lies_about_rows_is_refused(first, tmp_path):
    base = write_folder(tmp_path / "base", body(), config=VOCABULARY)
    graft = Named(graft_of_nothing({f"{EMBEDDING}[11:]": ROWS}), "g")
    apply(base, graft, out=tmp_path / "on")
    ledger = tmp_path / "on" / "skillgraft.json"
    ledger.write_text(ledger.read_text().replace("[11:]", f"[{first}:]"))
    with pytest.raises(SkillgraftError):
        remove(tmp_path / "on", graft, out=tmp_path / "off")
    assert not (tmp_path / "off").exists()


@pytest.mark.parametrize("prefix", ["bert", "1.", "lm_head.", "embeddings.", "encoder.layer.0.", ".", "..", "a..b.", "x\n.",
                                    "classifier.", "é.", "a." * 60_000, "model.embed_tokens.", "bert-x."])  # fmt: skip
def test_a_prefix_of_unknown_form_is_refused(prefix, tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body(classifier__weight=(2, 4))))
    graft = with_power(extract(base, tuned), prefix=prefix)
    refused(base, graft, "would begin the names of the body|could not be taken off again", tmp_path / "on")


@pytest.mark.parametrize("prefix", ["bert.", "base_model.model."])
def test_a_prefix_of_known_form_comes_off_again(prefix, tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body(classifier__weight=(2, 4))))
    graft = Named(with_power(extract(base, tuned), prefix=prefix), "g")
    apply(base, graft, out=tmp_path / "on")
    remove(tmp_path / "on", graft, out=tmp_path / "off")
    assert content(tmp_path / "off") == content(base)


def test_two_tensors_never_get_one_name(tmp_path):
    """A head that is called as the body's tensor will be called under the graft's own prefix: a key twice in the header."""
    base, tuned = write_pair(tmp_path, body(score__weight=(2, 4)), moved(body(score__weight=(2, 4))))
    graft = with_power(
        extract(base, tuned).without_heads(),
        {"bert.pooler.dense.weight": numbers((4, 4), seed=2), "pooler.dense.weight": numbers((4, 4), seed=3)},
        prefix="bert.",
        body_heads=["pooler.dense.weight"],
    )
    refused(base, graft, "one name", tmp_path / "on")


@pytest.mark.parametrize(
    ("prefix", "added", "why"),
    [
        ("bert.", [f"bert.{QUERY}"], "two tensors one name"),
        ("bert.", ["bert.classifier.weight"], "could not be taken off again"),
    ],
)
def test_names_are_proved_to_come_off_before_anything_is_written(prefix, added, why, tmp_path):
    source = Checkpoint.open(write_folder(tmp_path / "base", body(classifier__weight=(2, 4))))
    asked = {"prefix": prefix, "dropped": frozenset(), "file": "g"}
    refuse_what_cannot_be_undone(source, added=["v_head.weight"], **asked)
    with pytest.raises(InputError, match=why):
        refuse_what_cannot_be_undone(source, added=added, **asked)


def test_what_was_written_is_read_before_it_gets_its_name(tmp_path, monkeypatch):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    graft, real = Named(extract(base, tuned), "g"), folders_apply.copy_edited

    def damaged(source, target, *rest, **more):
        copied = real(source, target, *rest, **more)
        file = target / "model.safetensors"
        file.write_bytes(file.read_bytes().replace(b"dtype", b"dtypf", 1))
        return copied

    monkeypatch.setattr(folders_apply, "copy_edited", damaged)
    with pytest.raises(SkillgraftError):
        apply(base, graft, out=tmp_path / "on")
    assert not (tmp_path / "on").exists()


def test_check_and_apply_name_what_changes_whole(tmp_path):
    base = write_folder(tmp_path / "base", body(prefix="bert.", pooler__weight=(4, 4), cls__bias=(3,)))
    tuned = moved(body(prefix="bert.", pooler__weight=(4, 4)))
    tuned |= {"v_head.weight": numbers((1, 4), seed=5)}
    graft = extract(base, write_folder(tmp_path / "tuned", tuned, config={"pad_token_id": 3}))
    report = check(base, Named(graft, "g"))
    assert report.fits
    assert (report.reach.replaced, report.reach.added, report.reach.removed) == (
        ("pooler.weight",), ("v_head.weight",), ("cls.bias",),
    )  # fmt: skip
    assert dict(report.reach.config) == {"pad_token_id": 3}
    strict = check(base, Named(graft, "g"), strict=True)
    assert not strict.fits
    assert strict.problem == (
        "g changes more than its sites: replaces whole: pooler.weight; adds whole: v_head.weight; takes away whole: cls.bias; "
        "sets in config.json: pad_token_id"
    )
    assert check(
        base, Named(graft.without_heads().with_info(config=None, removed=None, prefix=None), "g"), strict=True
    ).fits


@pytest.mark.parametrize(
    ("base", "tuned", "key"),
    [
        ({"layer_norm_eps": 1e-12}, {"layer_norm_eps": 1e-5}, "layer_norm_eps"),
        ({"hidden_act": "gelu"}, {"hidden_act": "relu"}, "hidden_act"),
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "rope"),
        ({}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope"),
        ({"text_config": {"eps": 1}}, {"text_config": {"eps": 2}}, "text_config.eps"),
        ({"sliding_window": 4096}, {"sliding_window": None}, "sliding_window"),
    ],
)
def test_extract_refuses_what_a_graft_cannot_carry(base, tuned, key, tmp_path):
    ours = write_folder(tmp_path / "base", body(), config=base)
    theirs = write_folder(tmp_path / "tuned", moved(body()), config=tuned)
    with pytest.raises(InputError, match=rf"says {key} = .*a graft cannot carry it; .*one version of transformers"):
        extract(ours, theirs)


@pytest.mark.parametrize(
    ("base", "tuned"),
    [
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
        ({"hidden_size": 8, "num_attention_heads": 2},
         {"hidden_size": 8, "num_attention_heads": 2, "head_dim": 4, "num_key_value_heads": 2,
          "layer_types": ["full_attention"]}),
        ({"hidden_dropout_prob": 0.1, "position_embedding_type": "absolute"},
         {"hidden_dropout_prob": 0.0, "is_decoder": False}),
        ({}, {"transformers_version": "5", "dtype": "float32", "_x": 1, "classifier_dropout": 0.3, "pad_token_id": None}),
    ],
)  # fmt: skip
def test_one_setting_in_two_spellings_is_no_difference(base, tuned, tmp_path):
    ours = write_folder(tmp_path / "base", body(), config=base)
    theirs = write_folder(tmp_path / "tuned", moved(body()), config=tuned)
    apply(ours, Named(extract(ours, theirs), "g"), out=tmp_path / "on")
    assert json.loads((tmp_path / "on" / "config.json").read_text()).items() >= base.items()


def test_heads_of_pre_training_may_go():
    names = [
        "cls.predictions.bias",
        "lm_head.weight",
        "vocab_layer_norm.bias",
        "lm_predictions.lm_head.bias",
        "decoder.bias",
    ]
    assert [permitted.removal_problem(name) for name in names] == [""] * 5
    assert permitted.removal_problem(DENSE) == "lies in a layer"
