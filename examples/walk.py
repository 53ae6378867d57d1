# SPDX-License-Identifier: Apache-2.0
"""Reads batches that the plug-in walk.cc fills.

Build the library first, in this folder:
c++ -std=c++20 -O3 -shared -fPIC $(tenon config --includes) walk.cc -o libwalk.so
"""

import numpy as np

import tenon as tn

walk = tn.plugin("./libwalk.so", rows=32, steps=100, sigma=0.5)
right: list[float] = []
spread: list[float] = []

with tn.Feed(walk, workers=2, batches=50, seed=1) as feed:  # the plug-in has said what it fills
    for data, label in feed.numpy():
        right.append(label.mean())
        spread.append(data[:, -1].std())
print(f"{np.mean(right):.2f} end to the right, {np.mean(spread):.1f} is their spread: sqrt(100) * 0.5 = 5")
