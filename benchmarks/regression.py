"""Is the working tree slower than a git revision? ``python -m benchmarks.regression --base main~1``.

Both are unpacked as an installation would have them, each an arm of ``rounds --gate`` with this interpreter and its
dependencies: ``base``, the package as REVISION has it, and ``tree``, as it lies in the checkout, uncommitted changes
among it. Every run is a fresh ``bench``, behind the host gate; the threshold is set by the base's null arm. Exit codes
are those of the gate: 0 passed, 1 slower than the base by more than the threshold, 2 bad input, 3 not measured.

What follows ``--`` goes to ``rounds``: ``-- --rounds 10 --json regression.json``.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.pages import ROOT
from mlxcel_engine.cli.main import main as mlxcel_engine
from mlxcel_engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = "mlxcel_engine"


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Unpack both trees, compare them, and return the gate's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, metavar="REVISION", help="what to compare with, as git names it")
    parser.add_argument("-m", "--model", default="default")
    parser.add_argument("--path", default="server", help="the decode path that is timed")
    parser.add_argument("--ctx", default="256", help="prompt tokens")
    parser.add_argument("-n", "--max-tokens", default="64")
    parser.add_argument("--out", metavar="FILE.jsonl", help="keep every run there")
    parser.add_argument("rounds", nargs="*", metavar="...", help="options of rounds, after --")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mlxcel-regression-") as scratch:
        trees = {name: Path(scratch, name) for name in ("base", "tree")}
        try:
            commit = unpack_revision(root, options.base, trees["base"])
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        copy_checkout(root, trees["tree"])
        print(f"base is {options.base} ({commit}), tree is the checkout; both with {sys.executable}", file=sys.stderr)
        arms = [word for name, tree in trees.items() for word in ("--arm", f"{name}={arm_of(tree)}")]
        what = [
            "-m",
            options.model,
            "--ctx",
            options.ctx,
            "-n",
            options.max_tokens,
            "--extra",
            f"--path {options.path}",
        ]
        out = options.out or str(Path(scratch, "rounds.jsonl"))
        return mlxcel_engine(["rounds", *arms, *what, "--hostgate", "--gate", "--out", out, *options.rounds])


def arm_of(tree: Path) -> str:
    """The flags of an arm that runs the package in ``tree`` on this interpreter."""
    return shlex.join([f"PYTHON:{sys.executable}", f"ENV:PYTHONPATH={tree}"])


def unpack_revision(root: Path, revision: str, target: Path) -> str:
    """Unpack the package as ``revision`` has it into ``target``; returns the commit.

    Raises:
        UsageError: git does not know the revision, or it has no such package.

    """
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if found.returncode != 0:
        raise UsageError(f"BASE={revision}: git knows no such commit; give a branch, a tag or a commit")
    commit = found.stdout.decode().strip()
    archive = _git(root, "archive", "--format=tar", commit, PACKAGE)
    if archive.returncode != 0:
        raise UsageError(f"BASE={revision}: that commit has no {PACKAGE}; give a later one")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(target, filter="data")
    return commit


def copy_checkout(root: Path, target: Path) -> None:
    """Copy the package's files that git tracks or would track from the checkout, as they are now."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", PACKAGE)
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (root / name).is_file():  # one that was deleted is still in the index
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((root / name).read_bytes())


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
