"""``python -m nkv.mooncake DIRECTORY``: writes the package, and says how to use it."""

from __future__ import annotations

import shlex
import sys

from ..errors import InvalidArgument
from .install import install

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.stderr.write("usage: python -m nkv.mooncake DIRECTORY\n")
        sys.exit(2)
    try:
        folder = shlex.quote(str(install(sys.argv[1]).parent.resolve()))
    except (InvalidArgument, OSError) as error:
        sys.exit(f"nkv.mooncake: {error}")
    print(f"export PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}}")
