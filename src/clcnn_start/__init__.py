"""The command `clcnn` from its first moment: loading torch takes seconds, in which Ctrl-C may come.

It is a package of its own because `import clcnn` is what takes these seconds.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; Ctrl-C before it has begun is one sentence, as it is later."""
    try:
        from clcnn.__main__ import main as command

        return command()
    except KeyboardInterrupt:
        print("Stopped before anything was begun. Repeat the same command.", file=sys.stderr)
        return INTERRUPTED
