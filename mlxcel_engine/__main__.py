"""``python -m mlxcel_engine`` is the ``mlxcel-engine`` command."""

from __future__ import annotations

import sys

from mlxcel_engine.cli.signals import end_at_once, stopping
from mlxcel_engine.cli.streams import outlive_readers


def run() -> int:
    """Run the command; a signal is one line even while it is still being imported, which takes longest."""
    outlive_readers()
    with stopping(end_at_once):
        from mlxcel_engine.cli.main import main

        return main()


if __name__ == "__main__":
    sys.exit(run())
