"""What ``powers.py`` and ``rotations.py`` compute against MLX, and that only forwards that need not be exact use it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.activations import swiglu

from mlxcel_engine.engine import Engine, EngineConfig, dispatch, powers, rotations
from mlxcel_engine.engine.rotations import Rotations
from tests.conformance.traces import References, engine_rows, widest
from tests.tiny import tiny_model

BASE = 100_000.0


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(-1e4, 1e4, width=32) | st.just(-np.inf), min_size=1, max_size=40),
    shift=st.floats(-1e6, 1e6, width=32),
)
def test_log_softmax_is_that_of_numpy(values: list[float], shift: float) -> None:
    logits = np.array([[0.0, *values]]) + np.float32(shift)
    found = np.array(powers.log_softmax(mx.array(logits.astype(np.float32))), dtype=np.float64)
    exact = logits.astype(np.float32).astype(np.float64)
    wanted = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    tolerance = 1e-5 + np.abs(exact[np.isfinite(exact)]).max() * 2e-7
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=tolerance)


def test_log_softmax_of_what_has_no_sum_is_not_a_number() -> None:
    """As with MLX's own: :func:`row_ok` finds such a row by it."""
    for bad in ([-np.inf, -np.inf], [np.nan, 0.0], [np.inf, 0.0]):
        assert np.isnan(np.array(powers.log_softmax(mx.array([bad], dtype=mx.float32)))).any()


@settings(max_examples=60)
@given(values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40))
def test_swiglu_is_that_of_mlx_lm(values: list[float]) -> None:
    gate, x = mx.array(values, dtype=mx.float32), mx.array(values[::-1], dtype=mx.float32)
    np.testing.assert_allclose(np.array(powers.swiglu(gate, x)), np.array(swiglu(gate, x)), rtol=5e-6, atol=1e-30)


@settings(max_examples=80)
@given(
    offsets=st.lists(st.integers(0, 9000), min_size=1, max_size=4),
    array=st.booleans(),
    dims=st.sampled_from([4, 16, 64]),
    scale=st.sampled_from([1.0, 0.25]),
    own_freqs=st.booleans(),
)
def test_a_rotation_is_rope(offsets: list[int], array: bool, dims: int, scale: float, own_freqs: bool) -> None:
    x = mx.random.normal((len(offsets), 3, 1, dims), key=mx.random.key(sum(offsets)))
    freqs = mx.arange(1, dims // 2 + 1).astype(mx.float32) * 1.5 if own_freqs else None
    offset = mx.array(offsets) if array else offsets[0]
    base = None if own_freqs else BASE
    wanted = mx.fast.rope(x, dims, traditional=False, base=base, scale=scale, offset=offset, freqs=freqs)
    found = Rotations()
    for _ in range(2):  # made, then taken from what was made
        np.testing.assert_allclose(
            np.array(found.apply(x, dims, base, scale, offset, freqs)), np.array(wanted), rtol=0, atol=2e-6
        )


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record which functions of ``powers.py`` run."""
    seen: list[str] = []

    def recording(name: str, made: Any) -> Any:
        def record(*given: Any) -> Any:
            seen.append(name)
            return made(*given)

        return record

    monkeypatch.setattr(powers, "swiglu", recording("swiglu", powers.swiglu))
    monkeypatch.setattr(Rotations, "apply", recording("rope", Rotations.apply))
    return seen


def test_only_forwards_that_need_not_be_exact_use_powers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = calls(monkeypatch)
    model: Any = tiny_model("llama")
    engine_rows(Engine(model, EngineConfig(exact=True)))
    model(mx.array([[1]]))
    References(model).of()
    assert seen == []
    engine_rows(Engine(model, EngineConfig(exact=False)))
    assert set(seen) == {"swiglu", "rope"}


def test_another_thread_beside_a_forward_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = calls(monkeypatch)
    gate = mx.ones((2, 4))

    def there() -> list[str]:
        with mx.stream(mx.new_stream(mx.cpu)):
            mx.eval(
                dispatch.dispatch_swiglu(gate, gate),
                mx.fast.rope(mx.ones((1, 1, 1, 4)), 4, traditional=False, base=BASE, scale=1.0, offset=3),
            )
        return seen

    mx.eval(gate)
    with dispatch.faster_functions(allowed=True), ThreadPoolExecutor(1) as other:
        assert other.submit(there).result() == []
        dispatch.dispatch_swiglu(gate, gate)
    assert seen == ["swiglu"]


def test_a_wrong_rotation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: rows that are rotated the other way differ from ``generate_step``."""
    made = rotations._rotation

    def back(*given: Any) -> mx.array:
        return made(*given).swapaxes(-1, -2)

    monkeypatch.setattr(rotations, "_rotation", back)
    model = tiny_model("llama")
    assert not widest(engine_rows(Engine(model, EngineConfig(exact=False))), References(model).of()).close


def test_a_wrong_activation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: an activation that is 1 % off."""
    made = powers.swiglu
    monkeypatch.setattr(powers, "swiglu", lambda gate, x: made(gate, x) * 1.01)
    model = tiny_model("llama")
    assert not widest(engine_rows(Engine(model, EngineConfig(exact=False))), References(model).of()).close


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": None, "freqs": None, "offset": 1},
        {"base": BASE, "freqs": mx.ones((2,)), "offset": 1},
        {"base": BASE, "freqs": None, "offset": mx.array([1, 2, 3])},
    ],
    ids=["neither", "both", "offsets of other rows"],
)
def test_rope_refuses_what_mlx_refuses(wrong: dict[str, Any]) -> None:
    with dispatch.faster_functions(allowed=True), pytest.raises(ValueError, match="rope"):
        mx.eval(dispatch.dispatch_rope(mx.ones((2, 1, 1, 4)), 4, traditional=False, scale=1.0, **wrong))


def test_an_inner_forward_leaves_the_outer_one_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = calls(monkeypatch)
    gate = mx.ones((2, 4))
    with dispatch.faster_functions(allowed=True):
        with dispatch.faster_functions(allowed=False):
            dispatch.dispatch_swiglu(gate, gate)
        assert seen == []
        dispatch.dispatch_swiglu(gate, gate)
    assert seen == ["swiglu"]
