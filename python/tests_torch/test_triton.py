"""nkv.triton: kernels on tensors of the CPU over the memory of two processes, and what
check_publish refuses. No GPU runs here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nkv.triton import (
    PublishError,
    check_publish,
    kv_commit_ready,
    kv_commit_ready_last,
    kv_store_page_values,
)

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guides/gpu.md"
INTERPRETED = {**os.environ, "TRITON_INTERPRET": "1"}


class Role:
    """A process of triton_roles.py."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("triton_roles.py")), name],
            env=INTERPRETED,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process has ended; its error is above"
        said: dict[str, Any] = json.loads(line)
        return said


@contextmanager
def role(name: str) -> Iterator[Role]:
    """A process that ends well, or is killed."""
    one = Role(name)
    try:
        yield one
        assert one.process.stdin is not None
        one.process.stdin.close()
        assert one.process.wait(60) == 0
    finally:
        one.process.kill()
        one.process.wait()


def test_the_designs_example_as_it_stands_there() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/prefill_decode_triton.py")],
        env=INTERPRETED,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "equal in the decode worker" in done.stdout


def test_the_guides_example(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    (code,) = [block for block in blocks if "triton" in block]
    program = tmp_path / "example.py"
    program.write_text(code)
    # A job and a port of its own: other programs may run beside the tests.
    alone = {"NKV_JOB": f"guide-{os.getpid()}", "NKV_PORT": "0", "NKV_HTTP": "off"}
    subprocess.run([sys.executable, program], env={**INTERPRETED, **alone}, timeout=120, check=True)


@pytest.mark.parametrize("way", ["grid", "one program"])
def test_a_kernel_waits_for_what_a_kernel_of_another_process_writes(way: str) -> None:
    with role("produce") as producer, role("read") as reader:
        reader.tell(**producer.hear())
        producer.tell(do="open", key=way)
        at = {**producer.hear(), "key": way}
        # Not there yet.
        reader.tell(**at, spins=3)
        assert reader.hear() == {"waits": True}
        assert reader.hear() == {"result": 2, "readable": False, "equal": False}
        reader.tell(**at)
        assert reader.hear() == {"waits": True}
        producer.tell(do=way, key=way)
        assert producer.hear() == {"published": 1}
        assert reader.hear() == {"result": 1, "readable": True, "equal": True}
        # Another key, and another epoch.
        for other in ({"right": False}, {"epoch": at["epoch"] - 1}):
            reader.tell(**{**at, **other})
            assert reader.hear() == {"waits": True}
            assert reader.hear() == {"result": 3, "readable": False, "equal": False}


def test_kernels_put_into_a_log() -> None:
    with role("log") as logging:
        assert logging.hear() == {"done": True}


@triton.jit
def barrier_by_hand(src, dst, word, BARRIER: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr):
    offs = tl.arange(0, 1024)
    tl.store(dst + offs, tl.load(src + offs))
    if BARRIER:
        tl.debug_barrier()
    tl.atomic_xchg(word, 2, sem=SEM, scope=SCOPE)


@triton.jit
def barrier_in_one_branch(src, dst, word, n, BARRIER: tl.constexpr):
    offs = tl.arange(0, 1024)
    for i in range(n):
        tl.store(dst + i * 1024 + offs, tl.load(src + i * 1024 + offs))
        if BARRIER or i > 3:
            tl.debug_barrier()
    tl.atomic_xchg(word, 2, sem="release", scope="sys")


@triton.jit
def stores_after_the_counter(src, dst, word, counter, LATE: tl.constexpr):
    offs = tl.arange(0, 1024)
    values = tl.load(src + offs)
    tl.store(dst + offs, values)
    if not LATE:
        tl.debug_barrier()
    # The default of Triton has scope gpu.
    if tl.atomic_add(counter, 1, sem="acq_rel", scope="sys") == tl.num_programs(0) - 1:
        tl.atomic_xchg(word, 2, sem="release", scope="sys")


@triton.jit
def of_nkv(src, payload, header, counter, LAST: tl.constexpr):
    values = tl.load(src + tl.arange(0, 1024))
    kv_store_page_values(values, payload, tl.program_id(0), 4096)
    if LAST:
        kv_commit_ready_last(counter, header)
    else:
        kv_commit_ready(header, epoch=3)


TYPES = {
    "src": "*fp32",
    "dst": "*fp32",
    "word": "*i64",
    "n": "i32",
    "counter": "*i32",
    "payload": "i64",
    "header": "i64",
}


def compiled(kernel: Any, arch: int, **constants: Any) -> Any:
    """A kernel as a GPU would run it."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = {name: TYPES[name] for name in names}
    signature.update(dict.fromkeys(constants, "constexpr"))
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32))


@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_with_the_barrier_are_accepted(arch: int) -> None:
    whole = {"SEM": "release", "SCOPE": "sys"}
    for kernel, constants in [
        (barrier_by_hand, {"BARRIER": True, **whole}),
        (barrier_by_hand, {"BARRIER": True, **whole, "SEM": "acq_rel"}),
        (barrier_in_one_branch, {"BARRIER": True}),
        (stores_after_the_counter, {"LATE": False}),
        (of_nkv, {"LAST": True}),
        (of_nkv, {"LAST": False}),
    ]:
        check_publish(compiled(kernel, arch, **constants))


@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_that_publish_too_early_are_refused_by_name(arch: int) -> None:
    sys_release = {"SEM": "release", "SCOPE": "sys"}
    for kernel, constants, why in [
        (barrier_by_hand, {"BARRIER": False, **sys_release}, "debug_barrier"),
        (barrier_by_hand, {"BARRIER": True, "SEM": "relaxed", "SCOPE": "sys"}, "kv_commit_ready"),
        (barrier_by_hand, {"BARRIER": True, "SEM": "release", "SCOPE": "gpu"}, 'scope="sys"'),
        (barrier_in_one_branch, {"BARRIER": False}, "debug_barrier"),
        (stores_after_the_counter, {"LATE": True}, "debug_barrier"),
    ]:
        with pytest.raises(PublishError, match=re.escape(why)) as refused:
            check_publish(compiled(kernel, arch, **constants))
        assert f"kernel {kernel.__name__}" in str(refused.value)


def test_a_kernel_of_nkv_without_its_barriers_is_refused() -> None:
    text = compiled(of_nkv, 80, LAST=False).asm["ptx"]
    check_publish(text)
    for weaker in (
        text.replace("bar.sync", "// bar.sync"),
        text.replace(".acq_rel.sys.cas", ".relaxed.sys.cas"),
        text.replace(".acq_rel.sys.cas", ".acq_rel.gpu.cas"),
        text.replace(".acq_rel.sys.cas", ".acq_rel.cas"),
        text.replace("bar.sync", "bar.warp.sync"),
        text.replace("bar.sync", "@%p1 bar.sync"),
    ):
        assert weaker != text
        with pytest.raises(PublishError):
            check_publish(weaker)


def test_what_is_no_kernel_is_an_error() -> None:
    with pytest.raises(PublishError, match="without a kernel"):
        check_publish(".version 8.0")
    with pytest.raises(TypeError, match="TRITON_INTERPRET"):
        check_publish(None)
