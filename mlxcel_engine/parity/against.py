"""Compares the streams of a record with those of an earlier one: a regression against yesterday. No MLX.

A record keeps the five likeliest logprobs of a step, so noise and gaps are those of tokens that stand in both lists.
"""

from __future__ import annotations

from itertools import product
from math import inf, isnan
from typing import TYPE_CHECKING

from mlxcel_engine.errors import UsageError
from mlxcel_engine.parity.compare import NOISE_BOUNDS
from mlxcel_engine.records.parity import PairEvidence, ParityRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_engine.records.parity import ParityConfig, ParityRecord, StreamRecord, TopLogprob, VerdictName

_EARLIER = "@record"


def check_comparable(now: ParityConfig, earlier: ParityRecord) -> None:
    """Refuse a record that was cut off, of another model, length or setting of a case, or without a common stream.

    A stream that could not run in the record is none.

    Raises:
        UsageError: says so, or names the setting and both values.

    """
    if not earlier.complete:
        raise UsageError("--against: the record is incomplete; run it to its end, or give another")
    settings = {
        "model": (now.model.label, earlier.config.model.label),
        "--max-tokens": (now.max_tokens, earlier.config.max_tokens),
    }
    cases = {case.name: case.sampling for case in earlier.config.cases}
    for case in now.cases:
        other = cases.get(case.name, case.sampling)
        for key in {**case.sampling, **other}:
            settings[f"{key} of case {case.name}"] = (case.sampling.get(key), other.get(key))
    for name, (here, there) in settings.items():
        if here != there:
            raise UsageError(f"--against: {name} is {here} here and {there} in the record; make them the same")
    names = ([case.name for case in now.cases], [prompt.name for prompt in now.prompts], now.paths)
    ran = {_key(stream) for stream in earlier.streams if stream.unavailable is None}
    if not ran.intersection(product(*names)):
        raise UsageError("--against: the record has no stream of these cases, prompts and paths; give another record")


def compare_with_record(
    now: ParityRecord, earlier: ParityRecord, decode: Callable[[int], str] | None = None
) -> list[ParityRow]:
    """One row for each stream of the two; what one of them does not have is n/a.

    ``decode`` gives a token's text; without it, as for a record that is shown again, the rows have none.
    """
    known = {_key(stream): stream for stream in earlier.streams}
    bound = now.config.noise_bound
    if bound is None:
        dtypes = (now.environment.dtype, earlier.environment.dtype)
        bound = max(NOISE_BOUNDS.get(dtype, NOISE_BOUNDS["float32"]) for dtype in dtypes)
    drawn = {case.name for case in now.config.cases if case.effective.seed is not None}
    rows: list[ParityRow] = []
    for stream in now.streams:
        row = _row(stream, known.pop(_key(stream), None), bound, drawn=stream.case in drawn)
        rows.append(row if decode is None else _with_texts(row, decode))
    return rows + [_empty_row(stream, None, stream, "it was not run now") for stream in known.values()]


def _key(stream: StreamRecord) -> tuple[str, str, str]:
    return stream.case, stream.prompt, stream.path


def _row(now: StreamRecord, earlier: StreamRecord | None, bound: float, *, drawn: bool) -> ParityRow:
    row = _empty_row(now, now, earlier, "the record has no such stream")
    if earlier is None:
        return row
    obstacle = _obstacle(now, earlier)
    if obstacle is not None:
        return row.model_copy(update={"verdict": obstacle[0], "reason": obstacle[1]})
    return _compared(row, now, earlier, bound, drawn=drawn)


def _empty_row(named: StreamRecord, now: StreamRecord | None, earlier: StreamRecord | None, reason: str) -> ParityRow:
    sides = [stream.evidence if stream is not None else None for stream in (now, earlier)]
    return ParityRow(
        case=named.case,
        prompt=named.prompt,
        left=named.path,
        right=f"{named.path}{_EARLIER}",
        verdict="n/a",
        reason=reason,
        evidence=PairEvidence(left=sides[0], right=sides[1]),
    )


