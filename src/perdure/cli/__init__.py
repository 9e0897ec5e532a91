"""The command line. It uses a client or an engine, and shows their views. It does not know how data are stored.

Each noun has a module that adds its commands to the app (see app.py). The modules import other code only when a command
is called, so that `--help` and completion stay fast.
"""

from __future__ import annotations

import sys

_EXTRA = "perdure: the command line needs typer and rich: pip install 'perdure[cli]'\n"


def main() -> None:
    """Run the `perdure` command. This never returns. It exits with one of the codes in perdure.cli.errors.Code."""
    try:
        from perdure.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(_EXTRA)
        sys.exit(1)
    run()


__all__ = ["main"]
