"""Reads the PTX of a compiled kernel and refuses one that publishes too early.

Triton puts no barrier before a release, which orders the stores of one thread alone: without
``tl.debug_barrier()`` the bytes of other threads may become visible after READY. The functions of
nkv.triton have it; a kernel that publishes by itself may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_WARP = 32
_ENTRY = re.compile(r"\.entry\s+(\S+?)\s*\((.*?)\)(.*?)\{", re.S)
#: What may be on its way: stores of threads, which a barrier orders, and others.
_STORE, _ENGINE = "stores of other threads", "stores of a copy engine"


class PublishError(ValueError):
    """A kernel that may publish an object before its bytes are visible."""


@dataclass(frozen=True)
class _Instruction:
    text: str
    opcode: tuple[str, ...]
    guarded: bool

    def has(self, *suffixes: str) -> bool:
        return any(suffix in self.opcode for suffix in suffixes)

    @property
    def releases(self) -> bool:
        return self.opcode[0] in ("atom", "red", "st") and self.has("release", "acq_rel")

    @property
    def publishes(self) -> bool:
        """Words of 64 bits that are exchanged or stored; READY is one."""
        changes = self.has("exch", "cas") or self.opcode[0] == "st"
        return self.releases and changes and self.opcode[-1] in ("b64", "u64")

    @property
    def stores(self) -> str | None:
        name = self.opcode[0]
        if name == "cp" and self.has("bulk") and self.has("global"):
            return _ENGINE if self.opcode.index("global") < _first_shared(self.opcode) else None
        if name in ("st", "red") and not self.has("shared", "param", "local", "release"):
            return _STORE
        # An exchange or a sum may be payload, too; a counter has acq_rel, a load acquire.
        if name in ("atom", "multimem") and not self.has("shared", "acq_rel", "acquire", "release"):
            return _STORE
        # What a function does is not read here.
        return _STORE if name == "call" else None

    def is_barrier(self, threads: int) -> bool:
        """Whether every thread of the program waits here."""
        if self.guarded:
            return False
        if self.opcode[:2] == ("bar", "warp"):
            return threads <= _WARP
        # Barrier 0 without a count of threads; Triton uses others for parts of a program.
        whole = self.opcode[0] in ("bar", "barrier") and self.has("sync")
        return whole and self.text.split()[1:] == ["0"]


def _first_shared(opcode: tuple[str, ...]) -> int:
    shared = [i for i, suffix in enumerate(opcode) if suffix.startswith("shared")]
    return shared[0] if shared else len(opcode)


def _instructions(body: str) -> tuple[list[_Instruction], dict[str, int]]:
    """The instructions of a kernel, and where its labels are among them."""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    for part in re.split(r"[;\n]", body):
        statement = part.strip(" \t{}")
        while found := re.match(r"(\$?\w+):\s*", statement):
            labels[found[1]] = len(code)
            statement = statement[found.end() :]
        guard = re.match(r"@!?%\w+\s+", statement)
        text = " ".join(statement[guard.end() if guard else 0 :].split())
        if text and not text.startswith("."):
            code.append(_Instruction(text, tuple(text.split()[0].split(".")), bool(guard)))
    return code, labels


def _next(code: list[_Instruction], labels: dict[str, int], at: int) -> Iterator[int]:
    """Where a thread may go on after an instruction."""
    instruction = code[at]
    name = instruction.opcode[0]
    targets = list(labels.values()) if name == "brx" else []
    if name == "bra":
        targets = [labels[instruction.text.split()[-1]]]
    if instruction.guarded or name not in ("bra", "brx", "ret", "exit"):
        targets.append(at + 1)
    yield from (to for to in targets if to < len(code))


def _on_their_way(
    code: list[_Instruction], labels: dict[str, int], threads: int
) -> list[frozenset[str]]:
    """For each instruction what may not be visible before it, on any path to it."""
    before = [frozenset[str]() for _ in code]
    pending = list(range(len(code)))
    while pending:
        at = pending.pop()
        after = set(before[at])
        if code[at].is_barrier(threads):
            after.discard(_STORE)
        if kind := code[at].stores:
            after.add(kind)
        for to in _next(code, labels, at):
            if not after <= before[to]:
                before[to] |= after
                pending.append(to)
    return before


def _leads_to_publish(code: list[_Instruction], labels: dict[str, int]) -> list[bool]:
    """For each instruction whether it, or one after it, publishes."""
    leads = [instruction.publishes for instruction in code]
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(code))):
            if not leads[at] and any(leads[to] for to in _next(code, labels, at)):
                leads[at] = changed = True
    return leads


def _check(name: str, threads: int, body: str) -> None:
    code, labels = _instructions(body)
    before = _on_their_way(code, labels, threads)
    leads = _leads_to_publish(code, labels)
    if not any(instruction.publishes for instruction in code):
        raise PublishError(
            f'kernel {name} sets no word of 64 bits with sem="release" or "acq_rel": call '
            "nkv.triton.kv_commit_ready, or kv_commit_ready_last in a grid"
        )
    for at, instruction in enumerate(code):
        if instruction.has("cas") and instruction.opcode[-1] == "b64" and not instruction.releases:
            raise PublishError(
                f"kernel {name}: `{instruction.text}` is no release, so READY may be seen before "
                'the bytes: give it sem="release"'
            )
        if not (instruction.releases and leads[at]):
            continue
        if not instruction.has("sys"):
            raise PublishError(
                f"kernel {name}: `{instruction.text}` has a smaller scope than sys, and others "
                'read the object: give it scope="sys"'
            )
        if before[at]:
            raise PublishError(
                f"kernel {name}: `{instruction.text}` may come before {' and '.join(before[at])}: "
                "call tl.debug_barrier() between the last tl.store and it; what a copy engine "
                "(tensor descriptors) stores must not be published by its kernel"
            )


def check_publish(compiled: Any) -> None:
    """Checks that a kernel publishes nothing before its bytes are visible.

    Args:
        compiled: what Triton returns for a launch, ``warmup`` or ``triton.compile``; or PTX.

    Raises:
        PublishError: on some path a store is not followed by a barrier of the program before a
            release that publishes, or leads to one that does; its scope is not sys; or the kernel
            publishes nothing. It may refuse kernels that are correct.
    """
    asm = getattr(compiled, "asm", None)
    text = asm["ptx"] if asm is not None else compiled
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is neither a compiled kernel nor PTX; TRITON_INTERPRET has none")
    text = re.sub(r"//[^\n]*", "", text)
    entries = list(_ENTRY.finditer(text))
    if not entries:
        raise PublishError("a text without a kernel: give the PTX of one")
    for entry in entries:
        wanted = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", entry[3])
        body = text[entry.end() :]
        end = re.search(r"^\}", body, re.M)
        threads = int(wanted[1]) if wanted else _WARP + 1
        _check(entry[1], threads, body[: end.start()] if end else body)
