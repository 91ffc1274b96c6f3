from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlxcel_engine.errors import CheckpointError
from mlxcel_engine.loader.cache import CheckpointCache, default_cache_root

if TYPE_CHECKING:
    from collections.abc import Callable


class Maker:
    """Writes two files and counts how often it was asked to."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.calls = 0
        self.pause_s = pause_s

    def __call__(self, directory: Path) -> None:
        self.calls += 1
        (directory / "config.json").write_text("{}")
        time.sleep(self.pause_s)
        (directory / "sub").mkdir()
        (directory / "sub" / "weights").write_bytes(bytes(100))


def never(directory: Path) -> None:
    raise AssertionError("a complete entry must not be made again")


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".lock")


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    cache, maker = CheckpointCache(tmp_path / "deep" / "root"), Maker()
    entry = cache.build("one", maker)
    assert cache.build("one", maker) == entry == tmp_path / "deep" / "root" / "one"
    assert maker.calls == 1
    sizes = json.loads((entry / "manifest.json").read_text())["sizes"]
    assert sizes == {"config.json": 2, "sub/weights": 100}
    assert entries(cache.root) == ["one"]


def test_a_complete_entry_needs_no_writing(tmp_path: Path) -> None:
    cache = CheckpointCache(tmp_path)
    entry = cache.build("one", Maker())
    (tmp_path / ".lock").unlink()
    before = (tmp_path.stat().st_mtime_ns, entry.stat().st_mtime_ns)
    tmp_path.chmod(0o500)
    try:
        assert cache.build("one", never) == entry
    finally:
        tmp_path.chmod(0o700)
    assert (tmp_path.stat().st_mtime_ns, entry.stat().st_mtime_ns) == before
    assert not (tmp_path / ".lock").exists()


def truncate(entry: Path) -> None:
    (entry / "sub" / "weights").write_bytes(bytes(99))


def remove_file(entry: Path) -> None:
    (entry / "config.json").unlink()


def remove_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()


def spoil_manifest(entry: Path) -> None:
    (entry / "manifest.json").write_text('{"sizes": ')


def empty_manifest(entry: Path) -> None:
    (entry / "manifest.json").write_text("[]")


@pytest.mark.parametrize("damage", [truncate, remove_file, remove_manifest, spoil_manifest, empty_manifest])
def test_a_damaged_entry_is_made_again(damage: Callable[[Path], None], tmp_path: Path) -> None:
    cache, maker = CheckpointCache(tmp_path), Maker()
    entry = cache.build("one", maker)
    damage(entry)
    assert cache.build("one", maker) == entry
    assert maker.calls == 2
    assert (entry / "sub" / "weights").stat().st_size == 100
    assert cache.build("one", never) == entry


@pytest.mark.parametrize("error", [ValueError, CheckpointError, KeyboardInterrupt])
def test_an_interrupted_build_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def interrupted(directory: Path) -> None:
        (directory / "half").write_text("half")
        raise error("stop")

    cache = CheckpointCache(tmp_path)
    with pytest.raises(error, match="stop"):
        cache.build("one", interrupted)
    assert entries(tmp_path) == []
    assert cache.build("one", Maker()).is_dir()


def test_a_failed_rebuild_keeps_other_entries(tmp_path: Path) -> None:
    cache = CheckpointCache(tmp_path)
    other = cache.build("other", Maker())
    with pytest.raises(ZeroDivisionError):
        cache.build("one", lambda directory: print(1 // 0))
    assert cache.build("other", never) == other


PROGRAM = """
import sys, time
from pathlib import Path
from mlxcel_engine.loader.cache import CheckpointCache
root, log, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def make(directory):
    with log.open("a") as file:
        file.write("made\\n")
    (directory / "config.json").write_text("{}")
    time.sleep(pause)
CheckpointCache(root).build("one", make)
"""


def start(root: Path, log: Path, pause_s: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(root), str(log), str(pause_s)])


def wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_two_processes_do_the_work_once(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    first = start(root, log, 0.6)
    wait_for(log)
    second = start(root, log, 0.6)
    assert (first.wait(30), second.wait(30)) == (0, 0)
    assert log.read_text() == "made\n"
    assert entries(root) == ["one"]


def test_two_threads_do_the_work_once(tmp_path: Path) -> None:
    maker = Maker(pause_s=0.2)
    threads = [threading.Thread(target=CheckpointCache(tmp_path).build, args=("one", maker)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert maker.calls == 1


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    process = start(root, log, 60)
    wait_for(log)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    assert len(entries(root)) == 1
    assert not (root / "one").exists()
    CheckpointCache(root).build("two", Maker())
    assert entries(root) == ["two"]


def test_an_unwritable_root_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="MLXCEL_CACHE") as caught:
        CheckpointCache(tmp_path / "file" / "root").build("one", Maker())
    assert str(tmp_path / "file" / "root") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_disk_names_the_remedy(tmp_path: Path) -> None:
    def full(directory: Path) -> None:
        (directory / "half").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match=r"No space left on device.*MLXCEL_CACHE"):
        CheckpointCache(tmp_path).build("one", full)
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("environ", "platform", "wanted"),
    [
        ({"MLXCEL_CACHE": "/c", "HOME": "/h", "XDG_CACHE_HOME": "/x"}, "linux", "/c"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "linux", "/x/mlxcel-engine"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "x"}, "linux", "/h/.cache/mlxcel-engine"),
        ({"HOME": "/h", "MLXCEL_CACHE": ""}, "linux", "/h/.cache/mlxcel-engine"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "darwin", "/h/Library/Caches/mlxcel-engine"),
    ],
)
def test_default_root(environ: dict[str, str], platform: str, wanted: str) -> None:
    assert default_cache_root(environ, platform) == Path(wanted)


def test_no_home_names_the_remedy() -> None:
    with pytest.raises(CheckpointError, match="MLXCEL_CACHE"):
        default_cache_root({}, "linux")


def test_the_cache_alone_does_not_import_mlx() -> None:
    code = "import sys, mlxcel_engine.loader.cache; sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
