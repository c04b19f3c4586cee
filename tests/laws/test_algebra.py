"""The laws of grafts (DESIGN §3), in every format: equality is of bits, so each holds exactly or not at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.files.graft_file import save
from skillgraft.values.graft import Graft, total
from skillgraft.values.info import Info
from skillgraft.values.numbers import same_bits
from skillgraft.values.region import Region, Scope

from ..strategies import FINGERPRINT, FORMATS, examples, families, grafts, regions

pytestmark = pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
quick = examples(60)


@quick
@given(data=st.data())
def test_minus_minus_g_is_g(dtype, data):
    g = data.draw(grafts(dtype, large=True))
    assert -(-g) == g  # noqa: B002
    assert (-g).region == g.region


@quick
@given(data=st.data())
def test_g_plus_h_is_h_plus_g(dtype, data):
    g, h = data.draw(families(dtype, 2))
    assert g + h == h + g
    assert (g + h).digest == (h + g).digest
    assert (g + h).region == g.region | h.region


@examples(25)
@given(data=st.data())
def test_a_total_does_not_depend_on_the_order(dtype, data, tmp_path_factory):
    family = data.draw(families(dtype, 3))
    folder = tmp_path_factory.mktemp("orders")
    files = set()
    for place, order in enumerate(itertools.permutations(family)):
        summed = total(order)
        assert summed == total(family)
        save(summed, folder / f"{place}.safetensors")
        files.add((folder / f"{place}.safetensors").read_bytes())
    assert len(files) == 1


def test_grafts_that_differ_in_their_scope_alone_add_up_in_any_order(dtype):
    def graft(label: str, **shapes: tuple[int, ...]) -> Graft:
        region = Region(Scope.of(label, {"w": (2,), **shapes}), {"w": [1]})
        one = np.ones(1, dtype)
        return Graft(region, {"w": one}, {"w": one + one}, base_fingerprint=FINGERPRINT)

    # small is part of large but not of other: joined in another order, the scope would get another label.
    family = [graft("small", x=(3,)), graft("large", x=(3,), y=(3,)), graft("other", z=(3,))]
    assert len({graft.digest for graft in family}) == 1
    sums = [total(order) for order in itertools.permutations(family)]
    assert all(summed == sums[0] for summed in sums)


@quick
@given(data=st.data())
def test_a_graft_is_the_sum_of_its_inside_and_its_outside(dtype, data):
    g = data.draw(grafts(dtype, large=True))
    r = data.draw(regions(g.region.scope))
    inside, outside = g & r, g.outside(r)
    assert inside.region == g.region & r
    assert outside.region == g.region - r
    assert inside + outside == g


def test_deltas_of_minus_zero_stay_what_they_are(dtype):
    region = Region(Scope.of("all", {"w": (2,)}), {"w": [0, 1]})
    delta = np.array([-0.0, 0.0], np.float32)
    g = Graft(region, {"w": np.ones(2, dtype)}, {"w": delta}, form="arithmetic")
    parts = [g & Region(region.scope, {"w": [at]}) for at in (0, 1)]
    assert same_bits(total(parts).change["w"], delta)


@quick
@given(data=st.data())
def test_a_total_of_one_is_that_one(dtype, data):
    g = data.draw(grafts(dtype, large=True))
    assert total([g]) == g
    assert total([g], head=g) == g


@quick
@given(data=st.data())
def test_g_minus_g_keeps_its_sites_and_changes_nothing(dtype, data):
    g = data.draw(grafts(dtype))
    nothing = g - g
    assert nothing.region == g.region
    assert all(same_bits(nothing.written(name), g.before[name]) for name in g.region)


@quick
@given(data=st.data())
def test_scale_0_changes_nothing_and_scale_1_writes_the_tuned_numbers(dtype, data):
    g = data.draw(grafts(dtype, large=True, forms=("exact",)))
    still, whole = Graft(g.region, g.before, g.change, scale=0.0), Graft(g.region, g.before, g.change)
    for name in g.region:
        assert same_bits(still.written(name), g.before[name])
        assert same_bits(whole.written(name), g.change[name])


@quick
@given(data=st.data())
def test_a_sum_keeps_the_provenance_that_all_agree_on(dtype, data):
    g, h = data.draw(families(dtype, 2))
    agreed = {key: g.info[key] for key in g.info if key in h.info and g.info.text(key) == h.info.text(key)}
    assert (g + h).info == Info(**agreed)
