"""nkv and its peers on this machine, taking turns: three rounds of every mode, medians, ratios.

Started by `scripts/bench`, which builds. Standard library only. The speed of a shared machine drifts by factors within seconds, so
a ratio is taken within a round, between neighbours in time, and the median of the rounds' ratios is what counts.
"""

import argparse
import contextlib
import json
import os
import platform
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB]
# Of a value in the caller's buffer and into the caller's buffer: put_from and get_into, where a peer has several.
OPERATIONS = ("put", "get")
# One round, in this order: each peer next to the mode of nkv that is held against it.
TURNS = [
    "memcpy",
    "mooncake-local",
    "nkv-embedded",
    "mooncake-dummy",
    "nkv-shm",
    "mooncake-tcp",
    "nkv-tcp",
    "redis",
]
# (peer, mode of nkv, whether the target below holds for the pair)
PAIRS = [
    ("mooncake-local", "nkv-embedded", True),
    ("mooncake-dummy", "nkv-shm", True),
    ("mooncake-tcp", "nkv-tcp", True),
    ("redis", "nkv-shm", False),
    ("memcpy", "nkv-embedded", False),
]
HEAP = "3GiB"
JOB = f"bench-{os.getpid()}"
TURN_S = 180
READY_S = 60
DRAIN_S = 20


def target(size):
    """At least as fast up to 1 MiB; above, where everything is one long copy, within 5%."""
    return 1.0 if size <= MIB else 0.95


class Failed(Exception):
    """A mode that could not be measured; the message says which and why."""


def run(command, what):
    # A session of its own: what ends early ends with every server it started.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=TURN_S)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{what}: not done after {TURN_S} s") from late
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        tail = "\n".join((output + errors).splitlines()[-15:])
        raise Failed(f"{what}: exit {process.returncode}\n{tail}")
    return output


def measure_peer(mode):
    answer = json.loads(run([os.path.join(HERE, "run"), mode], mode))
    return {
        int(size): {"put": row["put_p50_us"], "get": row["get_p50_us"]} for size, row in answer[mode].items()
    }


def measure_nkv(mode, binaries):
    transport = mode.removeprefix("nkv-")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        report = os.path.join(folder, "report.json")
        command = [os.path.join(binaries, "nkv-load"), "--bench", "--transport", transport, "--json", report]
        if transport != "embedded":
            command += ["--job", JOB, "--connect", stack.enter_context(one_rank(binaries, folder))]
        run(command, mode)
        with open(report, encoding="utf-8") as file:
            rows = json.load(file)["ops"]
    table = {}
    for row in rows:
        table.setdefault(row["bytes"], {})[row["op"]] = row["p50_us"]
    missing = [size for size in SIZES if not set(OPERATIONS) <= set(table.get(size, {}))]
    if missing:
        raise Failed(f"{mode}: no put or no get of {missing} bytes in its report")
    return table


@contextlib.contextmanager
def one_rank(binaries, folder):
    """A node of one rank with room for everything; gives its control address."""
    command = [os.path.join(binaries, "nkv-node"), "--rank", "0", "--world-size", "1", "--master-addr", "127.0.0.1"]
    command += ["--port", str(free_port()), "--heap-bytes", HEAP, "--job", JOB]
    command += ["--http", "127.0.0.1:0"]
    log = os.path.join(folder, "node.log")
    with open(log, "wb") as errors:
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield control_address(node, log)
    finally:
        node.terminate()
        try:
            node.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()


def control_address(node, log):
    """The address in the node's ready line, which it prints once it serves."""
    deadline = time.monotonic() + READY_S
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(node.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline and selector.select(deadline - time.monotonic()):
            part = os.read(node.stdout.fileno(), 65536)
            text += part
            ready = [line for line in text.decode().splitlines(True) if line.startswith("nkv-node ready ")]
            if ready and ready[0].endswith("\n"):
                return dict(field.split("=", 1) for field in ready[0].split()[2:])["control"]
            if not part:
                break
    with open(log, encoding="utf-8", errors="replace") as file:
        raise Failed(f"nkv-node did not become ready within {READY_S} s:\n{''.join(file.readlines()[-15:])}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rounds_of_turns(count, binaries):
    rounds = []
    for number in range(1, count + 1):
        tables = {}
        for mode in TURNS:
            started = time.monotonic()
            tables[mode] = measure_nkv(mode, binaries) if mode.startswith("nkv-") else measure_peer(mode)
            print(f"round {number}/{count}: {mode}, {time.monotonic() - started:.0f} s", file=sys.stderr)
        rounds.append(tables)
    return rounds


def medians(rounds):
    return {
        mode: {
            size: {op: statistics.median(tables[mode][size][op] for tables in rounds) for op in OPERATIONS}
            for size in SIZES
        }
        for mode in TURNS
    }


def ratios(rounds):
    """Per pair, size and operation the median over the rounds of peer p50 / nkv p50: 1 and above means nkv is as fast."""
    return [
        {
            "peer": peer,
            "nkv": mine,
            "held_to_target": held,
            "ratio": {
                size: {
                    op: round(statistics.median(t[peer][size][op] / t[mine][size][op] for t in rounds), 3)
                    for op in OPERATIONS
                }
                for size in SIZES
            },
        }
        for peer, mine, held in PAIRS
    ]


def below_target(pairs):
    return [
        f"{pair['nkv']} {op} {label(size)}: {value} of {pair['peer']}, target {target(size)}"
        for pair in pairs
        if pair["held_to_target"]
        for size, row in pair["ratio"].items()
        for op, value in row.items()
        if value < target(size)
    ]


def label(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def markdown(middle, pairs, count, where):
    head = ["p50 µs, put / get", *map(label, SIZES)]
    figures = table(
        head,
        [[mode, *(f"{middle[mode][s]['put']:.1f} / {middle[mode][s]['get']:.1f}" for s in SIZES)] for mode in TURNS],
    )
    compared = table(
        ["peer p50 / nkv p50, put / get", *map(label, SIZES)],
        [
            [f"{p['nkv']} against {p['peer']}", *(f"{p['ratio'][s]['put']:.2f} / {p['ratio'][s]['get']:.2f}" for s in SIZES)]
            for p in pairs
        ],
    )
    low = below_target(pairs)
    verdict = "\n".join(f"- {line}" for line in low) if low else "None."
    return f"""{where}, {count} interleaved rounds, one client, made by `scripts/bench`.

Medians of the rounds:

{figures}

Medians of the rounds' ratios; 1 and above means that nkv is at least as fast:

{compared}

Below target (Mooncake: at least 1 up to 1 MiB, 0.95 above):

{verdict}"""


def machine():
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} CPUs, Linux {platform.release()}"


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench", description="nkv and its peers side by side on this machine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", default="target/bench/side-by-side.json")
    parser.add_argument("--binaries", default="target/release", help="where nkv-load and nkv-node are")
    options = parser.parse_args()
    try:
        rounds = rounds_of_turns(options.rounds, options.binaries)
    except Failed as failure:
        print(f"scripts/bench: {failure}", file=sys.stderr)
        return 1
    middle, pairs = medians(rounds), ratios(rounds)
    where = machine()
    os.makedirs(os.path.dirname(os.path.abspath(options.json)), exist_ok=True)
    with open(options.json, "w", encoding="utf-8") as file:
        report = {"machine": where, "rounds": rounds, "medians": middle, "pairs": pairs}
        json.dump({**report, "below_target": below_target(pairs)}, file, indent=1)
    print(markdown(middle, pairs, options.rounds, where))
    return 0


if __name__ == "__main__":
    sys.exit(main())
