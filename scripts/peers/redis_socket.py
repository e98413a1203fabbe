"""Redis over a unix socket: a bare client that sends from and receives into buffers made
beforehand, as a client in a systems language would at best. No client library."""

import os
import shutil
import socket
import subprocess
import tempfile

from measure import SIZES, expect, measure_sizes, stop, wait_for_listener

# Room for the reply's head line and closing line around the largest value.
FRAME_BYTES = 64


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.value = bytearray(max(SIZES))
        self.reply = memoryview(bytearray(max(SIZES) + FRAME_BYTES))

    def put(self, key, size):
        name = key.encode()
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(name), name, size)
        unsent = [memoryview(head), memoryview(self.value)[:size], memoryview(b"\r\n")]
        while unsent:
            sent = self.socket.sendmsg(unsent)
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.pop(0))
            if sent:
                unsent[0] = unsent[0][sent:]
        expect(self.read_line(), b"+OK", "SET")

    def get(self, key, size):
        """Leaves the value, and the frame around it, in `self.reply`."""
        name = key.encode()
        self.socket.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(name), name))
        head = b"$%d\r\n" % size
        self.read_exactly(len(head) + size + 2)
        expect(bytes(self.reply[: len(head)]), head, "GET")
        self.start = len(head)

    def clear(self):
        self.socket.sendall(b"*1\r\n$8\r\nFLUSHALL\r\n")
        expect(self.read_line(), b"+OK", "FLUSHALL")

    def filled(self, size, data):
        self.value[:size] = data
        return lambda: bytes(self.reply[self.start : self.start + size])

    def read_line(self):
        got = 0
        while bytes(self.reply[max(0, got - 2) : got]) != b"\r\n":
            got += self.receive(self.reply[got : got + FRAME_BYTES])
        return bytes(self.reply[: got - 2])

    def read_exactly(self, count):
        got = 0
        while got < count:
            got += self.receive(self.reply[got:count])

    def receive(self, into):
        count = self.socket.recv_into(into)
        if count == 0:
            raise RuntimeError("the server closed the connection")
        return count


def redis():
    server = shutil.which("redis-server")
    if server is None:
        raise RuntimeError("redis-server is missing: apt-get install redis-server")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        options = [
            "--port",
            "0",
            "--unixsocket",
            path,
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ]
        process = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)
        try:
            wait_for_listener(process, socket.AF_UNIX, path)
            client = Client(path)
            return measure_sizes(client.put, client.get, client.filled, client.clear)
        finally:
            stop(process)
