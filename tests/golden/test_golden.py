"""Golden files: what is written today equals, byte for byte, what was written when the format was fixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skillgraft.files.graft_file import is_region_file, load, load_info, load_region
from skillgraft.values.info import ITEMS, Info

from .make_golden import FINGERPRINT, HERE, HUGE, INFO, grafts, regions, write_all

GRAFTS, REGIONS = dict(grafts()), dict(regions())


def golden(name: str) -> Path:
    return HERE / f"{name}.safetensors"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_all(folder)
    return folder


def test_every_file_is_accounted_for_and_small():
    files = {file.stem: file.stat().st_size for file in HERE.glob("*.safetensors")}
    assert files.keys() == {*GRAFTS, *REGIONS}
    assert max(files.values()) < 4096


@pytest.mark.parametrize("name", [*GRAFTS, *REGIONS])
def test_bytes(name, written):
    assert (written / f"{name}.safetensors").read_bytes() == golden(name).read_bytes()


@pytest.mark.parametrize("name", GRAFTS)
def test_grafts_load(name):
    assert load(golden(name)) == GRAFTS[name]
    assert load_region(golden(name)) == GRAFTS[name].region
    assert not is_region_file(golden(name))


@pytest.mark.parametrize("name", REGIONS)
def test_regions_load(name):
    assert load_region(golden(name)) == REGIONS[name]
    assert load_info(golden(name)) == (FINGERPRINT, Info(method="learned"))
    assert is_region_file(golden(name))


def test_the_forms_are_what_their_names_say():
    assert GRAFTS["arithmetic"].form == GRAFTS["arithmetic-bfloat16"].form == "arithmetic"
    assert GRAFTS["scaled"].scale == -0.3
    assert load(golden("int64")).region.sites["shared.weight"].dtype == np.int64
    assert HUGE.scope.size > 2**31
    assert b".bitmap" in golden("bitmap").read_bytes()
    assert {*INFO, *GRAFTS["chat"].info} == set(ITEMS), "the golden files show every item of provenance"
    assert load(golden("exact")).info == INFO
