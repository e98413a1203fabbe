"""Every Python example of the guide and of the README runs, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _examples() -> list[tuple[str, str]]:
    found = []
    for page in (ROOT / "README.md", ROOT / "docs/guides/python.md"):
        for number, code in enumerate(BLOCK.findall(page.read_text()), 1):
            found.append((f"{page.name}, example {number}", code))
    return found


def test_there_are_examples_in_both() -> None:
    names = {name.split(",")[0] for name, _ in _examples()}
    assert names == {"README.md", "python.md"}


@pytest.mark.parametrize(("name", "code"), _examples(), ids=lambda value: value[:24])
def test_example(name: str, code: str) -> None:
    # A job and a port of its own: other programs may run beside the tests.
    job = f"guide-{os.getpid()}-{abs(hash(name))}"
    env = {**os.environ, "NKV_JOB": job, "NKV_PORT": "0", "NKV_HTTP": "off"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert done.returncode == 0, f"{name}:\n{done.stderr}"
