#!/usr/bin/env python3
"""An executable in the place of an interpreter: answers ``-P -m mlxcel_engine bench ...`` without a model.

FAKE_SPEED is the decode speed, FAKE_NOISE the spread of a run (a fraction), FAKE_MODE what goes wrong, FAKE_LOG a file
that gets a line a start. It imports nothing of the project, so that a round of it takes a moment.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def flags(name: str, default: list[str]) -> list[str]:
    """Every value of an option."""
    given = [sys.argv[at + 1] for at, word in enumerate(sys.argv) if word == name]
    return given or default


def row(path: str, ctx: int, tokens: int) -> dict[str, Any]:
    noise = 1 + random.uniform(-1, 1) * float(os.environ.get("FAKE_NOISE", "0.001"))
    stream = os.environ.get("FAKE_TOKENS", "the same")
    return {
        "path": path,
        "ctx": ctx,
        "batch": int(flags("--batch", ["1"])[0]),
        "tokens": int(os.environ.get("FAKE_COUNT", tokens)),
        "token_hash": hashlib.sha256(f"{stream} {ctx} {tokens}".encode()).hexdigest(),
        "decode_tok_s": float(os.environ.get("FAKE_SPEED", "100")) * noise,
        "ttft_ms": 50.0 * noise,
        "a_column_of_another_version": [1, 2],
    }


def print_rows() -> None:
    environment = {"mlx": os.environ.get("FAKE_MLX", "0.32.4"), "mlx_lm": "0.32.2", "dtype": "float32"}
    for ctx in flags("--ctx", ["256", "8192"]):
        for path in flags("--path", ["cli", "engine"]):
            rows = [row(path, int(ctx), int(flags("-n", ["128"])[0]))]
            print(json.dumps({"schema": 1, "kind": "bench", "environment": environment, "rows": rows}))


def seed_noise() -> None:
    """Draw the same noise in the same run of a test, whenever it is run: by how many starts there were."""
    with Path(__file__).with_name("starts").open("ab") as starts:
        starts.write(b".")
        random.seed(starts.tell())


def log(*words: str) -> None:
    if "FAKE_LOG" in os.environ:
        with Path(os.environ["FAKE_LOG"]).open("a") as file:
            file.write(" ".join(words) + "\n")


def main() -> int:
    log(str(os.getpid()), *sys.argv[1:])
    seed_noise()
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    mode = os.environ.get("FAKE_MODE", "")
    if mode == "crash":
        print("loading\nerror: the weights are gone", file=sys.stderr)
        return 3
    if mode == "escape":
        print("\x1b]0;title\x07\x1b[31mred\x00\x08\n\x1b[2Jerror: \x1b[1mlost\x07", file=sys.stderr)
        return 3
    if mode == "flood":
        while True:
            sys.stdout.write("{\n" * 1000)
    if mode == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "hang":
        print("about to hang", file=sys.stderr, flush=True)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        log(str(child.pid), "child")
        child.wait()
    if mode == "empty":
        return 0
    print_rows()
    if mode == "partial":
        print("error: path server failed", file=sys.stderr)
        return 3
    if mode == "late":
        sys.stdout.flush()
        time.sleep(600)
    if mode == "garbage":
        print("Fetching 12 files: 100%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
