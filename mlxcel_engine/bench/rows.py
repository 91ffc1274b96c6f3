"""From a measurement to its row. No MLX."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from mlxcel_engine.bench.summary import limit_pct, summarise
from mlxcel_engine.prompts import hash_ids
from mlxcel_engine.records.bench import BenchRow, StreamSample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_engine.bench.measure import Measured
    from mlxcel_engine.bench.plan import BenchOptions, Context
    from mlxcel_engine.bench.rig import Footprint
    from mlxcel_engine.bench.timing import StreamTimes
    from mlxcel_engine.records.bench import BandwidthProbe
    from mlxcel_engine.records.model import ModelRecord


def make_row(
    path: str,
    context: Context,
    options: BenchOptions,
    measured: Measured,
    model: ModelRecord,
    footprint: Footprint,
    probe: BandwidthProbe,
) -> BenchRow:
    """Put the row together; its ratios to others come later (:func:`with_ratios`)."""
    streams = measured.streams
    figures = summarise(streams, sum(context.lengths))
    per_token = _bytes_per_token(streams, context.lengths, footprint)
    held = sum(
        footprint.kv_bytes(length + max(len(stream.tokens) - 1, 0))
        for length, stream in zip(context.lengths, streams, strict=True)
    )
    reasons = {stream.finish_reason for stream in streams}
    return BenchRow(
        path=path,
        ctx=context.asked,
        prompt_tokens=sum(context.lengths),
        batch=options.batch,
        storage=measured.storage,
        chunk=min(measured.chunk, context.longest),
        tokens=sum(len(stream.tokens) for stream in streams),
        finish_reason=reasons.pop() if len(reasons) == 1 else "mixed",
        ended_early=any(len(stream.tokens) < options.max_tokens for stream in streams),
        ttft_ms=figures.ttft_ms,
        decode_tok_s=figures.decode_tok_s,
        stream_tok_s=list(figures.stream_tok_s),
        prefill_tok_s=figures.prefill_tok_s,
        itl_ms_p50=figures.itl_ms_p50,
        itl_ms_p95=figures.itl_ms_p95,
        peak_memory_bytes=measured.peak_memory_bytes,
        kv_bytes=held,
        weight_bytes=model.weight_bytes,
        bytes_per_token=per_token,
        limit_pct=limit_pct(per_token, figures.decode_tok_s, probe.read_gb_s),
        bandwidth_gb_s=probe.read_gb_s,
        ratio_to_cli=None,
        ratio_to_mlx_server=None,
        attention_calls=measured.attention_calls,
        token_hash=_token_hash(streams),
        warmup=options.warmup,
        ttft_warm_ms=None if measured.warm is None else summarise(measured.warm, sum(context.lengths)).ttft_ms,
        label=options.label,
        samples=[_sample(stream, length) for stream, length in zip(streams, context.lengths, strict=True)],
    )


def with_ratios(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The rows with their ratios of decode speed to those of the same context, as far as these are measured."""
    known = {(row.path, row.ctx): row for row in rows}
    return [
        row.model_copy(
            update={
                "ratio_to_cli": _ratio(row, known.get(("cli", row.ctx))),
                "ratio_to_mlx_server": _ratio(row, known.get(("mlx-server", row.ctx))),
            }
        )
        for row in rows
    ]


def _ratio(row: BenchRow, reference: BenchRow | None) -> float | None:
    """Decode speed over that of ``reference``; None where their token counts differ, for so does their work."""
    if reference is None or reference.tokens != row.tokens:
        return None
    if row.decode_tok_s is None or reference.decode_tok_s is None:
        return None
    return row.decode_tok_s / reference.decode_tok_s


def _bytes_per_token(streams: Sequence[StreamTimes], lengths: Sequence[int], footprint: Footprint) -> float | None:
    """Mean over the decode steps of (weights + keys and values of all streams), over the streams.

    The step that gives token i + 1 of a stream attends to its prompt and i tokens more.
    """
    if footprint.step_weight_bytes is None or any(len(stream.tokens) < 2 for stream in streams):
        return None
    total = float(footprint.step_weight_bytes)
    for stream, length in zip(streams, lengths, strict=True):
        steps = range(1, len(stream.tokens))
        total += sum(footprint.kv_bytes(length + step) for step in steps) / len(steps)
    return total / len(streams)


def _token_hash(streams: Sequence[StreamTimes]) -> str:
    """The hash of one stream's ids, or of all streams' hashes joined by commas."""
    hashes = [hash_ids(tuple(stream.tokens)) for stream in streams]
    return hashes[0] if len(hashes) == 1 else sha256(",".join(hashes).encode()).hexdigest()


def _sample(stream: StreamTimes, prompt_tokens: int) -> StreamSample:
    return StreamSample(
        prompt_tokens=prompt_tokens,
        tokens=len(stream.tokens),
        finish_reason=stream.finish_reason,
        arrivals_ms=[round(1e3 * arrival, 4) for arrival in stream.arrivals],
    )
