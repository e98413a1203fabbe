"""nkv and its peers on this machine, taking turns: three rounds of every mode, medians, ratios.

Started by `scripts/bench`, which builds. Standard library only. The speed of a shared machine
drifts by factors within seconds, so a ratio is taken within a round, between neighbours in time,
and the median of the rounds' ratios is what counts.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time

import budgets
import nodes
import sockets
from budgets import MIB, SIZES, label
from nodes import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
# Of a value in the caller's buffer and into the caller's buffer: put_from and get_into, where a
# peer has several.
OPERATIONS = ("put", "get")
# One round, in this order: each peer next to the mode of nkv that it is compared with.
TURNS = [
    "memcpy",
    "mooncake-local",
    "nkv-embedded",
    "mooncake-dummy",
    "nkv-shm",
    "nkv-python",
    "nixl",
    "mooncake-tcp",
    "nkv-tcp",
    "nkv-python-tcp",
    "redis",
]
# Also in each round, and used for the budgets alone. The mode compared with iperf3 runs between the
# two of iperf3.
BUDGET_TURNS = ["nkv-budgets", "nkv-lookups", "iperf3", "nkv-sustained", "iperf3 -l 1M"]
# (peer, mode of nkv, whether the target below holds for the pair)
PAIRS = [
    ("mooncake-local", "nkv-embedded", True),
    ("mooncake-dummy", "nkv-shm", True),
    ("mooncake-dummy", "nkv-python", True),
    ("mooncake-tcp", "nkv-tcp", True),
    ("mooncake-tcp", "nkv-python-tcp", True),
    ("redis", "nkv-shm", False),
    ("nixl", "nkv-shm", False),
    ("memcpy", "nkv-embedded", False),
]
# A log sustains a quarter of itself in each quarantine of 50 ms: 4 GiB are enough for some 5 M puts
# of 4 KiB a second, and for a tenth of a second in which the owner, which shares two processors
# with two producers, does not run.
NODE = ["--heap-bytes", "6GiB", "--log-bytes", "4GiB"]
# An object takes 4 KiB of the log, of which the owner keeps a quarter free. Pages are faulted in by
# the puts.
LOOKUP_NODE = ["--heap-bytes", "6208MiB", "--log-bytes", "6GiB", "--no-prefault"]
LOOKUPS = 1_000_000


def target(size):
    """At least as fast up to 1 MiB; above, where everything is one long copy, within 5%."""
    return 1.0 if size <= MIB else 0.95


def measure_peer(mode):
    answer = json.loads(nodes.run([os.path.join(HERE, "run"), mode], mode))
    return {
        int(size): {name.removesuffix("_us").removesuffix("_p50"): us for name, us in row.items()}
        for size, row in answer[mode].items()
    }


def measure_nkv(mode, binaries):
    transport = mode.removeprefix("nkv-")
    flags = ["--bench", "--transport", transport]
    rows = nodes.load(binaries, mode, flags, None if transport == "embedded" else NODE)["ops"]
    table = {}
    for row in rows:
        table.setdefault(row["bytes"], {})[row["op"]] = row["p50_us"]
    missing = [size for size in SIZES if not set(OPERATIONS) <= set(table.get(size, {}))]
    if missing:
        raise Failed(f"{mode}: no put or no get of {missing} bytes in its report")
    return table


def measure_budgets(turn, binaries):
    """None where iperf3 is absent: its rows are then skipped, and say so."""
    if turn in sockets.WAYS:
        return sockets.gb_per_s(turn) if sockets.present() else None
    if turn == "nkv-lookups":
        return nodes.load(binaries, turn, ["--lookups", str(LOOKUPS)], LOOKUP_NODE)
    transport = "tcp" if turn == "nkv-sustained" else "shm"
    return nodes.load(binaries, turn, ["--budgets", "--transport", transport], NODE)


def measure(turn, binaries):
    if turn in BUDGET_TURNS:
        return measure_budgets(turn, binaries)
    by_rust = turn.startswith("nkv-") and not turn.startswith("nkv-python")
    return measure_nkv(turn, binaries) if by_rust else measure_peer(turn)


def rounds_of_turns(count, binaries):
    rounds = []
    for number in range(1, count + 1):
        tables = {}
        for mode in TURNS + BUDGET_TURNS:
            started = time.monotonic()
            tables[mode] = measure(mode, binaries)
            print(
                f"round {number}/{count}: {mode}, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
            )
        rounds.append(tables)
    return rounds


def medians(rounds):
    return {
        mode: {
            size: {
                op: statistics.median(tables[mode][size][op] for tables in rounds)
                for op in OPERATIONS
            }
            for size in SIZES
        }
        for mode in TURNS
    }


def ratios(rounds):
    """Per pair, size and operation the median over the rounds of peer p50 / nkv p50: 1 and above
    means nkv is as fast."""
    return [
        {
            "peer": peer,
            "nkv": mine,
            "held_to_target": held,
            "ratio": {
                size: {
                    op: round(
                        statistics.median(t[peer][size][op] / t[mine][size][op] for t in rounds), 3
                    )
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


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def markdown(middle, pairs, lines, count, where):
    head = ["p50 µs, put / get", *map(label, SIZES)]
    figures = table(
        head,
        [
            [mode, *(f"{middle[mode][s]['put']:.1f} / {middle[mode][s]['get']:.1f}" for s in SIZES)]
            for mode in TURNS
        ],
    )
    compared = table(
        ["peer p50 / nkv p50, put / get", *map(label, SIZES)],
        [
            [
                f"{p['nkv']} against {p['peer']}",
                *(f"{p['ratio'][s]['put']:.2f} / {p['ratio'][s]['get']:.2f}" for s in SIZES),
            ]
            for p in pairs
        ],
    )
    low = below_target(pairs)
    verdict = "\n".join(f"- {line}" for line in low) if low else "None."
    held = table(["budget", "limit", "measured", "met"], [line.cells() for line in lines])
    return f"""{where}, {count} interleaved rounds, one client, made by `scripts/bench`.

