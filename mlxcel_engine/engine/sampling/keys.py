"""Keys of the random draws: pure functions of (seed, position, purpose). No MLX, no state."""

from __future__ import annotations

from typing import Final

TOKEN: Final = 0  # the purpose of a key: the draw of the token,
XTC: Final = 1  # and XTC's coin

_MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    """SplitMix64's step (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def draw_key(seed: int, position: int, purpose: int = TOKEN) -> tuple[int, int]:
    """The two uint32 words of an MLX random key for the draw at ``position`` (tokens drawn before it).

    For one seed, different positions and purposes never share a key: the mix is a bijection of 64 bits.
    """
    key = _mix(_mix(seed & _MASK) ^ (2 * position + purpose))
    return key >> 32, key & 0xFFFFFFFF
