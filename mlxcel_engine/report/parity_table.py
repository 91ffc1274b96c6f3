"""The table of a parity record, and the streams beside it. Only renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from mlxcel_engine.report.table import make_table, print_plainly

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mlxcel_engine.records.evidence import Evidence
    from mlxcel_engine.records.parity import ParityRecord, ParityRow, StreamRecord

_STYLES = {
    "identical": "green",
    "near-tie": "yellow",
    "drift": "red",
    "diverged": "bold red",
    "invalid": "bold red",
    "n/a": "dim",
}


def print_parity(record: ParityRecord, console: Console) -> None:
    """Print what ran, each path's stream, and one row a pair; off a terminal without padding at a line's end."""
    print_plainly(console, lambda: _print(record, console))


def _print(record: ParityRecord, console: Console) -> None:
    for line in _heading(record):
        console.print(Text(line))
    for case in record.config.cases:
        for prompt in record.config.prompts:
            console.print()
            how = "chat template" if prompt.chat_template else "raw"
            text = f"{case}, {prompt.name} ({len(prompt.ids)} tokens, {how}): {_short(prompt.text, 60)}"
            console.print(Text(text))
            streams = [s for s in record.streams if (s.case, s.prompt) == (case, prompt.name)]
            console.print(_streams_table(streams, console))
            console.print(_pairs_table([r for r in record.rows if (r.case, r.prompt) == (case, prompt.name)], console))


def _heading(record: ParityRecord) -> list[str]:
    model, env, config = record.config.model, record.environment, record.config
    bound = "by dtype" if config.noise_bound is None else f"{config.noise_bound:g}"
    switch = "on" if env.deterministic else "off"
    return [
        f"{model.label}: {model.architecture}, {env.dtype}, {model.weights} weights, on {env.device_name}",
        f"mlx {env.mlx}, mlx-lm {env.mlx_lm}, BLAS {env.blas}, deterministic {switch}, "
        f"noise bound {bound}, chunk {config.prefill_chunk}",
    ]


def _streams_table(streams: list[StreamRecord], console: Console) -> Table:
    table = make_table(console, "path", "tokens", "finish", "evidence", "text")
    first: dict[str, str] = {}
    for stream in streams:
        if stream.unavailable or stream.invalid:
            table.add_row(stream.path, "-", "-", Text(stream.unavailable or stream.invalid or ""), "-")
        else:
            finish = stream.finish_reason or "none"
            same = first.setdefault(stream.text, stream.path)
            shown = Text(repr(stream.text) if same == stream.path else f"the same as {same}")
            table.add_row(stream.path, str(len(stream.ids)), finish, _evidence(stream.evidence), shown)
    return table


def _pairs_table(rows: list[ParityRow], console: Console) -> Table:
    table = make_table(console, "pair", "verdict", "logits", "noise", "first difference")
    for row in rows:
        verdict = Text(row.verdict, style=_STYLES[row.verdict])
        if row.index is not None:
            verdict.append(f" at {row.index}")
        noise = "-" if row.max_abs_logprob_diff is None else f"{row.max_abs_logprob_diff:.2g}"
        table.add_row(f"{row.left} - {row.right}", verdict, row.logits or "-", noise, Text(_difference(row)))
    return table


def _difference(row: ParityRow) -> str:
    if row.index is None:
        return row.reason
    sides = (_token(row.left_token, row.left_text), _token(row.right_token, row.right_text))
    tokens = "" if row.left_token is None and row.right_token is None else f"{sides[0]} against {sides[1]}: "
    return tokens + row.reason


def _token(token: int | None, text: str | None) -> str:
    return "the end" if token is None else f"{token} {text!r}"


def _evidence(evidence: Evidence | None) -> Text:
    if evidence is None:
        return Text("-")
    parts = [evidence.storage]
    if evidence.attention_calls is not None:
        parts.append(f"attention calls={evidence.attention_calls}")
    parts.append("prompt " + "+".join(f"[{start},{stop})" for start, stop in evidence.partition))
    parts.append(f"{evidence.decode_forwards} decode forwards")
    return Text("; ".join([*parts, *evidence.notes]))


def _short(text: str, length: int) -> str:
    shown = repr(text)
    return shown if len(shown) <= length else shown[: length - 4] + "...'"
