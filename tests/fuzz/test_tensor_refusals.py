"""What is refused about the tensors: names, indices, bitmaps, numbers. `docs/format.md` lists all of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from skillgraft.files.graft_file import load_region

from .raw_file import BIAS, WEIGHT, entry, metadata, put


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({0: 17, 1: 0}, "indices are not sorted"),
        ({0: 17}, "1 indices are duplicates"),
        ({0: -1}, r"index -1 is negative \(1 of 2 are\)"),
        ({1: 64}, r"index 64 is out of range for 64 entries \(1 of 2 are\)"),
    ],
)
def test_unsorted_duplicate_negative_and_out_of_range_indices(refused, at, message):
    refused(put(f"{WEIGHT}.indices", at=at), f"{WEIGHT}: {message}")
    refused(put(f"{WEIGHT}.indices", at=at), f"{WEIGHT}: {message}", golden="region", read=load_region)


@pytest.mark.parametrize("part", ["before", "values"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("golden", ["exact", "exact-bfloat16", "exact-float16", "exact-float64"])
def test_nan_or_infinite_numbers(refused, part, number, golden):
    change = put(f"{WEIGHT}.{part}", at={1: number})
    refused(change, f"{WEIGHT}: 1 of 2 numbers .* are NaN or infinite", golden=golden)


def test_nan_or_infinite_deltas_and_heads(refused):
    refused(put(f"{WEIGHT}.delta", at={1: np.nan}), "NaN or infinite", golden="arithmetic")
    refused(put("classifier.weight.head", at={3: np.inf}), r"1 of 4 numbers \(head\) are NaN", golden="heads")


def test_a_tensor_outside_the_scope(refused):
    refused(metadata(scope_shapes=json.dumps({BIAS: [4]})), f"{WEIGHT}: not in the file's own scope")


def test_both_indices_and_bitmap(refused):
    bitmap = np.array([1, 0, 2, 0, 0, 0, 0, 0], np.uint8)
    refused(lambda raw: raw.append(f"{WEIGHT}.bitmap", bitmap, "U8"), f"{WEIGHT}: both indices and a bitmap")


def test_both_values_and_delta(refused):
    delta = np.ones(2, np.float32)
    refused(lambda raw: raw.append(f"{WEIGHT}.delta", delta, "F32"), f"the form is exact, found delta for {WEIGHT}")


def test_the_other_form(refused):
    refused(metadata(form="arithmetic"), "the form is arithmetic, found values for")


@pytest.mark.parametrize("part", ["before", "values"])
def test_a_missing_part(refused, part):
    refused(
        lambda raw: raw.rename(f"{WEIGHT}.{part}", f"{WEIGHT}.head"),
        f"{part}: its parameters are not those that have indices; only one side has {WEIGHT}",
    )


def test_a_part_without_indices(refused):
    refused(lambda raw: raw.append("w.before", np.ones(1, np.float32), "F32"), "only one side has w")


@pytest.mark.parametrize("name", ["weight", ".indices", "w.", "indices", "w.mask", ""])
def test_tensors_with_another_ending(refused, name):
    refused(
        lambda raw: raw.append(name, np.ones(1, np.float32), "F32"), f"unexpected tensor '{name}'; its ending must be"
    )


@pytest.mark.parametrize(("array", "tag"), [(np.zeros(2, np.uint32), "U32"), (np.zeros((2, 1), np.int32), "I32")])
def test_indices_of_another_kind(refused, array, tag):
    refused(
        lambda raw: raw.header[f"{WEIGHT}.indices"].update(dtype=tag, shape=list(array.shape)),
        rf"{WEIGHT}\.indices: expected one row of I32 or I64, found {tag}",
    )


def test_bitmaps_of_another_length(refused):
    refused(entry(f"{WEIGHT}.bitmap", dtype="BOOL"), r"bitmap: expected U8 \[8\], found BOOL \[8\]", golden="bitmap")
    longer = metadata(scope_shapes=json.dumps({BIAS: [4], WEIGHT: [65]}))
    refused(longer, r"bitmap: expected U8 \[9\], found U8 \[8\]", golden="bitmap")
    shorter = metadata(scope_shapes=json.dumps({BIAS: [4], WEIGHT: [60]}))
    refused(shorter, "bitmap: bits beyond the 60 entries are set", golden="bitmap")


def test_a_parameter_without_entries(refused):
    refused(lambda raw: raw.append("w.indices", np.zeros(0, np.int32), "I32"), "not in the file's own scope")
    refused(
        lambda raw: raw.put(f"{WEIGHT}.bitmap", np.zeros(8, np.uint8)),
        f"{WEIGHT}.bitmap: 0 entries",
        golden="bitmap",
    )


@pytest.mark.parametrize(
    ("tag", "shape", "message"),
    [("I32", [2], "before must be floating point, found int32"), ("F16", [4], r"2 sites but before of shape \[4\]")],
)
def test_before_of_another_dtype_or_length(refused, tag, shape, message):
    refused(entry(f"{WEIGHT}.before", dtype=tag, shape=shape), message)


def test_values_of_another_dtype(refused):
    refused(
        lambda raw: raw.header[f"{BIAS}.values"].update(dtype="F16"),
        f"{BIAS}: exact form needs bfloat16 numbers, found float16",
        golden="exact-bfloat16",
    )


def test_a_region_file_with_numbers(refused):
    refused(
        lambda raw: raw.append(f"{WEIGHT}.before", np.zeros(2, np.float32), "F32"),
        "a region file holds indices only, found also before",
        golden="region",
        read=load_region,
    )
