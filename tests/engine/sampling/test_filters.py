from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mlxcel_engine.engine.sampling import SamplingConfig
from mlxcel_engine.engine.sampling.filters import (
    apply_filters,
    apply_min_p,
    apply_top_p,
    apply_typical,
    apply_xtc,
    descending,
)
from tests.engine.sampling import reference
from tests.engine.sampling import rows as make
from tests.engine.sampling.rows import Floats32, logprobs, normalized

few = settings(max_examples=40)
fractions = st.sampled_from([0.0, 1e-6, 0.05, 0.3, 0.5, 0.95, 0.999999]) | st.floats(0, 0.999)
EPS = 1e-6  # what the masses may be off by the rounding of float32


def kept(values: Floats32, apply: Callable[[mx.array, mx.array], mx.array], top_k: int = 0) -> list[int]:
    """The ids that ``apply`` leaves, the likeliest first."""
    ordered, ids = descending(mx.array(values)[None], top_k)
    left = np.array(apply(ordered, ids))[0]
    return [int(i) for i in np.array(ids)[0][left > -np.inf]]


def test_order_is_by_logprob_then_id_with_both_zeros_equal() -> None:
    values = np.array([-1.0, 0.0, 2.0, -0.0, 2.0, -np.inf, 0.0, -1e-30], dtype=np.float32)
    ordered, ids = descending(mx.array(values)[None], 0)
    assert np.array(ids)[0].tolist() == [2, 4, 1, 3, 6, 7, 0, 5]
    assert np.array(ordered)[0].tolist() == values[[2, 4, 1, 3, 6, 7, 0, 5]].tolist()


@few
@given(logprobs(), st.sampled_from([1, 2, 7, 40, 299, 60_000]))
def test_top_k_equals_the_reference_ties_included(values: Floats32, k: int) -> None:
    assert kept(values, lambda x, _: x, k) == reference.ordered(values.astype(np.float64))[:k]


@few
@given(logprobs(), fractions, st.sampled_from([0, 1, 2, 5]))
def test_top_p_lies_between_the_references_of_p_a_little_less_and_more(
    values: Floats32, p: float, min_keep: int
) -> None:
    exact = values.astype(np.float64)
    found = kept(values, lambda x, _: apply_top_p(x, p, min_keep))
    least, most = (reference.top_p(exact, reference.ordered(exact), q, min_keep) for q in (p - EPS, p + EPS))
    assert found == reference.ordered(exact)[: len(found)]
    assert len(least) <= len(found) <= len(most)


@pytest.mark.parametrize(("p", "count"), [(0.0, 1), (0.25, 1), (0.2500001, 2), (0.5, 2), (0.75, 3), (0.9999999, 4)])
def test_top_p_at_its_edges_keeps_the_lowest_ids_of_equal_tokens(p: float, count: int) -> None:
    assert kept(normalized(np.zeros(4, np.float32)), lambda x, _: apply_top_p(x, p, 0)) == list(range(count))


@few
@given(logprobs(), st.sampled_from([1e-9, 0.05, 0.5, 1.0]), st.sampled_from([0, 1, 2, 5]))
def test_min_p_equals_the_reference(values: Floats32, p: float, min_keep: int) -> None:
    exact = values.astype(np.float64)
    ids = reference.ordered(exact)
    least, most = (reference.min_p(exact, ids, min(q, 1.0), min_keep) for q in (p * (1 + 1e-6), p * (1 - 1e-6)))
    found = kept(values, lambda x, _: apply_min_p(x, p, min_keep))
    assert set(least) <= set(found) <= set(most)
    assert len(found) >= min(max(min_keep, 1), len(ids))


def test_min_p_keeps_a_token_exactly_at_its_edge_with_and_without_order() -> None:
    values = np.array([math.log(0.5), 0.0, np.nextafter(np.float32(math.log(0.5)), -1)], dtype=np.float32)
    assert kept(values, lambda x, _: apply_min_p(x, 0.5, 0)) == [1, 0]
    unordered = np.array(apply_filters(mx.array(values)[None], None, make.settings(min_p=0.5), None))[0]
    assert np.flatnonzero(unordered > -np.inf).tolist() == [0, 1]


