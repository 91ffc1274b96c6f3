"""Every family in the invariant mode: rows that join and leave are bitwise what each of them is alone."""

from __future__ import annotations

import pytest

from mlxcel_engine.engine import Engine, EngineConfig, FixedShapes, supports_paged_decode
from tests.conformance.configs import CONFIGS
from tests.conformance.traces import EQUAL, RAGGED, engine_rows, widest
from tests.tiny import tiny_model

ROWS = (*RAGGED, *EQUAL)  # twice as many as go through together
SHAPES = FixedShapes(3, 8)


@pytest.mark.long
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_together_are_bitwise_those_alone(name: str, exact: bool) -> None:
    model = tiny_model(name)
    config = EngineConfig(exact=exact, invariant=SHAPES)
    alone = {row: engine_rows(Engine(model, config), (row,))[row] for row in ROWS if not row.joins}
    assert str(widest(engine_rows(Engine(model, config), ROWS), alone)) == "bitwise"
    if supports_paged_decode(model).ok:
        paged = EngineConfig("paged", exact=exact, invariant=SHAPES)
        assert str(widest(engine_rows(Engine(model, paged), ROWS), alone)) == "bitwise"
