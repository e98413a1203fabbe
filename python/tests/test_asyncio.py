"""The awaited calls."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np
import pytest

import nkv


def test_each_call_is_that_of_its_twin(handle: nkv.NanoKVCache, key: str) -> None:
    async def main() -> None:
        value = np.arange(1000, dtype="f4").reshape(10, 100)
        await handle.aput(key, value)
        assert await handle.aexists(key)
        assert await handle.aexists_many([key, key + "/no"]) == [True, False]
        assert ((await handle.aget(key)) == value).all()
        into = np.zeros_like(value)
        assert await handle.aget(key, dst=into) is into
        assert (into == value).all()
        with pytest.raises(nkv.InvalidArgument):
            await handle.aget(key, dst=np.zeros(3))
        found = await handle.aget_many([key, key + "/no"])
        assert found[1] is None and (found[0] == value).all()
        assert len(await handle.amatch_prefix([key, key + "/no"])) == 1
        with pytest.raises(nkv.AlreadyExists):
            await handle.aput(key, b"other", if_exists="fail")
        await handle.aremove(key)
        with pytest.raises(KeyError):
            await handle.aget(key)
        with pytest.raises(nkv.NotFound):
            await handle.aremove(key)

    asyncio.run(main())


def test_many_calls_at_once_have_no_thread_each(handle: nkv.NanoKVCache, key: str) -> None:
    async def main() -> int:
        values = [np.random.default_rng(i).bytes(3000 + i) for i in range(500)]
        puts = (handle.aput(f"{key}/{i}", value) for i, value in enumerate(values))
        await asyncio.gather(*puts)
        gets = [asyncio.ensure_future(handle.aget(f"{key}/{i}")) for i in range(500)]
        await asyncio.sleep(0)
        threads = threading.active_count()
        assert [bytes(found) for found in await asyncio.gather(*gets)] == values
        return threads

    assert asyncio.run(main()) < 10


def test_a_wait_does_not_hold_the_loop(handle: nkv.NanoKVCache, key: str) -> None:
    async def main() -> None:
        waiting = [
            asyncio.ensure_future(handle.aget_when_ready(f"{key}/{i}", 30)) for i in range(20)
        ]
        await asyncio.sleep(0.1)
        assert not any(wait.done() for wait in waiting)
        for i in range(20):
            await handle.aput(f"{key}/{i}", str(i).encode())
        assert [bytes(found) for found in await asyncio.gather(*waiting)] == [
            str(i).encode() for i in range(20)
        ]

    asyncio.run(main())


def test_a_cancelled_call_ends_and_its_memory_is_kept_until_then(
    handle: nkv.NanoKVCache, key: str
) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle.aget_when_ready(key + "/never", 60), 0.1)
        for i in range(50):
            put = asyncio.ensure_future(handle.aput(f"{key}/{i}", np.full(50_000, i)))
            await asyncio.sleep(0)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put
            gc.collect()
        found = await handle.aget_many([f"{key}/{i}" for i in range(50)])
        for i, value in enumerate(found):
            assert value is None or (value == i).all()

    asyncio.run(main())


def test_a_loop_that_ended_is_not_called(handle: nkv.NanoKVCache, key: str) -> None:
    async def start() -> None:
        handle.aput(key, b"not awaited").close()
        waiting = asyncio.ensure_future(handle.aget_when_ready(key + "/never", 0.2))
        await asyncio.sleep(0.05)
        assert not waiting.done()

    asyncio.run(start())
    asyncio.run(asyncio.sleep(0.4))
    assert not handle.exists(key)
