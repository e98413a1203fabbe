"""``python -m nkv.mooncake DIRECTORY``: writes the package, and says how to use it."""

from __future__ import annotations

import shlex
import sys

from .install import install

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m nkv.mooncake DIRECTORY\n")
        sys.exit(2)
    folder = shlex.quote(str(install(sys.argv[1]).parent.resolve()))
    print(f"export PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}}")
