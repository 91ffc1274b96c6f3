"""The tables of a parity record. Only renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.text import Text

from mlxcel_engine.printable import printable
from mlxcel_engine.report.parity_details import difference_lines
from mlxcel_engine.report.parity_summary import summary_table
from mlxcel_engine.report.sparkline import scale, sparkline
from mlxcel_engine.report.table import make_table, plain, print_plainly

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mlxcel_engine.records.evidence import Evidence
    from mlxcel_engine.records.parity import CaseRecord, ForcedRow, ParityRecord, ParityRow, PromptRecord, StreamRecord

STYLES = {
    "identical": "green",
    "near-tie": "yellow",
    "drift": "red",
    "diverged": "bold red",
    "invalid": "bold red",
    "n/a": "dim",
}
_NARROW = 120  # columns; below, evidence and text have tables of their own


def print_parity(record: ParityRecord, console: Console) -> None:
    """Print what ran, each path's stream, and one row a pair; off a terminal without padding at a line's end."""
    print_plainly(console, lambda: _Printer(console).record(record))


class _Printer:
    """Prints to one console: a terminal of some width, or a pipe, where a row is a line however long."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plain = not console.is_terminal
        self._narrow = console.is_terminal and console.width < _NARROW
        self._ascii = not console.encoding.lower().startswith("utf")

    def record(self, record: ParityRecord) -> None:
        for line in _heading(record, scale(ascii_only=self._ascii)):
            self._console.print(plain(line))
        for case in record.config.cases:
            for prompt in record.config.prompts:
                self._section(record, case.name, prompt)
        self._elsewhere(record)
        if len(record.config.prompts) > 1 and record.rows:
            self._console.print()
            self._console.print(summary_table(record.rows, self._table))
        if not record.complete:
            self._console.print()
            self._console.print(Text("incomplete: the run was stopped before its end", style="bold red"))

    def _section(self, record: ParityRecord, case: str, prompt: PromptRecord) -> None:
        def here(item: StreamRecord | ParityRow | ForcedRow) -> bool:
            return (item.case, item.prompt) == (case, prompt.name)

        streams = [stream for stream in record.streams if here(stream)]
        if not streams:
            return
        how = "chat template" if prompt.chat_template else "raw"
        self._console.print()
        title = f"{case}, {prompt.name} ({len(prompt.ids)} tokens, {how}): {_short(prompt.text, 60)}"
        self._console.print(plain(title, style="" if self._plain else "bold"))
        self._streams(streams)
        rows = [row for row in record.rows if here(row)]
        if rows:
            self._console.print(self._pairs(rows))
        for row in rows:
            for line in difference_lines(row, ascii_only=self._ascii):
                self._console.print(plain(line))
        forced = [row for row in record.forced if here(row)]
        if forced:
            self._console.print(self._forced(forced))

    def _elsewhere(self, record: ParityRecord) -> None:
        """The rows of cases and prompts that only an earlier record has."""
        here = {(stream.case, stream.prompt) for stream in record.streams}
        rows = [row for row in record.rows if (row.case, row.prompt) not in here]
        if rows:
            self._console.print()
        for row in rows:
            for line in difference_lines(row, ascii_only=self._ascii):
                self._console.print(plain(f"{row.case}, {row.prompt}: {line}"))

    def _streams(self, streams: list[StreamRecord]) -> None:
        if self._narrow:
            table, evidence = self._table("path", "tokens", "finish", "text"), self._table("path", "evidence")
            for path, tokens, finish, seen, text in _stream_cells(streams):
                table.add_row(path, tokens, finish, text)
                evidence.add_row(path, seen)
            self._console.print(table)
            self._console.print(evidence)
            return
        table = self._table("path", "tokens", "finish", "evidence", "text")
        for cells in _stream_cells(streams):
            table.add_row(*cells)
        self._console.print(table)

    def _pairs(self, rows: list[ParityRow]) -> Table:
        table = self._table("pair", "verdict", "logits", "noise", "each step's difference")
        for row in rows:
            verdict = Text(row.verdict, style=STYLES[row.verdict])
            if row.index is not None:
                verdict.append(f" at {row.index}")
            noise = "-" if row.max_abs_logprob_diff is None else f"{row.max_abs_logprob_diff:.2g}"
            marks = sparkline(row.differences, 20 if self._narrow else 40, ascii_only=self._ascii)
            table.add_row(plain(f"{row.left} - {row.right}"), verdict, row.logits or "-", noise, Text(marks))
        return table

    def _forced(self, rows: list[ForcedRow]) -> Table:
        table = self._table(
            escape(printable(f"over {rows[0].reference}'s tokens")), "steps", "largest", "mean", "largest KL", "top-1"
        )
        for row in rows:
            pair = plain(f"{row.left} - {row.right}")
            if row.max_abs_logprob_diff is None:
                table.add_row(pair, "-", plain(row.reason))
                continue
            figures = (row.max_abs_logprob_diff, row.mean_abs_logprob_diff, row.kl_max)
            shown = ["-" if figure is None else f"{figure:.2g}" for figure in figures]
            table.add_row(pair, str(row.steps), *shown, f"{100 * (row.top1_agreement or 0):.1f} %")
        return table

    def _table(self, *columns: str) -> Table:
        return make_table(self._console, *columns)


