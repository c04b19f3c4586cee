"""What is refused about the metadata: version, form, scale, scope, provenance. `docs/format.md` lists all of it."""

from __future__ import annotations

import json

import pytest

from skillgraft.files.graft_file import load, load_info, load_region

from .raw_file import metadata, without


@pytest.mark.parametrize("key", ["form", "scale", "base_fingerprint", "scope", "scope_shapes", "entries", "density"])
def test_missing_metadata(refused, key):
    refused(without(key), f"the metadata lacks: {key}")


def test_a_model_is_not_a_graft(refused):
    refused(lambda raw: raw.header.pop("__metadata__"), "not a graft: its metadata has no skillgraft format")
    refused(metadata(format="pt"), "not a graft", read=load_region)
    refused(metadata(format="pt"), "not a graft", read=load_info)


def test_unknown_version(refused):
    refused(metadata(format_version="3"), "format version '3', this skillgraft reads version")
    refused(without("format_version"), "format version 'None'")


def test_unknown_metadata(refused):
    refused(metadata(colour="red"), "unknown items: colour")
    refused(metadata(form="exact"), "unknown items: form", golden="region", read=load_region)


def test_a_region_file_is_not_a_graft(refused):
    refused(
        lambda _: None,
        "expected a skillgraft.graft file, found a skillgraft.region file",
        golden="region",
    )


def test_unknown_form(refused):
    refused(metadata(form="fuzzy"), "form must be one of exact, arithmetic, found 'fuzzy'")


@pytest.mark.parametrize("scale", ["", "one", "1", "+0.5", "1_0.0", " 1.0", "0.30", "9" * 100_000])
def test_scale_in_another_spelling(refused, scale):
    refused(metadata(scale=scale), "scale must be a number as Python writes it")


@pytest.mark.parametrize("scale", ["nan", "inf", "-inf"])
def test_scale_that_is_not_finite(refused, scale):
    refused(metadata(scale=scale), f"scale must be a finite number .* found {scale}")


def test_scale_of_the_arithmetic_form(refused):
    refused(metadata(scale="0.5"), r"scale must be a finite number \(1 in the arithmetic form\)", golden="arithmetic")


@pytest.mark.parametrize("fingerprint", ["abc", "X" * 64, "A" * 64, "0" * 65])
def test_fingerprint_that_is_none(refused, fingerprint):
    refused(metadata(base_fingerprint=fingerprint), "base_fingerprint must be 64 hexadecimal digits")


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("", "scope_shapes is not valid JSON"),
        ("[" * 100_000, "scope_shapes is not valid JSON: nested too deeply"),
        ("[]", "scope_shapes must map parameter names to shapes"),
        ('{"w":[1],"w":[2]}', "repeated keys: w"),
        ('{"w":[NaN]}', "NaN is not JSON"),
        ('{"w":[1.0]}', "scope_shapes: w: not a list of possible sizes"),
        ('{"w":[true]}', "not a list of possible sizes"),
        ('{"w":[-1]}', "not a list of possible sizes"),
        ('{"w":4}', "not a list of possible sizes"),
        (json.dumps({"w": [2**30, 2**30]}), "not a list of possible sizes"),
        (json.dumps({"\ud800": [2]}), "surrogates not allowed"),
    ],
)
def test_scope_shapes_that_are_none(refused, shapes, message):
    refused(metadata(scope_shapes=shapes), message)


def test_metadata_bomb(refused):
    """A product of so many large lengths would take minutes to compute; it is never computed."""
    refused(metadata(scope_shapes=json.dumps({"w": [10**9] * 300_000})), "not a list of possible sizes")
    refused(metadata(scope_shapes=json.dumps({"w": [int("9" * 4000)] * 100})), "not a list of possible sizes")


@pytest.mark.parametrize(("key", "text"), [("entries", "4"), ("entries", "three"), ("density", "0.5"), ("density", "")])
def test_metadata_that_disagrees_with_the_tensors(refused, key, text):
    refused(metadata(**{key: text}), f"the metadata says {key} {text!r}, the tensors hold")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({"labels": "positive"}, "provenance item 'labels' is not JSON"),
        ({"labels": "{}"}, "provenance item 'labels' must be list, found dict"),
        ({"num_labels": "true"}, "provenance item 'num_labels' must be int, found bool"),
        ({"num_labels": "2.0"}, "must be int, found float"),
        ({"scores": '{"a":NaN}'}, "NaN is not JSON"),
        ({"scores": '{"a":1,"a":2}'}, "repeated keys: a"),
        ({"recipe": "[" * 100_000}, "nested too deeply"),
        ({"labels": '["\\ud800"]'}, "surrogates not allowed"),
    ],
)
@pytest.mark.parametrize("read", [load, load_info])
def test_provenance_of_a_wrong_type(refused, items, message, read):
    refused(metadata(**items), message, read=read)
