"""Finds the layer at which two paths part: both are run again to one step, and their layers' outputs compared."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from mlxcel_engine.errors import one_line
from mlxcel_engine.paths import FOREIGN_FAILURES, LayerProbe
from mlxcel_engine.records.parity import LayerDifference, Located

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlxcel_engine.loader.load import LoadedModel
    from mlxcel_engine.parity.collect import Collected
    from mlxcel_engine.paths import DecodePath, PathRequest

    Outputs = dict[str, NDArray[np.float32]]
    Side = tuple[DecodePath, Collected]

# Relative differences below these are rounding, so that a step up from them is no jump.
_ROUNDING = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


def locate(loaded: LoadedModel, request: PathRequest, left: Side, right: Side, step: int) -> Located:
    """Compare the layers of the forward that made the logits of ``step``, the left stream's tokens before it forced."""
    common = left[1].stream.ids[:step]
    outputs: list[Outputs] = []
    for path, collected in (left, right):
        found, problem = _outputs(loaded, request, path, collected, common)
        if problem is not None:
            return Located(step=step, first=None, jump=None, layers=[], problem=f"{path.name}: {problem}")
        outputs.append(found)
    rounding = max(_ROUNDING.get(side[1].dtype or "", _ROUNDING["float32"]) for side in (left, right))
    return compare_layers(step, outputs[0], outputs[1], rounding)


def compare_layers(step: int, left: Outputs, right: Outputs, rounding: float = _ROUNDING["float32"]) -> Located:
    """Compare outputs ``[D]`` by layer, in the order of the left side's; ``rounding`` is a relative difference."""
    if list(left) != list(right):
        return Located(step=step, first=None, jump=None, layers=[], problem="the two do not have the same layers")
    layers = [_difference(name, left[name], right[name]) for name in left]
    first = next((layer.layer for layer in layers if layer.largest), None)
    levels = [min(max(layer.relative, rounding), 1e30) for layer in layers]
    growth = [after / before for before, after in zip([rounding, *levels], levels, strict=False)]
    jump = layers[int(np.argmax(growth))].layer if first is not None else None
    return Located(step=step, first=first, jump=jump, layers=layers, problem=None)


def _difference(name: str, left: NDArray[np.float32], right: NDArray[np.float32]) -> LayerDifference:
    if left.shape != right.shape or not (np.isfinite(left).all() and np.isfinite(right).all()):
        return LayerDifference(layer=name, largest=float("inf"), relative=float("inf"))
    largest = float(np.abs(left - right).max(initial=0.0))
    size = float(np.abs(left).max(initial=0.0))
    return LayerDifference(layer=name, largest=largest, relative=largest / size if size else largest)


def _outputs(
    loaded: LoadedModel, request: PathRequest, path: DecodePath, collected: Collected, common: tuple[int, ...]
) -> tuple[Outputs, str | None]:
    """The layers' outputs on one path, or why there are none."""
    if collected.evidence is None:
        return {}, "its forwards are not known"
    probe = LayerProbe(len(collected.evidence.partition) - 1 + len(common))
    forced = replace(request, sampling=replace(request.sampling, forced=common), probe=probe)
    try:
        with closing(path.run(loaded, forced).steps) as steps:
            for _ in islice(steps, len(common) + 1):
                pass
    except FOREIGN_FAILURES as error:  # whatever a loop raises must not end the comparison of the others
        return {}, one_line(error)
    return probe.outputs, None if probe.outputs else "it does not let its layers be read (record_forwards with a probe)"
