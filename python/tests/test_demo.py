"""The example of prefill and decode, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_prefill_and_decode_in_two_processes() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples/pd_demo.py")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 of 7 blocks cached: 100 of 100 tokens loaded" in done.stdout
    assert done.stdout.count("True") == 3
