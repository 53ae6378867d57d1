# SPDX-License-Identifier: Apache-2.0
"""asyncio: adumps waits for room without blocking the event loop; a stream carries length and message."""

import asyncio
import sys

import numpy as np

import tenon as tn

CHILD = """
import sys
import tenon as tn
read = sys.stdin.buffer.read
while head := read(4):
    print(float(tn.loads(read(int.from_bytes(head, "little")))["x"].sum()), flush=True)
"""


async def main() -> None:
    pool = tn.TensorPool("16 MiB")  # room for two of eight
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, stdin=pipe, stdout=pipe)
    assert child.stdin is not None and child.stdout is not None
    to_child, from_child = child.stdin, child.stdout

    async def send(i: int) -> None:
        data = await pool.adumps({"x": np.full(1 << 20, i, "f8")})
        to_child.write(len(data).to_bytes(4, "little") + data)
        await to_child.drain()

    sending = asyncio.gather(*(send(i) for i in range(8)))
    sums = sorted([float(await from_child.readline()) for _ in range(8)])
    await sending
    assert sums == [float(i << 20) for i in range(8)]
    to_child.close()
    await child.wait()


asyncio.run(main())
