"""Mooncake's error codes, and which of nkv's errors each stands for."""

from __future__ import annotations

from .. import errors

OK = 0
NO_SPACE = -200
INVALID_PARAMS = -600
REPLICA_NOT_READY = -703
OBJECT_NOT_FOUND = -704
OBJECT_EXISTS = -705
TRANSFER_FAIL = -800
CHECKSUM_MISMATCH = -801
RPC_FAIL = -900
RPC_TIMEOUT = -901
FILE_NOT_FOUND = -1100
TASK_NOT_FOUND = -1400
#: What mounts return that did not succeed.
FAILED = -1

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.NotFound, OBJECT_NOT_FOUND),
    (errors.NotReady, REPLICA_NOT_READY),
    (errors.AlreadyExists, OBJECT_EXISTS),
    (errors.OutOfMemory, NO_SPACE),
    (errors.Timeout, RPC_TIMEOUT),
    (errors.Disconnected, RPC_FAIL),
    (errors.Corrupt, CHECKSUM_MISMATCH),
    (errors.InvalidArgument, INVALID_PARAMS),
)


def code_of(error: BaseException) -> int:
    """The code of an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, (ValueError, OverflowError, BufferError)):
        return INVALID_PARAMS
    return TRANSFER_FAIL
