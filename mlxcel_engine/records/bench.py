"""The bench record: one row per measurement, with the raw arrival times that it was computed from."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from mlxcel_engine.records.base import SCHEMA_VERSION, Record
from mlxcel_engine.records.environment import Environment
from mlxcel_engine.records.model import ModelRecord

WarmupName = Literal["full", "chunk", "none"]
StorageName = Literal["auto", "dense", "paged"]


class BandwidthProbe(Record):
    """The memory bandwidth that the limit is put against, probed in the same run, in GB/s (10^9 bytes).

    ``read_gb_s`` is a matrix-vector product over a matrix of ``buffer_bytes``, ``copy_gb_s`` a copy of it, bytes read
    and bytes written both counted; each the fastest of its ``samples``. ``cache_bytes`` is the last-level cache, None
    where the system does not tell it.
    """

    device: str
    dtype: str
    buffer_bytes: int
    cache_bytes: int | None
    read_gb_s: float
    copy_gb_s: float
    read_samples: list[float]
    copy_samples: list[float]


class StreamSample(Record):
    """One stream of a timed pass: when each token was on the host, in ms since the request was submitted."""

    prompt_tokens: int
    tokens: int
    finish_reason: str | None
    arrivals_ms: list[float]


class BenchRow(Record):
    """One timed pass of one path at one context. What cannot be computed is None, never a guess.

    ``ctx`` is the context that was asked for, ``prompt_tokens`` what was fed (all streams together), ``chunk`` the
    prompt tokens that went through the model at once. ``tokens`` counts the generated ones of all streams, and
    ``ended_early`` says that a stream stopped before as many as asked for. ``finish_reason`` is ``mixed`` where streams
    differ.

    ``ttft_ms`` is submit to first token on the host, the median over the streams; ``ttft_warm_ms`` the same for the
    prompt asked again with the prompt cache on. ``decode_tok_s`` is (tokens - 1) / (last - first) for one stream; for
    several, the sum of their rates while all of them decode. ``stream_tok_s`` has each stream's own, to its end.
    ``prefill_tok_s`` is the prompt over the time to the (last stream's) first token. ``itl_ms_p50`` and ``itl_ms_p95``
    are percentiles of the gaps between tokens.

    ``kv_bytes`` is what keys and values of all streams take at the end, without spare room, and ``bytes_per_token``
    what a token has to read on average: the weights that a step uses and the keys and values so far, over the batch.
    ``limit_pct`` = 100 * ``bytes_per_token`` * ``decode_tok_s`` / ``bandwidth_gb_s``. ``attention_calls`` counts calls
    into paged KV during the pass; None on mlx-lm's own caches. The ratios are of ``decode_tok_s`` to that of the path's
    row of the same ctx, where both generated as many tokens and, in a line that is written as it comes, that row was
    measured before. ``token_hash`` tells whether two rows gave the same ids.
    """

    path: str
    ctx: int
    prompt_tokens: int
    batch: int
    storage: str
    chunk: int
    tokens: int
    finish_reason: str | None
    ended_early: bool
    ttft_ms: float | None
    decode_tok_s: float | None
    stream_tok_s: list[float | None]
    prefill_tok_s: float | None
    itl_ms_p50: float | None
    itl_ms_p95: float | None
    peak_memory_bytes: int
    kv_bytes: int
    weight_bytes: int
    bytes_per_token: float | None
    limit_pct: float | None
    bandwidth_gb_s: float
    ratio_to_cli: float | None
    ratio_to_mlx_server: float | None
    attention_calls: int | None
    token_hash: str
    warmup: WarmupName
    ttft_warm_ms: float | None
    label: str | None
    samples: list[StreamSample]


class Unmeasured(Record):
    """A path that gave no row at ``ctx``, and why; ``failed`` when it broke, else it cannot run what was asked.

    Beside a row of that path, it is the figures with the prompt cache that are not there.
    """

    path: str
    ctx: int
    reason: str
    failed: bool


class BenchConfig(Record):
    """What was asked for; prompts are drawn from ``seed``. ``warmup_tokens`` are decoded in a warm-up."""

    model: ModelRecord
    paths: list[str]
    ctx: list[int]
    max_tokens: int
    warmup: WarmupName
    warmup_tokens: int
    prefill_chunk: int
    decode_storage: StorageName
    batch: int
    ragged: bool
    ignore_eos: bool
    prompt_cache: bool
    seed: int
    label: str | None


class BenchRecord(Record):
    """A bench run, begun at ``created`` (UTC).

    A line of ``--json -`` is such a record too, with one row or one unmeasured path in it.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, alias="schema")
    kind: Literal["bench"] = "bench"
    created: datetime
    environment: Environment
    config: BenchConfig
    probe: BandwidthProbe
    rows: list[BenchRow]
    unmeasured: list[Unmeasured]
