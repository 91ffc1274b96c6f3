"""The bench record: one row per measurement, with the raw arrival times that it was computed from."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from mlxcel_engine.records.base import SCHEMA_VERSION, Record, SchemaVersion
from mlxcel_engine.records.environment import Environment
from mlxcel_engine.records.model import ModelRecord

WarmupName = Literal["full", "chunk", "none"]
StorageName = Literal["auto", "dense", "paged"]


class BandwidthProbe(Record):
    """The memory bandwidth that the limit is put against, probed in the same run, in GB/s (10^9 bytes)."""

    device: str
    """``cpu`` or ``gpu``."""
    dtype: str
    """Of the matrix."""
    buffer_bytes: int
    """Size of the matrix."""
    cache_bytes: int | None
    """The last-level cache; None where the system does not tell."""
    read_gb_s: float
    """A matrix-vector product over the matrix; the fastest of its samples."""
    copy_gb_s: float
    """A copy of it, bytes read and bytes written both counted; the fastest of its samples."""
    read_samples: list[float]
    """GB/s of every run."""
    copy_samples: list[float]
    """GB/s of every run."""


class StreamSample(Record):
    """One stream of a timed pass."""

    prompt_tokens: int
    """Tokens fed."""
    tokens: int
    """Tokens generated."""
    finish_reason: str | None
    """``stop``, ``length``, or None where the loop gave none."""
    arrivals_ms: list[float]
    """When each token was on the host, in ms since the request was submitted."""


class BenchRow(Record):
    """One timed pass of one path at one context. What cannot be computed is None, never a guess.

    The ratios are to a row of the same ctx, where both generated as many tokens and, in a line that is written as it
    comes, that row was measured before.
    """

    path: str
    """What ran."""
    ctx: int
    """The context that was asked for, in tokens."""
    prompt_tokens: int
    """What was fed, all streams together."""
    batch: int
    """Streams at once."""
    storage: str
    """What held the keys and values."""
    chunk: int
    """Prompt tokens that went through the model at once."""
    tokens: int
    """Generated ones of all streams."""
    finish_reason: str | None
    """``stop`` or ``length``; ``mixed`` where streams differ."""
    ended_early: bool
    """A stream stopped before as many tokens as were asked for."""
    ttft_ms: float | None
    """Submission to the first token on the host; the median over the streams."""
    decode_tok_s: float | None
    """(tokens - 1) / (last - first) for one stream; of several, the sum of rates while all decode."""
    stream_tok_s: list[float | None]
    """Each stream's own decode speed, to its end."""
    prefill_tok_s: float | None
    """The prompt over the time to the (last stream's) first token."""
    itl_ms_p50: float | None
    """Median of the gaps between tokens."""
    itl_ms_p95: float | None
    """95th percentile of them."""
    peak_memory_bytes: int
    """MLX's memory at its highest during the pass, weights included."""
    kv_bytes: int
    """What keys and values of all streams take at the end, without spare room."""
    weight_bytes: int
    """Weights in memory."""
    bytes_per_token: float | None
    """What a token has to read on average: the weights that a step uses and the KV so far, over the batch."""
    limit_pct: float | None
    """100 * ``bytes_per_token`` * ``decode_tok_s`` / ``bandwidth_gb_s``."""
    bandwidth_gb_s: float
    """The probe's ``read_gb_s``, in 10^9 bytes a second."""
    ratio_to_cli: float | None
    """``decode_tok_s`` over that of the ``cli`` row."""
    ratio_to_mlx_server: float | None
    """``decode_tok_s`` over that of the ``mlx-server`` row."""
    attention_calls: int | None
    """Calls into paged KV during the pass; None on mlx-lm's own caches."""
    token_hash: str
    """Equal where two rows gave the same ids."""
    warmup: WarmupName
    """What ran before the timed pass."""
    ttft_warm_ms: float | None
    """``ttft_ms`` of the same prompt asked again, with the prompt cache on."""
    label: str | None
    """``--label``."""
    samples: list[StreamSample]
    """The raw times, a stream each."""


class Unmeasured(Record):
    """A path that gave no row at a context.

    Beside a row of that path, it is the figures with the prompt cache that are not there.
    """

    path: str
    """What should have run."""
    ctx: int
    """Tokens asked for."""
    reason: str
    """Why there is no row."""
    failed: bool
    """It broke; else it cannot run what was asked."""


class BenchConfig(Record):
    """What was asked for."""

    model: ModelRecord
    """The checkpoint."""
    paths: list[str]
    """What is measured."""
    ctx: list[int]
    """Prompt tokens, one or more."""
    max_tokens: int
    """Tokens to generate."""
    warmup: WarmupName
    """As it was resolved for the device."""
    warmup_tokens: int
    """Tokens decoded in a warm-up."""
    prefill_chunk: int
    """Prompt tokens that may go through the model at once."""
    decode_storage: StorageName
    """``--decode-storage``."""
    batch: int
    """Streams at once."""
    ragged: bool
    """Prompts of a batch are spread evenly from ctx/N to ctx tokens."""
    ignore_eos: bool
    """Run past the end of text."""
    prompt_cache: bool
    """Ask each prompt again, with the prompt cache on."""
    seed: int
    """What the prompts are drawn from."""
    label: str | None
    """``--label``."""
    invariant: str | None = None
    """Width and chunk (``2,256``) of the paths of the invariant mode, None without them."""


class BenchRecord(Record):
    """A bench run.

    A line of ``--json -`` is such a record too, with one row or one unmeasured path in it.
    """

    schema_version: SchemaVersion = Field(default=SCHEMA_VERSION, alias="schema")
    """Version of this form."""
    kind: Literal["bench"] = "bench"
    """What it is a record of."""
    created: datetime
    """When the run began, in UTC."""
    environment: Environment
    """The machine and the software."""
    config: BenchConfig
    """What was asked for."""
    probe: BandwidthProbe
    """The bandwidth."""
    rows: list[BenchRow]
    """What was measured."""
    unmeasured: list[Unmeasured]
    """What was not."""
