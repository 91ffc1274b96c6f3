"""From arrival times to the figures of a row. Arithmetic alone; no MLX.

One stream: TTFT is the first arrival; decode tok/s is (tokens - 1) / (last - first), so that TTFT is never in it.
Several streams: decode tok/s is the sum of the streams' own rates while all of them decode, which is from the latest
first token to the earliest last one; so no stream's prefill is in it. For one stream the two are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.bench.timing import StreamTimes


@dataclass(frozen=True)
class Figures:
    """Times in ms, speeds in tokens a second; None where there were too few tokens."""

    ttft_ms: float | None
    decode_tok_s: float | None
    stream_tok_s: tuple[float | None, ...]
    prefill_tok_s: float | None
    itl_ms_p50: float | None
    itl_ms_p95: float | None


def summarise(streams: Sequence[StreamTimes], prompt_tokens: int) -> Figures:
    """Compute the figures of a pass whose prompts have ``prompt_tokens`` tokens together."""
    firsts = [stream.arrivals[0] for stream in streams if stream.arrivals]
    gaps = [after - before for stream in streams for before, after in pairwise(stream.arrivals)]
    all_began = len(firsts) == len(streams)
    return Figures(
        ttft_ms=1e3 * float(np.median(firsts)) if firsts else None,
        decode_tok_s=_aggregate(streams),
        stream_tok_s=tuple(_rate(stream.arrivals) for stream in streams),
        prefill_tok_s=prompt_tokens / max(firsts) if all_began and max(firsts) > 0 else None,
        itl_ms_p50=_percentile(gaps, 50),
        itl_ms_p95=_percentile(gaps, 95),
    )


def limit_pct(bytes_per_token: float | None, decode_tok_s: float | None, bandwidth_gb_s: float) -> float | None:
    """Bytes read a second as a percentage of ``bandwidth_gb_s`` (10^9 bytes a second)."""
    if bytes_per_token is None or decode_tok_s is None:
        return None
    return 100 * bytes_per_token * decode_tok_s / (bandwidth_gb_s * 1e9)


def _aggregate(streams: Sequence[StreamTimes]) -> float | None:
    """Tokens a second of all streams together, while all of them decode."""
    if not all(stream.arrivals for stream in streams):
        return None
    start = max(stream.arrivals[0] for stream in streams)
    stop = min(stream.arrivals[-1] for stream in streams)
    rates = [_rate([arrival for arrival in stream.arrivals if start <= arrival <= stop]) for stream in streams]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _rate(arrivals: Sequence[float]) -> float | None:
    """Tokens after the first over the time since it; None for one token or none."""
    if len(arrivals) < 2 or arrivals[-1] <= arrivals[0]:
        return None
    return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])


def _percentile(seconds: Sequence[float], percent: float) -> float | None:
    """Percentile in ms, linear between the two nearest values."""
    return 1e3 * float(np.percentile(seconds, percent)) if seconds else None
