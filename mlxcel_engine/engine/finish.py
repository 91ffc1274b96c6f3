"""When a sequence ends. No MLX: decided on the host from the token that was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class StopRules:
    """``eos_ids`` end a sequence with ``stop``; ``max_tokens`` generated tokens (EOS counted) with ``length``."""

    eos_ids: frozenset[int]
    max_tokens: int


def finish_step(token: int, generated: int, rules: StopRules) -> FinishReason | None:
    """Why the sequence ends with ``token``, its ``generated``-th (from 1), or None; EOS wins over the limit."""
    if token in rules.eos_ids:
        return "stop"
    return "length" if generated >= rules.max_tokens else None
