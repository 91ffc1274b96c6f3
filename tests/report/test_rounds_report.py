"""The table, the CSV and the pictures say what the record says."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from mlxcel_engine.records.rounds import RoundsRecord
from mlxcel_engine.report.rounds_csv import rounds_csv
from mlxcel_engine.report.rounds_plot import rounds_plot
from mlxcel_engine.report.rounds_table import print_rounds, rounds_svg
from mlxcel_engine.rounds.summary import summarise
from tests.rounds.fakes import config, header, run

SVG = "{http://www.w3.org/2000/svg}"
SPEEDS = [
    (100.0, 106.0, 100.2),
    (101.0, 107.5, 100.6),
    (99.0, 104.8, 99.4),
    (100.0, 106.1, 99.7),
    (100.5, 106.6, 100.1),
]
TABLE = """\
5 rounds of 2 arms on default, ctx 256, 32 new tokens:
  a='--path cli' (the reference)
  b='--path cli'
mlx 0.32.4, mlx-lm 0.32.2, None, on None
threshold: decode 0.5 % (the widest null pair), TTFT 0.5 % (the widest null pair)

arm     path  ctx  runs  decode tok/s  range             TTFT ms  range
a       cli   256     5        100.00  99.00 to 101.00      50.0  50.0 to 50.0
b       cli   256     5        106.10  104.80 to 107.50     50.0  50.0 to 50.0
a-null  cli   256     5        100.10  99.40 to 100.60      50.0  50.0 to 50.0

arm - reference  path  ctx  figure  median  range         95 % interval  n  verdict        why
b - a            cli   256  decode  +6.1 %  +5.9 to +6.4  +5.9 to +6.4   5  faster         faster than both runs of the reference in 5 of 5 rounds
b - a            cli   256  TTFT     0.0 %  0.0 to 0.0    0.0 to 0.0     5  no difference  its interval is within 0.5 %
a-null - a       cli   256  decode  -0.3 %  -0.4 to +0.4  -0.4 to +0.4   5  no difference  its interval is within 0.5 %
a-null - a       cli   256  TTFT     0.0 %  0.0 to 0.0    0.0 to 0.0     5  no difference  its interval is within 0.5 %

drift at 256 tokens: the rounds ran at 99.0 % (round 3) to 101.0 % (round 2) of the median speed
note: b against a, cli at 256 tokens: they do not generate the same tokens
"""  # noqa: E501


def record(*, null: bool = True, count: int = 5) -> RoundsRecord:
    runs = []
    for number, (a, b, again) in enumerate(SPEEDS[:count]):
        runs += [run(number, "a", a), run(number, "b", b, token_hash="other")]
        runs += [run(number, "a", again, null=True)] if null else []
    return summarise(header(config("a", "b")), runs, None)


def shown(what: RoundsRecord) -> str:
    console = Console(file=io.StringIO(), width=1000, highlight=False)
    print_rounds(what, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_to_the_letter() -> None:
    assert shown(record()) == TABLE


def test_below_5_rounds_figures_but_no_claim() -> None:
    text = shown(record(count=3))
    assert "unresolved  rounds that count: 3, a claim needs 5; about 5 rounds would probably resolve it" in text
    assert "faster" not in text


def test_an_empty_record_and_one_without_null_runs_are_shown() -> None:
    assert "nothing measured" in shown(record(count=0))
    assert "threshold: decode unknown (the widest null pair)" in shown(record(null=False))


def test_the_csv_has_the_fields_of_the_record() -> None:
    rows = list(csv.DictReader(io.StringIO(rounds_csv(record()))))
    assert len(rows) == 4
    assert {"arm", "reference", "null", "path", "ctx", "metric", "n", "median_pct", "low_pct", "high_pct"} < set(
        rows[0]
    )
    assert {"ci_low_pct", "ci_high_pct", "verdict"} < set(rows[0])
    assert (rows[0]["arm"], rows[0]["verdict"], rows[0]["n"]) == ("b", "faster", "5")
    assert float(rows[0]["median_pct"]) == record().rows[0].median_pct


def test_the_summary_as_a_picture_needs_nothing_from_elsewhere() -> None:
    svg = rounds_svg(record())
    text = "".join(ET.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "faster" in text
    assert "url(http" not in svg.replace('url("http', "url(http")


def test_the_plot_has_a_panel_a_context_a_dot_a_round_and_the_null_band() -> None:
    svg = ET.fromstring(rounds_plot(record()))
    name = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{name}circle")) == 2 * 5 + 2  # two arms' rounds, and their places in the legend
    assert len(svg.findall(f"{name}polyline")) == 1
    assert [title.text for title in svg.iter(f"{name}title")] == ["null band"]
    said = [text.text for text in svg.findall(f"{name}text")]
    assert "decode tok/s against a, ctx 256" in said
    assert "b, cli: faster" in said
    assert "a-null, cli: null" in said


def test_the_plot_stays_within_its_panel_and_copes_with_one_round_and_with_none() -> None:
    for count in (0, 1, 2, 5):
        svg = ET.fromstring(rounds_plot(record(count=count)))
        for circle in svg.iter("{http://www.w3.org/2000/svg}circle"):
            assert 50 <= float(circle.attrib["cy"]) <= 50 + 220


@pytest.mark.parametrize("speed", [1e-9, 1e-3, 1e4, 1e9, 1e12])
def test_the_plot_of_any_change_has_few_ticks(speed: float) -> None:
    runs = [one for number in range(2) for one in (run(number, "a", 100.0), run(number, "b", speed))]
    svg = ET.fromstring(rounds_plot(summarise(header(config("a", "b")), runs, 1.0)))
    ticks = [text.text or "" for text in svg.iter(f"{SVG}text") if (text.text or "").endswith(" %")]
    assert 2 <= len(ticks) <= 12
    assert all(len(tick) <= 11 for tick in ticks)
    assert "+0 %" in ticks
    for circle in svg.iter(f"{SVG}circle"):
        assert 50 <= float(circle.attrib["cy"]) <= 50 + 220


def test_control_characters_reach_neither_terminal_nor_picture() -> None:
    odd = "\x1b[2Jgone\x07\x00"
    failed = run(0, "b", None, status="crashed").model_copy(update={"reason": odd})
    arms = config("a", "b").model_copy(update={"model": odd, "extra": ["--label", odd]})
    what = summarise(header(arms), [run(0, "a", 100.0, path=odd), run(1, "b", 100.0, path=odd), failed], None)
    assert failed.reason in what.runs[2].reason
    for text in (shown(what), rounds_svg(what), rounds_plot(what)):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "gone\\x07\\x00" in shown(what)
    for svg in (rounds_svg(what), rounds_plot(what)):
        ET.fromstring(svg)


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    what = summarise(header(config("a", "b")), [run(0, "a", 1.0, path="[red]x"), run(0, "b", 1.0, path="[red]x")], None)
    assert "[red]x" in shown(what)


def test_the_record_reads_back() -> None:
    assert RoundsRecord.model_validate_json(record().model_dump_json()) == record()