def _heading(record: ParityRecord, marks: str) -> list[str]:
    model, env, config = record.config.model, record.environment, record.config
    bound = "by dtype" if config.noise_bound is None else f"{config.noise_bound:g}"
    switch = "on" if env.deterministic else "off"
    shapes = "" if config.invariant is None else f", invariant {config.invariant}"
    return [
        f"{model.label}: {model.architecture}, {env.dtype}, {model.weights} weights, on {env.device_name}",
        f"mlx {env.mlx}, mlx-lm {env.mlx_lm}, BLAS {env.blas}, deterministic {switch}, "
        f"noise bound {bound}, chunk {config.prefill_chunk}{shapes}",
        f"differences of logprobs in nats; marks: {marks}",
        *(_sampling(case) for case in config.cases if case.effective.seed is not None or len(case.effective.order) > 1),
    ]


def _sampling(case: CaseRecord) -> str:
    acts = case.effective
    seed = "" if acts.seed is None else f"; seed {acts.seed}"
    windows = f"; windows: penalties {acts.repeat_last_n}, DRY {acts.dry_penalty_last_n}"
    return f"{case.name}: {', '.join(acts.order)}{windows}{seed}"


def _stream_cells(streams: list[StreamRecord]) -> list[tuple[Text, str, Text, Text, Text]]:
    """Path, tokens, finish, evidence and text of each; a text that was shown already is named by its path."""
    cells = []
    first: dict[str, str] = {}
    for stream in streams:
        if stream.unavailable is not None or stream.invalid is not None:
            why = f"n/a: {stream.unavailable}" if stream.unavailable is not None else f"invalid: {stream.invalid}"
            cells.append((plain(stream.path), "-", plain("-"), plain(why), plain("-")))
            continue
        same = first.setdefault(stream.text, stream.path)
        shown = repr(stream.text) if same == stream.path else f"the same as {same}"
        count, finish = str(len(stream.ids)), plain(stream.finish_reason or "none")
        cells.append((plain(stream.path), count, finish, _evidence(stream.evidence), plain(shown)))
    return cells


def _evidence(evidence: Evidence | None) -> Text:
    if evidence is None:
        return plain("-")
    parts = [evidence.storage]
    if evidence.attention_calls is not None:
        parts.append(f"attention calls={evidence.attention_calls}")
    if evidence.prompt_cache:
        parts.append(f"prompt cache on, adopted {evidence.adopted}")
    parts.append("prompt " + "+".join(f"[{start},{stop})" for start, stop in evidence.partition))
    parts.append(f"{evidence.decode_forwards} decode forwards")
    if evidence.widest_batch > 1:
        parts.append(f"up to {evidence.widest_batch} rows")
    return plain("; ".join([*parts, *evidence.notes]))


def _short(text: str, length: int) -> str:
    shown = repr(text)
    return shown if len(shown) <= length else shown[: length - 4] + "...'"
