"""dbt: ``dbt build`` when the copy of ``orders`` has everything that was committed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import changefeed

FOLDER = Path(__file__).parent


def main() -> int:
    """The exit status of dbt."""
    with changefeed.connect(os.environ.get("CHANGEFEED_URL", "http://127.0.0.1:8080")) as node:
        resolved = node.feed("orders_copy").wait_until("now", timeout=600)
    print(f"orders_copy is complete up to {resolved}")
    dbt = [sys.executable, "-m", "dbt.cli.main", "build", "--project-dir", FOLDER]
    variables = f"{{resolved: '{resolved}'}}"
    return subprocess.run([*dbt, "--profiles-dir", FOLDER, "--vars", variables]).returncode


if __name__ == "__main__":
    sys.exit(main())
