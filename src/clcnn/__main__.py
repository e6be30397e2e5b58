"""The command `clcnn`, and `python -m clcnn`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; say which extra is missing if its parts are not installed."""
    try:
        from clcnn.cli import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"The command line needs {error.name}: pip install 'clcnn[cli]' "
            "(or 'clcnn[training]' to train networks as well).",
            file=sys.stderr,
        )
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
