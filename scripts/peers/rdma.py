"""Runs in a guest with an RDMA device: nkv's benchmark and perftest by turns, and prints a table of
ratios."""

import json
import re
import statistics
import subprocess
import sys
import time

DEVICE = ["-d", "rxe0", "-x", "1", "-F"]
SIZES = {"64KiB": 65536, "1MiB": 1 << 20}


def pair(tool, *args):
    """The output of a perftest client against a server of its own."""
    command = [tool, *DEVICE, *args]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.7)
    try:
        client = subprocess.run([*command, "127.0.0.1"], capture_output=True, text=True, timeout=60)
    finally:
        server.wait(timeout=10)
    rows = [line.split() for line in client.stdout.splitlines() if re.match(r"^ \d+ ", line)]
    if client.returncode or not rows:
        sys.exit(f"{' '.join(command)}: {client.stdout}{client.stderr}")
    return rows[-1]


def bandwidth(op, size, depth):
    """MiB a second, average."""
    row = pair(
        f"ib_{op}_bw", "-s", str(size), "-n", str(max(40, (8 << 20) // size)), "-t", str(depth)
    )
    return float(row[3])


def latency(tool):
    """Microseconds, typical."""
    return float(pair(tool, "-n", "300")[4])


def measured(bench, rows):
    """Figures of nkv whose names begin like this, by name."""
    return json.loads(
        subprocess.run([bench, rows], capture_output=True, text=True, check=True).stdout
    )


def one_round(bench):
    ratios = {}
    for op in ("write", "read"):
        for name, size in SIZES.items():
            for depth in (1, 8):
                key = f"{op} {name} {depth}"
                figures, theirs = measured(bench, key), bandwidth(op, size, depth)
                for how, copied in (("", ""), (" copied", ", through a copy")):
                    nkv = figures[key + how]
                    ratios[f"{op} {name}, depth {depth}{copied}: nkv over ib_{op}_bw"] = (
                        nkv / theirs,
                        nkv,
                        theirs,
                    )
    nkv, both = measured(bench, "small"), latency("ib_write_lat") + latency("ib_atomic_lat")
    for name in ("small put", "small put by claim"):
        ratios[f"{name} over ib_write_lat + ib_atomic_lat"] = (
            nkv[f"{name} us"] / both,
            nkv[f"{name} us"],
            both,
        )
    return ratios


def main():
    bench, rounds = sys.argv[1], int(sys.argv[2])
    results = [one_round(bench) for _ in range(rounds)]
    print("| what | ratio | lowest to highest | nkv | perftest |\n|---|---|---|---|---|")
    for name in results[0]:
        ratio, nkv, theirs = (statistics.median(r[name][i] for r in results) for i in range(3))
        all_ratios = sorted(r[name][0] for r in results)
        print(
            f"| {name} | {ratio:.2f} | {all_ratios[0]:.2f} to {all_ratios[-1]:.2f} "
            f"| {nkv:.1f} | {theirs:.1f} |"
        )


if __name__ == "__main__":
    main()
