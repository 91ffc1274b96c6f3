"""Runs a command in a process group of its own and ends it when whoever holds the other end of stdin is gone.

``rounds`` starts this file as a script, with nothing of the package imported. A ``rounds`` that is killed outright can
end nothing any more; without this its last run would go on alone, in the way of the resumed one. It waits for what it
ends, so that the CPU time of the run is counted as that of our children, whichever way the run ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36


def _adopt_orphans() -> None:
    """Become the parent of what our children leave behind, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a group that is dead
        os.killpg(group, signal.SIGKILL)


def _kill_at_end_of_input(group: int) -> None:
    sys.stdin.buffer.read()
    _kill(group)


def _main() -> int:
    _adopt_orphans()
    try:
        process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
        return 127
    threading.Thread(target=_kill_at_end_of_input, args=(process.pid,), daemon=True).start()
    code = process.wait()
    _kill(process.pid)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)
    return code


if __name__ == "__main__":
    code = _main()
    os._exit(code if code >= 0 else 128 - code)
