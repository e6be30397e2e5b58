"""The command `clcnn` from its first moment: loading torch takes seconds, in which Ctrl-C may come.

It is a package of its own because `import clcnn` is what takes these seconds.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; Ctrl-C before it has begun is one sentence, as it is later."""
    # Threads that spin while they wait for each other take the cores from the one they wait for
    # wherever something else runs too. OpenMP reads this once, when torch loads it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from clcnn.__main__ import main as command

        return command()
    except KeyboardInterrupt:
        print("Stopped before anything was begun. Repeat the same command.", file=sys.stderr)
        return INTERRUPTED