@few
@given(logprobs(), fractions, st.sampled_from([0, 1, 2, 5]))
def test_typical_keeps_the_nearest_to_the_entropy_and_just_enough_of_them(
    values: Floats32, p: float, min_keep: int
) -> None:
    exact = values.astype(np.float64)
    ids = reference.ordered(exact)
    found = kept(values, lambda x, _: apply_typical(x, p, min_keep))
    probs = dict(zip(ids, reference.probabilities(exact, ids), strict=True))
    entropy = -sum(q * math.log(q) for q in probs.values() if q)
    far = {i: abs(-math.log(q) - entropy) if q else math.inf for i, q in probs.items()}
    tolerance = 1e-5 + len(ids) * 1e-7  # a float32 entropy of 50,000 tokens is off in its third decimal
    farthest = max(found, key=lambda i: far[i])
    assert all(far[i] >= far[farthest] - tolerance for i in set(ids) - set(found))
    assert len(found) == len(ids) or sum(probs[i] for i in found) > p - EPS
    assert len(found) >= min(max(min_keep, 1), len(ids))
    assert len(found) <= max(min_keep, 1) or sum(probs[i] for i in found) - max(probs[i] for i in found) <= p + EPS


def test_typical_may_drop_the_likeliest() -> None:
    values = normalized(np.log(np.array([0.4] + [0.06] * 10, dtype=np.float32)))
    exact = values.astype(np.float64)
    expected = reference.typical(exact, reference.ordered(exact), 0.32)
    assert kept(values, lambda x, _: apply_typical(x, 0.32, 0)) == expected
    assert 0 not in expected


def xtc_kept(values: Floats32, acts: bool, **options: Any) -> list[int]:
    chosen = make.settings(xtc_probability=1.0, **options)
    return kept(values, lambda x, ids: apply_xtc(x, ids, mx.array([[acts]]), chosen))


@few
@given(logprobs(300), st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5]), st.sampled_from([0, 2, 5]), st.data())
def test_xtc_equals_the_reference_and_leaves_eos(
    values: Floats32, threshold: float, min_keep: int, data: st.DataObject
) -> None:
    exact = values.astype(np.float64)
    ids = reference.ordered(exact)
    assume(all(abs(q - threshold) > 1e-6 for q in reference.probabilities(exact, ids)) or threshold == 0)
    eos = data.draw(st.lists(st.sampled_from(ids), max_size=3))
    found = xtc_kept(values, True, eos=eos, xtc_threshold=threshold, min_keep=min_keep)
    assert found == reference.xtc(exact, ids, threshold, eos, min_keep)
    assert found
    assert set(eos) <= set(found)


def test_xtc_drops_all_but_the_least_likely_choice() -> None:
    values = normalized(np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], dtype=np.float32)))
    assert xtc_kept(values, True) == [2, 3, 4]
    assert xtc_kept(values, True, eos=(0, 1)) == [0, 1, 2, 3, 4]
    assert xtc_kept(values, False) == [0, 1, 2, 3, 4]
    assert xtc_kept(values, True, xtc_threshold=0.5) == [0, 1, 2, 3, 4]


def test_typical_acts_before_min_p() -> None:
    values = normalized(np.log(np.array([0.4] + [0.06] * 10, dtype=np.float32)))
    chosen = make.settings(typical_p=0.32, min_p=0.5)
    assert kept(values, lambda x, ids: apply_filters(x, ids, chosen, None)) == [1, 2, 3, 4, 5, 6]
    assert kept(values, lambda x, _: apply_typical(apply_min_p(x, 0.5, 0), 0.32, 0)) == [0]  # the other way round


@few
@given(
    logprobs(),
    st.builds(
        SamplingConfig,
        temperature=st.just(1.0),
        top_k=st.sampled_from([0, 1, 40]),
        typical_p=st.sampled_from([1.0, 0.9]),
        top_p=st.sampled_from([0.95, 0.5]),
        min_p=st.sampled_from([0.0, 0.05]),
        min_keep=st.sampled_from([0, 3]),
    ),
)
def test_the_filters_in_their_order_equal_the_reference(values: Floats32, config: SamplingConfig) -> None:
    exact = values.astype(np.float64)
    assume(len(set(exact.tolist())) == len(exact) or config.typical_p == 1)
    near = (
        [
            reference.kept(
                exact, config.model_copy(update={"top_p": config.top_p + d, "typical_p": config.typical_p + d})
            )
            for d in (-EPS, EPS)
        ]
        if config.typical_p < 1
        else [reference.kept(exact, config.model_copy(update={"top_p": config.top_p + d})) for d in (-EPS, EPS)]
    )
    assume(near[0] == near[1])
    options = config.model_dump(exclude_defaults=True)
    chosen = make.settings(**options)
    found = kept(values, lambda x, ids: apply_filters(x, ids, chosen, None), config.top_k)
    assert found == reference.kept(exact, config)
