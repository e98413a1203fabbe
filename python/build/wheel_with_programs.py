"""The build backend of the wheel: maturin's, with nkv's programs among the wheel's scripts.

maturin takes into a wheel what lies in its data folder; this builds the programs and puts them
there first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "target" / "wheel-data"
PROGRAMS = ("nkv", "nkv-node", "nkv-load")
PROFILE = "wheel"

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def prepare_metadata_for_build_wheel(folder: str, settings: dict[str, Any] | None = None) -> str:
    """Name, version and so on."""
    DATA.mkdir(parents=True, exist_ok=True)
    return str(maturin.prepare_metadata_for_build_wheel(folder, settings))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def _features() -> list[str]:
    """Cargo's features, as NKV_WHEEL_FEATURES names them: "rdma" is what published wheels have."""
    features = os.environ.get("NKV_WHEEL_FEATURES", "")
    return ["--features", features] if features else []


def _put_programs() -> None:
    command = ["cargo", "build", "--locked", "--profile", PROFILE, "--package", "nkv-programs"]
    # The module with them: what both use is compiled once, with the same features.
    command += ["--package", "nkv-python", "--bins", "--lib", *_features()]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    scripts = DATA / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        shutil.copy2(target / PROFILE / program, scripts / program)


def _settings(settings: dict[str, Any] | None) -> dict[str, Any]:
    """The arguments of maturin.

    NKV_WHEEL_TAG "pypi" asks for a tag of manylinux, by the C library that the module needs;
    without it pip gets a wheel for this machine.
    """
    features, tag = (os.environ.get(f"NKV_WHEEL_{name}", "") for name in ("FEATURES", "TAG"))
    arguments = [f"--features {features}"] if features else []
    arguments += [f"--compatibility {tag}"] if tag else []
    more = {"build-args": " ".join(arguments)} if arguments else {}
    return {**more, **(settings or {})}


def build_wheel(
    folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None
) -> str:
    """A wheel with module and programs."""
    _put_programs()
    return str(maturin.build_wheel(folder, _settings(settings), metadata))


def build_editable(
    folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None
) -> str:
    """The same for ``pip install -e .``."""
    _put_programs()
    return str(maturin.build_editable(folder, _settings(settings), metadata))


def build_sdist(folder: str, settings: dict[str, Any] | None = None) -> str:
    """Sources."""
    return str(maturin.build_sdist(folder, settings))
