"""A network with latency between hosts: network namespaces whose TAP devices meet in a switch of
this process, which forwards each frame after a delay. For kernels without netem. Linux, root,
iproute2.

    python3 switch.py PREFIX HOSTS ONE_WAY_MS [MB_PER_S]

runs until standard input ends, and prints "up" once it is. With a rate, the link of each host but
the last one carries so much in each direction.

Host i is namespace PREFIXi with address 10.77.0.(10 + i) on device tap0. A device that is set down
is a silent partition: frames vanish, and nobody gets a reset.
"""
import fcntl
import heapq
import os
import select
import signal
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP_WITHOUT_INFO = 0x0002 | 0x1000
# Large: each frame takes this process some 50 us.
MTU = 65000
# Frames read from one device before the others get their turn.
BURST = 64
MAC = b"\x02\x00\x00\x00\x00"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def make_host(namespace: str, number: int) -> int:
    """Makes a namespace with its TAP device; returns the switch's end of it."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    device = f"{namespace}t"
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TAP_WITHOUT_INFO))
    ip("netns", "add", namespace)
    ip("link", "set", device, "netns", namespace, "name", "tap0")
    inside = ("-n", namespace)
    ip(*inside, "link", "set", "tap0", "address", f"02:00:00:00:00:{number:02x}")
    ip(*inside, "addr", "add", f"10.77.0.{10 + number}/24", "dev", "tap0")
    ip(*inside, "link", "set", "tap0", "mtu", str(MTU), "up")
    ip(*inside, "link", "set", "lo", "up")
    return tap


class Links:
    """When each link has carried what was sent over it, in each direction."""

    def __init__(self, hosts: int, bytes_per_s: float) -> None:
        seconds = 1 / bytes_per_s
        self.seconds_per_byte = [seconds] * (hosts - 1) + [0.0]
        self.free_out, self.free_in = [0.0] * hosts, [0.0] * hosts

    def carried(self, now: float, source: int, target: int, size: int) -> float:
        """When a frame that is sent now has arrived."""
        sent = max(now, self.free_out[source]) + size * self.seconds_per_byte[source]
        self.free_out[source] = sent
        # The receiving link carries a frame while the sending one does.
        begun = max(now, self.free_in[target])
        arrived = max(sent, begun + size * self.seconds_per_byte[target])
        self.free_in[target] = arrived
        return arrived


def forward(taps: list[int], delay_s: float, links: Links) -> None:
    """Until standard input ends."""
    number_of = {tap: number for number, tap in enumerate(taps)}
    waiting: list[tuple[float, int, int, bytes]] = []  # the int is that of the target
    count = 0
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for ready in select.select([*taps, 0], [], [], pause)[0]:
            if ready == 0:
                if not os.read(0, 1):
                    return
                continue
            now, source = time.monotonic(), number_of[ready]
            for _ in range(BURST):
                try:
                    frame = os.read(ready, MTU + 64)
                except OSError:
                    break
                known = frame[:5] == MAC and frame[5] < len(taps)
                others = [number for number in range(len(taps)) if number != source]
                for target in [frame[5]] if known else others:
                    count += 1
                    due = links.carried(now, source, target, len(frame)) + delay_s
                    heapq.heappush(waiting, (due, count, target, frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, frame = heapq.heappop(waiting)
            try:
                os.write(taps[target], frame)
            except OSError:
                pass  # the device is down, or its queue is full: lost, as in a network


def main() -> None:
    # The caller closes standard input, or is gone.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prefix, hosts, one_way_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    mb_per_s = float(sys.argv[4]) if len(sys.argv) > 4 else float("inf")
    names = [f"{prefix}{number}" for number in range(hosts)]
    try:
        taps = [make_host(name, number) for number, name in enumerate(names)]
        print("up", flush=True)
        forward(taps, one_way_ms / 1000, Links(hosts, mb_per_s * 1e6))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


if __name__ == "__main__":
    main()
