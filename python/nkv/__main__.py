"""``python -m nkv ...``: the nkv program of this installation."""

import os
import sys
import sysconfig


def main() -> int:
    """Replaces this process by the program."""
    program = os.path.join(sysconfig.get_path("scripts"), "nkv")
    if not os.path.exists(program):
        sys.stderr.write(f"{program} is missing: install nkv by pip\n")
        return 7
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