Medians of the rounds:

{figures}

Medians of the rounds' ratios; 1 and above means that nkv is at least as fast:

{compared}

Below target (Mooncake: at least 1 up to 1 MiB, 0.95 above):

{verdict}

Budgets, medians of the rounds (ratios within a round):

{held}"""


def machine():
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(
            (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model
        )
    return f"{model}, {os.cpu_count()} CPUs, Linux {platform.release()}"


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="nkv and its peers side by side on this machine"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", default="target/bench/side-by-side.json")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a budget is missed")
    parser.add_argument(
        "--binaries", default="target/release", help="where nkv-load and nkv-node are"
    )
    options = parser.parse_args()
    try:
        rounds = rounds_of_turns(options.rounds, options.binaries)
    except Failed as failure:
        print(f"scripts/bench: {failure}", file=sys.stderr)
        return 1
    middle, pairs = medians(rounds), ratios(rounds)
    lines = budgets.judge(rounds, "" if sockets.present() else sockets.MISSING)
    where = machine()
    os.makedirs(os.path.dirname(os.path.abspath(options.json)), exist_ok=True)
    with open(options.json, "w", encoding="utf-8") as file:
        report = {"machine": where, "rounds": rounds, "medians": middle, "pairs": pairs}
        held = [
            {
                "budget": x.name,
                "limit": x.limit,
                "at_most": x.at_most,
                "values": x.values,
                "met": x.met,
            }
            for x in lines
        ]
        json.dump({**report, "below_target": below_target(pairs), "budgets": held}, file, indent=1)
    print(markdown(middle, pairs, lines, options.rounds, where))
    missed = budgets.missed(lines)
    for line in missed:
        print(f"scripts/bench: missed: {' | '.join(line.cells()[:3])}", file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
