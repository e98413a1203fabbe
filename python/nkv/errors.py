"""Exceptions of nkv: one class for each kind of error.

Each class is also the built-in exception that a Python program would expect, so that
``except KeyError`` or ``except TimeoutError`` catches it.
"""

from __future__ import annotations

import re


class Error(Exception):
    """An error of nkv.

    Attributes:
        key: the key that the failed operation was about, if it was about one.
        rank: the rank that the failed operation needed, if it failed at one.
    """

    key: bytes | None = None
    rank: int | None = None

    def __str__(self) -> str:
        # KeyError would show the text quoted.
        return str(self.args[0]) if self.args else type(self).__name__


class NotFound(Error, KeyError):
    """No such key: compute the value."""


class AlreadyExists(Error):
    """The key is there already, and values are immutable."""


class NotReady(Error):
    """Being written, being removed, or the cluster is starting: try again soon."""


class OutOfMemory(Error, MemoryError):
    """No room within the time allowed: free something, or drop the put."""


class Reclaimed(Error):
    """The plan ended before it was committed (deadline, abort or remove): open a new one."""


class Timeout(Error, TimeoutError):
    """No answer in time. The outcome is whole or absent."""


class Disconnected(Error, ConnectionError):
    """The rank that is needed is gone or unreachable."""


class InvalidArgument(Error, ValueError):
    """The call itself is wrong: the message says what."""


class Corrupt(Error):
    """Stored bytes failed a check: remove the key and put it again."""


class Unsupported(Error, NotImplementedError):
    """Not available in this build or on this machine."""


class Internal(Error, RuntimeError):
    """A defect of nkv, or an actor that was restarted under this call."""


#: Flags of nkv's programs; not that of docker, which an error quotes.
_FLAG = re.compile(r"--(?!gpus\b)([a-z][a-z-]*)")
_BY_KIND: dict[str, type[Error]] = {kind.__name__: kind for kind in Error.__subclasses__()}


def of_kind(kind: str, message: str, key: bytes | None, rank: int | None) -> Error:
    """The exception of an error of the native part, whose flags are arguments here."""
    text = _FLAG.sub(lambda flag: flag[1].replace("-", "_"), message)
    text = text.replace("preferred_rank", "preferred_segment")
    error = _BY_KIND.get(kind, Internal)(text)
    error.key = key
    error.rank = rank
    return error
