"""A network with latency between hosts: network namespaces whose TAP devices meet in a switch of
this process, which forwards each frame after a delay. For kernels without netem. Linux, root,
iproute2.

    python3 switch.py PREFIX HOSTS ONE_WAY_MS    until standard input ends; prints "up" once it is

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


def forward(taps: list[int], delay_s: float) -> None:
    """Until standard input ends."""
    number_of = {tap: number for number, tap in enumerate(taps)}
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for ready in select.select([*taps, 0], [], [], pause)[0]:
            if ready == 0:
                if not os.read(0, 1):
                    return
                continue
            due = time.monotonic() + delay_s
            for _ in range(BURST):
                try:
                    frame = os.read(ready, MTU + 64)
                except OSError:
                    break
                count += 1
                heapq.heappush(waiting, (due, count, number_of[ready], frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, source, frame = heapq.heappop(waiting)
            known = frame[:5] == MAC and frame[5] < len(taps)
            others = [number for number in range(len(taps)) if number != source]
            for target in [frame[5]] if known else others:
                try:
                    os.write(taps[target], frame)
                except OSError:
                    pass  # the device is down, or its queue is full: lost, as in a network


def main() -> None:
    # The caller closes standard input, or is gone.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prefix, hosts, one_way_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    names = [f"{prefix}{number}" for number in range(hosts)]
    try:
        taps = [make_host(name, number) for number, name in enumerate(names)]
        print("up", flush=True)
        forward(taps, one_way_ms / 1000)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


if __name__ == "__main__":
    main()
