# SPDX-License-Identifier: Apache-2.0
"""Files of one array of n MiB, saved and loaded whole. `tn.save` waits until a disk has the bytes; no peer
does. In a file system in memory there is nothing to wait for."""

import tempfile
from pathlib import Path

import mxnet_peer
import numpy as np

import tenon as tn

MIB = 1 << 20
IN_MEMORY, ON_DISK = "/dev/shm", tempfile.gettempdir()


def of_tenon(suffix):
    return suffix, tn.save, tn.load


def of_numpy(suffix):
    return suffix, np.save, np.load


def of_mxnet(suffix):
    nd = mxnet_peer.load().nd
    return (
        suffix,
        lambda path, x: nd.save(path, nd.from_numpy(x)),
        lambda path: nd.load(path)[0].wait_to_read(),
    )


def in_file(library, suffix, folder, is_save):
    """A contender: the call that saves or loads an array of n MiB."""

    def contender(n):
        name, save, load = library(suffix)
        x = np.ones(n * MIB // 4, np.float32)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            path = str(Path(scratch) / f"file{name}")
            save(path, x)
            yield (lambda: save(path, x)) if is_save else (lambda: load(path)), 1

    return contender


def contenders(is_save):
    """By name. Those of MXNet only where it is installed."""
    found = {"Tenon": in_file(of_tenon, ".params", IN_MEMORY, is_save)}
    if not mxnet_peer.is_missing():
        found[mxnet_peer.NAME] = in_file(of_mxnet, ".params", IN_MEMORY, is_save)
    found["NumPy, .npy"] = in_file(of_numpy, ".npy", IN_MEMORY, is_save)
    found["Tenon, .npy"] = in_file(of_tenon, ".npy", IN_MEMORY, is_save)
    if is_save:
        found["Tenon, to a disk with the sync"] = in_file(of_tenon, ".params", ON_DISK, is_save)
        if not mxnet_peer.is_missing():
            found[f"{mxnet_peer.NAME}, to a disk"] = in_file(of_mxnet, ".params", ON_DISK, is_save)
    return found
