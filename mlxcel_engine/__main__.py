"""``python -m mlxcel_engine`` is the ``mlxcel-engine`` command."""

import sys

from mlxcel_engine.cli.main import main

sys.exit(main())
