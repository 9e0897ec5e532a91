"""The command line. It asks a client, runs an engine, and shows views: nothing in here knows how anything is stored.

Each capability is a module that adds its verbs to the app (see app.py). None of them imports what it works with before
a verb is called, so that help and completions come at once.
"""

from __future__ import annotations

import sys

_EXTRA = "perdure: the command line needs typer and rich: pip install 'perdure[cli]'\n"


def main() -> None:
    """The `perdure` command. Never returns: exits with a code of perdure.cli.failures.Code."""
    try:
        from perdure.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(_EXTRA)
        sys.exit(1)
    run()


__all__ = ["main"]
