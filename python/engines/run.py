"""Runs the checks of each engine against a node of its own, and counts them.

run.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGES    with the Python that has the engines
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Of this user's settings nothing reaches the engines.
FOREIGN = ("GLOO_", "LMCACHE_", "MOONCAKE_", "NKV_", "PYTHON", "SGLANG_", "VLLM_")
HERE = Path(__file__).resolve().parent
# Some ten times what an idle machine needs.
LIMIT_S, START_S, END_S = 240, 30, 10
TAIL_LINES = 40
SETTINGS = {
    "DO_NOT_TRACK": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_LOG_LEVEL": "WARNING",
    "NKV_CHECKSUMS": "1",
    "LMCACHE_TRACK_USAGE": "false",
    # Keys are made of hashes, which must be the same in every process.
    "PYTHONHASHSEED": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass
class Engine:
    """An engine, and its processes, which run side by side."""

    name: str
    package: str
    processes: list[list[str]]


ENGINES = [
    Engine(
        "transformers",
        "transformers",
        [["transformers_pair.py", "producer"], ["transformers_pair.py", "consumer"]],
    ),
    Engine("vllm", "vllm-cpu", [["vllm_pair.py", "producer"], ["vllm_pair.py", "consumer"]]),
    Engine("lmcache", "lmcache", [["lmcache_modes.py"]]),
    Engine("sglang", "sglang", [["sglang_pages.py"]]),
]


class Failed(Exception):
    """A process did not do what it must."""


@contextmanager
def process(
    command: list[str | Path], log: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen]:
    """A process with its children, which ends with the block."""
    with log.open("wb") as out:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        for name in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(started.pid, name)
                started.wait(END_S)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue


def tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(f"    | {line}" for line in log.read_text().splitlines()[-TAIL_LINES:])


@contextmanager
def node(programs: Path, log: Path, env: dict[str, str]) -> Iterator[str]:
    """A rank alone; the address at which it listens."""
    command = [programs / "nkv-node", "--port", "0", "--http", "off", "--heap-bytes", "256MiB"]
    with process(command, log, env) as started:
        until = time.monotonic() + START_S
        while time.monotonic() < until and started.poll() is None:
            ready = re.search(r"^nkv-node ready .*control=(\S+)", log.read_text(), re.M)
            if ready:
                yield ready[1]
                return
            time.sleep(0.05)
        raise Failed(f"nkv-node did not start\n{tail(log)}")


def environment(packages: str, folder: Path, job: str) -> dict[str, str]:
    """What the processes see."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return {
        **kept,
        **SETTINGS,
        "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        "PYTHONPATH": packages,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        # What SGLang compiles at its first use is kept beside it.
        "TORCH_EXTENSIONS_DIR": f"{sys.prefix}/extensions",
        "NKV_JOB": job,
        "ENGINES_RESULTS": str(folder / "results"),
    }


def attempt(engine: Engine, programs: Path, env: dict[str, str], folder: Path) -> None:
    """Runs an engine's processes to their end; raises what went wrong."""
    with ExitStack() as stack:
        address = stack.enter_context(node(programs, folder / "node.log", env))
        started = []
        for number, command in enumerate(engine.processes):
            own = folder / str(number)
            own.mkdir()
            # vLLM's own sockets: two processes of one folder would take each other's.
            more = {"ENGINES_ADDRESS": address, "VLLM_RPC_BASE_PATH": str(own)}
            python = [sys.executable, HERE / command[0], *command[1:]]
            one = process([*python, folder], own / "log", {**env, **more})
            started.append((" ".join(command), stack.enter_context(one)))
        until = time.monotonic() + LIMIT_S
        waits = True
        while waits:
            waits = False
            for name, one in started:
                status = one.poll()
                if status:
                    raise Failed(f"{name} ended with status {status}")
                waits |= status is None
            if time.monotonic() > until:
                raise Failed(f"it took more than {LIMIT_S} s")
            time.sleep(0.05)


def results(folder: Path) -> list[dict[str, Any]]:
    """What the processes have recorded."""
    file = folder / "results"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(engine: Engine, programs: Path, packages: str) -> tuple[int, int]:
    """Runs an engine and prints its results; how many checks passed, and how many failed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nkv-engines-") as name:
        folder = Path(name)
        job = f"engines-{engine.name}-{os.getpid()}"
        error = ""
        try:
            attempt(engine, programs, environment(packages, folder, job), folder)
        except Failed as failed:
            error = str(failed)
        recorded = results(folder)
        checks = [line for line in recorded if "check" in line]
        tokens, served = (sum(line.get(of, 0) for line in recorded) for of in ("tokens", "served"))
        if not error and not served:
            error = "nothing was loaded"
        if error:
            checks.append({"check": engine.name, "passed": False, "detail": error})
        bad = sum(not line["passed"] for line in checks)
        if bad:
            for log in sorted(folder.glob("*/log")):
                print(f"{tail(log)}\n")
    for line in checks:
        detail = f" ({line['detail']})" if line["detail"] else ""
        print(f"{'ok' if line['passed'] else 'FAILED':7} {line['check']}{detail}")
    seconds = time.monotonic() - began
    what = f"{engine.name} {version(engine.package)}"
    print(f"{what}: {tokens} tokens loaded, {served} bytes served by nkv, {seconds:.1f} s")
    return len(checks) - bad, bad


def main() -> int:
    """All of them."""
    programs, packages = Path(sys.argv[1]), sys.argv[2]
    # An end by a signal ends the processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    passed = failed = 0
    for engine in ENGINES:
        done = run(engine, programs, packages)
        passed, failed = passed + done[0], failed + done[1]
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed in {time.monotonic() - began:.1f}s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
