"""The rounds file survives being cut anywhere, and refuses what is not its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_engine.errors import UsageError
from mlxcel_engine.rounds.journal import Journal, read_journal
from tests.rounds.fakes import config, header, run

CONFIG = config("a", "b")
RUNS = [run(0, "a", 10.0), run(0, "b", 11.0), run(0, "a", 10.1, null=True), run(1, "b", None, status="crashed")]


def write(path: Path) -> bytes:
    with Journal(str(path), header(CONFIG), resume=False, force=False) as journal:
        for one in RUNS:
            journal.append(one)
    return path.read_bytes()


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert write(path).count(b"\n") == 1 + len(RUNS)
    contents = read_journal(str(path))
    assert (contents.header, list(contents.runs), contents.torn) == (header(CONFIG), RUNS, False)


@settings(max_examples=60)
@given(st.data())
def test_a_file_cut_anywhere_goes_on_with_its_whole_lines(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl"
        whole = write(path)
        first = whole.index(b"\n") + 1
        cut = data.draw(st.integers(first, len(whole)))
        path.write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n") - 1
        assert read_journal(str(path)).torn == (not whole[:cut].endswith(b"\n"))
        with Journal(str(path), header(CONFIG), resume=True, force=False) as journal:
            assert list(journal.runs) == RUNS[:kept]
            assert journal.torn == (not whole[:cut].endswith(b"\n"))
            for one in RUNS[kept:]:
                journal.append(one)
        assert path.read_bytes() == whole


def test_each_record_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Journal(str(path), header(CONFIG), resume=False, force=False) as journal:
        assert path.read_bytes().count(b"\n") == 1
        journal.append(RUNS[0])
        assert list(read_journal(str(path)).runs) == RUNS[:1]


def test_an_existing_file_is_resumed_or_replaced_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    whole = write(path)
    with pytest.raises(UsageError, match=r"exists; go on with --resume, replace it with --force"):
        Journal(str(path), header(CONFIG), resume=False, force=False)
    assert path.read_bytes() == whole
    with Journal(str(path), header(CONFIG), resume=False, force=True) as journal:
        assert journal.runs == ()
    assert path.read_bytes().count(b"\n") == 1


def test_resuming_what_is_not_there_or_empty_begins_it(tmp_path: Path) -> None:
    for name in ("new.jsonl", "empty.jsonl"):
        if name.startswith("empty"):
            (tmp_path / name).touch()
        with Journal(str(tmp_path / name), header(CONFIG), resume=True, force=False) as journal:
            assert journal.runs == ()
        assert read_journal(str(tmp_path / name)).header == header(CONFIG)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rounds": 6}, "another rounds: 5 there, 6 here"),
        ({"ctx": [256, 512]}, r"another ctx: \[256\] there, \[256, 512\] here"),
        ({"arms": config("a", "c").arms}, "another arms: .*b='--path cli'.* there, .*c='--path cli'"),
        ({"model": "x"}, "another model: default there, x here"),
    ],
)
def test_another_configuration_is_refused(changed: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    whole = write(path)
    with pytest.raises(UsageError, match=said):
        Journal(str(path), header(CONFIG.model_copy(update=changed)), resume=True, force=False)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00\xff\n", b'{"kind":"bench","schema":1}\n', b"[]\n"])
def test_a_foreign_file_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no rounds file"):
        read_journal(str(path))
    if content:
        with pytest.raises(UsageError, match="is no rounds file"):
            Journal(str(path), header(CONFIG), resume=True, force=False)
        assert path.read_bytes() == content


def test_a_bad_or_double_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = write(path).split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], b"{}", *lines[3:]]))
    with pytest.raises(UsageError, match="line 4: no record of a run"):
        read_journal(str(path))
    path.write_bytes(b"\n".join([*lines[:3], lines[2], *lines[3:]]))
    with pytest.raises(UsageError, match="line 4: repeats round 1 of b"):
        read_journal(str(path))


def test_a_file_with_another_order_of_runs_is_read_and_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(write(path).replace(b'"order":"williams",', b""))
    before = path.read_bytes()
    assert (read_journal(str(path)).header.order, len(read_journal(str(path)).runs)) == ("rotation", len(RUNS))
    with pytest.raises(UsageError, match="begun with another order of runs: rotation there, williams here"):
        Journal(str(path), header(CONFIG), resume=True, force=False)
    assert path.read_bytes() == before


def test_resuming_what_cannot_be_read_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    write(path)

    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(UsageError, match=r"r\.jsonl cannot be read \(Permission denied\)"):
        Journal(str(path), header(CONFIG), resume=True, force=False)


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with (
        Journal(str(path), header(CONFIG), resume=False, force=False),
        pytest.raises(UsageError, match="is in use by another run"),
    ):
        Journal(str(path), header(CONFIG), resume=True, force=True)


def test_places_that_cannot_be_written_or_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a regular file"):
        Journal(str(tmp_path), header(CONFIG), resume=False, force=True)
    with pytest.raises(UsageError, match="cannot be written"):
        Journal(str(tmp_path / "no" / "r.jsonl"), header(CONFIG), resume=False, force=False)
    with pytest.raises(UsageError, match="cannot be read"):
        read_journal(str(tmp_path / "none.jsonl"))
