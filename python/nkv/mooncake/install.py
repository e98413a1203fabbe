"""A package ``mooncake`` that leads here."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidArgument

_DOCUMENT = '"""Mooncake\'s store, served by nkv."""\n'
#: What else an installed Mooncake has, such as ``mooncake.engine``, is found behind this package.
_PACKAGE = f"""\
{_DOCUMENT}
from pkgutil import extend_path

from nkv.mooncake import BufferPool, RegisteredBufferPool  # noqa: F401

__path__ = extend_path(__path__, __name__)
"""
_LEADS_HERE = f"""\
{_DOCUMENT}
from nkv.mooncake import *  # noqa: F403
from nkv.mooncake import ObjectDataType, ReplicaStatus, TaskStatus, TaskType

# The enums' values are names of the module, too.
for _kind in (ReplicaStatus, TaskType, TaskStatus, ObjectDataType):
    globals().update(_kind.__members__)
"""


def install(directory: str | os.PathLike[str]) -> Path:
    """Writes a package ``mooncake`` into a directory; returns the package's folder.

    An existing ``mooncake`` there that is another's is an error.
    """
    package = Path(directory) / "mooncake"
    marker = package / "store.py"
    if package.exists() and not (marker.exists() and "nkv.mooncake" in marker.read_text()):
        raise InvalidArgument(f"{package} exists and is not nkv's: give another directory")
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(_PACKAGE)
    for name in ("store", "buffer_pool"):
        (package / f"{name}.py").write_text(_LEADS_HERE)
    return package
