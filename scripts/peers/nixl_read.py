"""NIXL's bare transfer between the memory of two processes of one host, over UCX: `get` is its
READ, `put` its WRITE. Handles are made and memory is registered before anything is timed; there is
no key, no lookup and no validation in it.
"""

import ctypes
import mmap
import multiprocessing

from measure import LIVE_BYTES, SIZES, content, live_objects, rounds

START_S = 90


def touched(size):
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, size)
    return memory, address


def agent(name):
    from nixl._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def registered(own, address, size):
    own.register_memory(own.get_reg_descs([(address, size, 0, "")], "DRAM"))


def target(pipe):
    """The other process: memory that the first one reads and writes."""
    own = agent("target")
    _memory, address = touched(LIVE_BYTES)
    registered(own, address, LIVE_BYTES)
    pipe.send((own.get_agent_metadata(), address))
    pipe.recv()


def nixl():
    processes = multiprocessing.get_context("spawn")
    mine, theirs = processes.Pipe()
    other = processes.Process(target=target, args=(theirs,), daemon=True)
    other.start()
    try:
        if not mine.poll(START_S):
            raise RuntimeError(f"the process that is read did not start within {START_S} s")
        metadata, remote = mine.recv()
        own = agent("initiator")
        _memory, local = touched(max(SIZES))
        registered(own, local, max(SIZES))
        name = own.add_remote_agent(metadata)
        return {str(size): one_size(own, name, size, local, remote) for size in SIZES}
    finally:
        mine.close()
        other.terminate()
        other.join(5)


def one_size(own, name, size, local, remote):
    def handles(operation):
        return [
            own.initialize_xfer(
                operation,
                own.get_xfer_descs([(local, size, 0)], "DRAM"),
                own.get_xfer_descs([(remote + place * size, size, 0)], "DRAM"),
                name,
                b"",
            )
            for place in range(live_objects(size))
        ]

    reads, writes = handles("READ"), handles("WRITE")

    def transfer(handle):
        state = own.transfer(handle)
        while state != "DONE":
            if state == "ERR":
                raise RuntimeError(f"a transfer of {size} bytes failed")
            state = own.check_xfer_state(handle)

    data = content(size)
    ctypes.memmove(local, data, size)
    transfer(writes[-1])
    ctypes.memset(local, 0, size)
    transfer(reads[-1])
    if ctypes.string_at(local, size) != data:
        raise RuntimeError(f"{size} bytes came back changed")
    row = rounds(
        size,
        lambda _, place: transfer(writes[place]),
        lambda _, place: transfer(reads[place]),
        lambda: None,
    )
    for handle in reads + writes:
        own.release_xfer_handle(handle)
    return row