def _with_texts(row: ParityRow, decode: Callable[[int], str]) -> ParityRow:
    texts = [None if token is None else decode(token) for token in (row.left_token, row.right_token)]
    return row.model_copy(update={"left_text": texts[0], "right_text": texts[1]})


def _obstacle(now: StreamRecord, earlier: StreamRecord) -> tuple[VerdictName, str] | None:
    if now.prompt_sha256 != earlier.prompt_sha256:
        return "invalid", "the prompt ids differ"
    for stream, when in ((now, "now"), (earlier, "in the record")):
        if stream.unavailable is not None:
            return "n/a", f"{when}: {stream.unavailable}"
        if stream.invalid is not None:
            return "invalid", f"{when}: {stream.invalid}"
    return None if now.ids or earlier.ids else ("invalid", "both streams are empty")


def _compared(row: ParityRow, now: StreamRecord, earlier: StreamRecord, bound: float, *, drawn: bool) -> ParityRow:
    shared = min(len(now.ids), len(earlier.ids))
    index = next((i for i in range(shared) if now.ids[i] != earlier.ids[i]), shared)
    steps = zip(now.top_logprobs[: index + 1], earlier.top_logprobs[: index + 1], strict=False)
    differences = [_difference(one, two) for one, two in steps]
    noise = max(differences[:index], default=None)
    logits = "differ" if any(difference > bound for difference in differences) else "close"
    row = row.model_copy(
        update={"differences": differences, "max_abs_logprob_diff": noise, "logits": logits, "reason": ""}
    )
    if index == len(now.ids) == len(earlier.ids):
        if (now.finish_reason, now.text) != (earlier.finish_reason, earlier.text):
            reason = "same ids, but another finish reason or text"
            return row.model_copy(update={"verdict": "diverged", "reason": reason, "index": index})
        if noise is not None and noise > bound:
            reason = f"same ids, but the noise {noise:.2g} is beyond the bound {bound:g}"
            return row.model_copy(update={"verdict": "drift", "reason": reason})
        return row.model_copy(update={"verdict": "identical"})
    verdict, reason = _judge(now, earlier, index, noise, bound, drawn=drawn)
    tokens = [stream.ids[index] if index < len(stream.ids) else None for stream in (now, earlier)]
    return row.model_copy(
        update={
            "verdict": verdict,
            "reason": reason,
            "index": index,
            "left_token": tokens[0],
            "right_token": tokens[1],
        }
    )


def _judge(
    now: StreamRecord, earlier: StreamRecord, index: int, noise: float | None, bound: float, *, drawn: bool
) -> tuple[VerdictName, str]:
    if index >= min(len(now.ids), len(earlier.ids)):
        return "diverged", f"one of them goes on after {index} tokens"
    if drawn:
        return "diverged", "a seeded draw cannot be judged from a record"
    if noise is not None and noise > bound:
        return "diverged", f"the noise before it, {noise:.2g}, is beyond the bound {bound:g}"
    limit = bound if noise is None else 2 * noise
    tops = [{item.token: item.logprob for item in stream.top_logprobs[index]} for stream in (now, earlier)]
    tokens = now.ids[index], earlier.ids[index]
    for top, own in zip(tops, tokens, strict=True):
        if own not in top or any(logprob > top[own] for logprob in top.values()):
            return "diverged", "one of them took a token that is not its own best"
    if any(token not in top for top in tops for token in tokens):
        return "diverged", "the other token is not among the five likeliest"
    gaps = [_apart(*(top[token] for token in tokens)) for top in tops]
    near = max(gaps) <= limit
    return (
        "near-tie" if near else "diverged"
    ), f"the gap {max(gaps):.2g} is {'within' if near else 'beyond'} {limit:.2g}"


def _difference(one: list[TopLogprob], other: list[TopLogprob]) -> float:
    """The largest of the tokens in both; infinite if there is none."""
    known = {item.token: item.logprob for item in other}
    return max((_apart(item.logprob, known[item.token]) for item in one if item.token in known), default=inf)


def _apart(one: float, other: float) -> float:
    """How far apart two logprobs are; equal infinities not at all, a NaN infinitely."""
    difference = 0.0 if one == other else abs(one - other)
    return inf if isnan(difference) else difference
