"""What is refused about the container: length, header, dtypes, shapes, offsets. `docs/format.md` lists all of it."""

from __future__ import annotations

import pytest

from .raw_file import WEIGHT, entry, metadata, with_header


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (0, "0 bytes, expected at least 8"),
        (7, "7 bytes"),
        (8, "truncated: the header needs"),
        (300, "truncated: the header needs"),
    ],
)
def test_truncated_header(refused, kept, message):
    refused(lambda raw: raw.content()[:kept], message)


def test_truncated_numbers(refused):
    refused(lambda raw: raw.content()[:-1], r"truncated: the tensors need [\d,]+ bytes, the file has [\d,]+")


def test_trailing_bytes(refused):
    refused(lambda raw: raw.content() + b"more", "4 bytes follow the last tensor")


def test_header_that_promises_gigabytes(refused):
    refused(lambda raw: (2**40).to_bytes(8, "little") + raw.content()[8:], "header claims 1,099,511,627,776 bytes")
    refused(lambda raw: (10**7).to_bytes(8, "little") + raw.content()[8:], "truncated: the header needs 10,000,008")


def test_tensor_that_promises_gigabytes(refused):
    huge = entry(f"{WEIGHT}.before", shape=[2**38], data_offsets=[0, 2**40])
    refused(huge, "overlaps|leaves a gap|truncated")


def test_tensor_larger_than_anything(refused):
    refused(entry(f"{WEIGHT}.before", shape=[2**62, 2**62]), "must be possible sizes")
    refused(entry(f"{WEIGHT}.before", shape=[0, 2**62, 2**62], data_offsets=[0, 0]), "must be possible sizes")
    refused(entry(f"{WEIGHT}.before", shape=[1] * 65), "must be possible sizes")


@pytest.mark.parametrize("shape", [[1], [3], [2, 2]])
def test_wrong_lengths(refused, shape):
    refused(entry(f"{WEIGHT}.before", shape=shape), r"F32 .* needs \d+ bytes, data_offsets hold 8")


@pytest.mark.parametrize("value", [2.0, True, "2", None, [2], -2, {"n": 2}])
def test_shapes_that_are_not_whole_numbers(refused, value):
    refused(entry(f"{WEIGHT}.before", shape=[value]), "must be possible sizes")


@pytest.mark.parametrize("offsets", [[0], [0, 8, 9], ["0", "8"], [0.0, 8.0], None, {"low": 0}])
def test_offsets_that_are_not_two_whole_numbers(refused, offsets):
    refused(entry(f"{WEIGHT}.before", data_offsets=offsets), "expected dtype, shape and two data_offsets")
    refused(entry(f"{WEIGHT}.before", data_offsets=[False, 8]), "must be possible sizes")
    refused(entry(f"{WEIGHT}.before", data_offsets=[-8, 0]), "must be possible sizes")


def test_offsets_that_overlap_or_leave_a_gap(refused):
    refused(entry(f"{WEIGHT}.before", data_offsets=[0, 8]), "overlaps the one before it")
    refused(entry(f"{WEIGHT}.before", data_offsets=[12, 20]), "it leaves a gap before it|overlaps")


@pytest.mark.parametrize("change", [{"more": 1}, {"dtype": 5}, {"shape": 2}])
def test_entries_with_other_fields(refused, change):
    refused(entry(f"{WEIGHT}.before", **change), "expected dtype, shape and two data_offsets, found")


@pytest.mark.parametrize(
    ("tag", "message"), [("F128", "unknown dtype 'F128'; known: F64"), ("F8_E4M3", "quantised format")]
)
def test_unknown_dtype(refused, tag, message):
    refused(entry(f"{WEIGHT}.before", dtype=tag), message)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not JSON", "the header is not valid JSON"),
        (b"[]", "the header is not a JSON object"),
        (b"\xff\xfe{}", "the header is not valid JSON: 'utf-8' codec"),
        (b'{"a":{},"a":{}}', "repeated keys: a"),
        (b'{"__metadata__":{"a":"1","a":"2"}}', "repeated keys: a"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b'{"\\ud800":{}}', "surrogates not allowed"),
        (b'{"__metadata__":{"task":"\\udfff"}}', "surrogates not allowed"),
        (b'{"__metadata__":[]}', "__metadata__ must map names to strings"),
        (b'{"__metadata__":{"task":1}}', "__metadata__ must map names to strings"),
        (b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", "expected dtype, shape"),
    ],
)
def test_headers_that_are_not_headers(refused, header, message):
    refused(lambda _: with_header(header), message)


def test_a_hundred_thousand_repeated_keys_do_not_take_long(refused):
    keys = b",".join(b'"%d":0' % (number // 2) for number in range(200_000))
    refused(lambda _: with_header(b"{" + keys + b"}"), "repeated keys: 0, 1, 10")


def test_names_of_a_megabyte_do_not_fill_the_screen(refused):
    refused(lambda raw: raw.rename(f"{WEIGHT}.before", "n" * 1_000_000), "a tensor's name has 1,000,000 characters")
    refused(lambda raw: raw.rename(f"{WEIGHT}.indices", "n" * 1_000_000 + ".indices"), "a tensor's name has")
    refused(metadata(**{"n" * 1_000_000: ""}), "unknown items: nnn")
