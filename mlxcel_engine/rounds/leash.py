"""Runs a command and kills its process group when whoever holds the other end of stdin is gone.

``rounds`` starts this file as a script, with nothing of the package imported. A ``rounds`` that is killed outright can
end nothing any more; without this its last run would go on alone, in the way of the resumed one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


def _main() -> int:
    try:
        process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
        return 127
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    code = _main()
    os._exit(code if code >= 0 else 128 - code)
