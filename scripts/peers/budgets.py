"""The budgets of the design, each with its limit, the measured figures, and whether they keep it.
It measures nothing. A ratio is taken within a round and the median over the rounds counts,
since the machine's speed drifts.
"""

import statistics
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB]
SMALL = SIZES[0]
# (peer, operations that it must lose at every size): NIXL's bare read has no counterpart to a put.
BEATEN = [("mooncake-dummy", ("put", "get")), ("redis", ("put", "get")), ("nixl", ("get",))]
# Mooncake's time for 4 KiB divided by nkv's.
AHEAD = 100.0
# The same where nkv is called from Python, too.
FROM_PYTHON = 50.0


def label(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


@dataclass
class Line:
    """One budget. `values` has a figure per round, or is empty with the reason in `skipped`;
    `limit` None is recorded only."""

    name: str
    values: list
    limit: float | None
    at_most: bool = True
    unit: str = ""
    skipped: str = ""

    @property
    def measured(self):
        return statistics.median(self.values) if self.values else None

    @property
    def met(self):
        """None: without a limit, or not measured."""
        if self.limit is None or not self.values:
            return None
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def cells(self):
        sign = "" if self.limit is None else ("≤ " if self.at_most else "≥ ")
        limit = (
            "recorded" if self.limit is None else f"{sign}{number(self.limit)} {self.unit}".strip()
        )
        if not self.values:
            return [self.name, limit, f"skipped: {self.skipped}", "-"]
        verdict = {None: "-", True: "yes", False: "**no**"}[self.met]
        return [self.name, limit, f"{number(self.measured)} {self.unit}".strip(), verdict]


def number(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def figures(report):
    """{(op, bytes): row} and {(op, processes): a second} of a report of nkv-load."""
    rows = {(row["op"], row["bytes"]): row for row in report["ops"]}
    rates = {(rate["op"], rate["processes"]): rate["per_s"] for rate in report.get("rates", [])}
    return rows, rates


def of_row(rounds, turn, op, size, figure):
    return [figure(figures(tables[turn])[0][op, size]) for tables in rounds]


def p50(row):
    return row["p50_us"]


def vs_memcpy(row):
    return row["vs_memcpy"]


def spread(row):
    return row["p99_us"] / row["p50_us"]


def rate(rounds, turn, op, processes=1):
    return [figures(tables[turn])[1].get((op, processes), 0.0) for tables in rounds]


def same_host(rounds):
    def row(text, op, size, figure, limit, unit=""):
        return Line(text, of_row(rounds, "nkv-budgets", op, size, figure), limit, unit=unit)

    yield row("get 4 KiB warm, p50", "get warm", SMALL, p50, 0.3, "µs")
    yield row("get 4 KiB cold, p50", "get cold", SMALL, p50, 1.0, "µs")
    yield row("get 4 KiB cold over memcpy", "get cold", SMALL, vs_memcpy, 2.0)
    yield row("get 4 KiB jumping in the ring, p50", "get jumping", SMALL, p50, None, "µs")
    yield row("get 4 KiB warm, p99 over p50, owner idle", "get warm", SMALL, spread, 20.0)
    yield row("get 4 KiB cold, p99 over p50, owner idle", "get cold", SMALL, spread, 20.0)
    yield row("get 4 KiB warm, p99 over p50, under load", "get under load", SMALL, spread, None)
    for size in SIZES[1:]:
        for op in ("get warm", "get cold"):
            yield row(f"{op} {label(size)} over memcpy", op, size, vs_memcpy, 1.1)
    yield row("put 4 KiB by the log, busy, p50", "put log busy", SMALL, p50, 1.0, "µs")
    yield row("put 4 KiB by the log, isolated, p50", "put log isolated", SMALL, p50, 3.0, "µs")
    yield row("put 4 KiB by a plan, busy, p50", "put plan busy", SMALL, p50, 5.0, "µs")
    yield row("put 4 KiB by a plan, idle, p50", "put plan idle", SMALL, p50, 60.0, "µs")
    for size in SIZES[1:]:
        limit = 0.8 if size == 64 * KIB else 0.7
        yield row(
            f"put {label(size)} by the log over memcpy", "put log busy", size, vs_memcpy, limit
        )
    for processes, limit in ((1, 1.2e6), (2, 1.8e6)):
        name = f"puts of 4 KiB by the log, producers: {processes}"
        yield Line(
            name, rate(rounds, "nkv-budgets", "put log", processes), limit, at_most=False, unit="/s"
        )


def lookups(rounds):
    for op, limit in (("lookup hit", 8e6), ("lookup miss", 5e6)):
        name = f"{op}, 32-byte keys, batches of 128, 1 M objects"
        yield Line(name, rate(rounds, "nkv-lookups", op), limit, at_most=False, unit="/s")


def tcp(rounds, skipped):
    """Several objects in one call against iperf3, which streams, too; one at a time is recorded
    beside it."""
    for size in (MIB, 4 * MIB, 16 * MIB):
        for op in ("get", "put"):
            for way, limit in (("iperf3", 0.9), ("iperf3 -l 1M", 0.8)):
                for batch, held in ((f"{op} batch", limit), (op, None)):
                    name = f"tcp {batch} {label(size)} over {way}"
                    values = [] if skipped else over(rounds, batch, size, way)
                    yield Line(name, values, held, at_most=False, skipped=skipped)


def over(rounds, op, size, way):
    mine = of_row(rounds, "nkv-sustained", op, size, lambda row: row["gb_per_s"])
    return [value / tables[way] for value, tables in zip(mine, rounds)]


def beaten(rounds):
    for peer, operations in BEATEN:
        for op in operations:
            for size in SIZES:
                values = [tables[peer][size][op] / tables["nkv-shm"][size][op] for tables in rounds]
                limit = AHEAD if (peer, size) == ("mooncake-dummy", SMALL) else 1.0
                yield Line(f"{op} {label(size)}: {peer} over nkv-shm", values, limit, at_most=False)


def python(rounds):
    """What the binding costs, and Mooncake from Python beside it: the same calls."""
    for op in ("put", "get"):
        values = [
            tables["nkv-python"][SMALL][op] - tables["nkv-shm"][SMALL][op] for tables in rounds
        ]
        yield Line(f"Python: {op} 4 KiB, over Rust's", values, 1.0, unit="µs")
        size, batch = 256 * KIB, f"{op}_batch"
        mine = of_row(rounds, "nkv-budgets", f"{op} batch", size, p50)
        values = [us / tables["nkv-python"][size][batch] for us, tables in zip(mine, rounds)]
        name = f"Python: {op} of 128 of 256 KiB, speed over Rust's"
        yield Line(name, values, 0.9, at_most=False)
        for peer, turn in (("mooncake-dummy", "nkv-python"), ("mooncake-tcp", "nkv-python-tcp")):
            for size in SIZES:
                values = [tables[peer][size][op] / tables[turn][size][op] for tables in rounds]
                limit = FROM_PYTHON if (turn, size) == ("nkv-python", SMALL) else 1.0
                name = f"Python: {op} {label(size)}: {peer} over {turn}"
                yield Line(name, values, limit, at_most=False)


def judge(rounds, skipped):
    """Every budget; `skipped` says why there is no iperf3, or is empty."""
    lines = [*same_host(rounds), *lookups(rounds), *tcp(rounds, skipped)]
    return [*lines, *beaten(rounds), *python(rounds)]


def missed(lines):
    return [line for line in lines if line.met is False]
