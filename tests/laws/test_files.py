"""load(save(g)) == g, and equal grafts give equal bytes in whatever order they were built."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.files.graft_file import load, load_info, load_region, save, save_region
from skillgraft.values.graft import Graft
from skillgraft.values.info import Info
from skillgraft.values.numbers import same_bits
from skillgraft.values.region import Region, Scope

from ..strategies import FINGERPRINT, FORMATS, examples, grafts, infos, regions, scopes

quick = examples(40)
every_format = pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """One path for every example; each overwrites the one before."""
    return tmp_path_factory.mktemp("files") / "skill.safetensors"


@every_format
@quick
@given(data=st.data())
def test_load_gives_back_what_was_saved(dtype, data, file):
    g = dataclasses.replace(data.draw(grafts(dtype, large=True)), info=data.draw(infos()))
    save(g, file, overwrite=True)
    again = load(file)
    assert again == g
    assert (again.form, again.scale, again.base_fingerprint) == (g.form, g.scale, g.base_fingerprint)
    assert again.region == load_region(file) == g.region
    assert load_info(file) == (FINGERPRINT, g.info)
    for name in g.region:
        assert same_bits(again.before[name], g.before[name])
        assert same_bits(again.change[name], g.change[name])
    assert list(again.heads) == sorted(g.heads)
    assert all(same_bits(again.heads[name], g.heads[name]) for name in g.heads)


@every_format
@quick
@given(data=st.data())
def test_equal_grafts_give_equal_bytes(dtype, data, file):
    g = data.draw(grafts(dtype, large=True))

    def shuffled(mapping):
        return {key: mapping[key] for key in data.draw(st.permutations(list(mapping)))}

    scope = Scope.of(g.region.scope.label, shuffled(g.region.scope.shapes))
    again = Graft(
        Region(scope, {name: at.astype(np.int64) for name, at in shuffled(g.region.sites).items()}),
        shuffled(g.before),
        shuffled(g.change),
        form=g.form,
        scale=g.scale,
        heads=shuffled(g.heads),
        base_fingerprint=g.base_fingerprint,
        info=Info(**shuffled(g.info)),
    )
    assert again == g
    assert hash(again) == hash(g)
    save(g, file, overwrite=True)
    first = file.read_bytes()
    save(again, file, overwrite=True)
    assert file.read_bytes() == first
    save(load(file), file, overwrite=True)
    assert file.read_bytes() == first


@quick
@given(data=st.data())
def test_region_files(data, file):
    region, info = data.draw(scopes().flatmap(regions)), data.draw(infos())
    file.unlink(missing_ok=True)
    save_region(region, file, base_fingerprint=FINGERPRINT, info=info)
    assert load_region(file) == region
    assert load_info(file) == (FINGERPRINT, info)
