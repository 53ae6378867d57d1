# SPDX-License-Identifier: Apache-2.0
"""A camera, a recorder that gets every frame, and a viewer that gets the latest one.

python camera.py camera & python camera.py every & python camera.py latest

The three may come in any order. The camera may be killed and started again at any time.
"""

import os
import sys
import time
from typing import Any

import tenon as tn

CHANNEL: dict[str, Any] = {"nbytes": "128 MiB", "name": "camera", "mode": "broadcast", "exist_ok": True}


def camera(frames: int = 600) -> None:
    channel: Any = tn.Channel(**CHANNEL)
    with channel:
        for k in range(frames):
            with channel.loan() as item:
                image = item.empty((1080, 1920, 3), "u1")
                image.numpy()[...] = k % 256  # here the frame grabber writes to it
                item.send({"image": image, "run": os.getpid(), "k": k, "ns": time.monotonic_ns()})
            time.sleep(1 / 60)


def receive(receives: Any) -> None:
    for frame in tn.Channel(**CHANNEL, on_death="wait", receives=receives):
        late = (time.monotonic_ns() - frame["ns"]) / 1e6
        pixel = int(frame["image"][0, 0, 0])
        print(f"run {frame['run']}, frame {frame['k']}: {pixel}, {late:.2f} ms", flush=True)


if sys.argv[1] == "camera":
    camera(*map(int, sys.argv[2:]))
else:
    receive(sys.argv[1])  # 'every': the recorder; 'latest': the viewer
