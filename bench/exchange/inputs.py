# SPDX-License-Identifier: Apache-2.0
"""The arrays that are exchanged, the same shape and dtype from every library."""

import mxnet_peer
import numpy as np
import torch
import tvm_ffi
from bare_exporter import BareExporter
from nanobind_peer import Lender

import tenon as tn

LEGEND = {
    "x": "a NumPy array that is not lent",
    "t": "a torch tensor",
    "a": "a Tenon array",
    "b": "a bare exporter of a buffer that counts its borrowers (`native/bare_exporter.c`)",
    "v": "a tensor of tvm_ffi",
    "o": "an object of a class written with nanobind, which returns an `nb::ndarray` over its memory",
    "m": f"an array of {mxnet_peer.NAME}",
    "y": "a NumPy array that MXNet has made read-only for good",
    "cpu": "`mx.cpu()`",
    "to_dlpack": "`torch.utils.dlpack.to_dlpack`",
    "peer": "the nanobind extension",
}


class Inputs:
    """One array of each library; each has memory of its own."""

    def __init__(self, shape, step, n_others):
        def window(whole):
            return whole[::step, ::step]

        whole = tuple(n * step for n in shape)
        self.x = window(np.zeros(whole, "f4"))
        self.t = window(torch.zeros(whole))
        self.a = window(tn.zeros(whole, "float32"))
        self.b = BareExporter(window(np.zeros(whole, "f4")))
        self.v = tvm_ffi.from_dlpack(window(np.zeros(whole, "f4")))
        self.o = Lender(window(np.zeros(whole, "f4")))
        self.has_mxnet = step == 1 and not mxnet_peer.is_missing()  # MXNet has no strides
        if self.has_mxnet:
            self.y = np.zeros(shape, "f4")
            self.m = mxnet_peer.load().nd.zeros(shape)
        self._others = [tn.from_numpy(np.zeros(64, "f4")) for _ in range(n_others)]

    def names(self):
        names = {name: value for name, value in vars(self).items() if len(name) == 1}
        if self.has_mxnet:
            mx = mxnet_peer.load()
            names |= {"mx": mx, "cpu": mx.cpu(), "to_dlpack": torch.utils.dlpack.to_dlpack}
        return names


SMALL = "4 x 8"
# In the order of the table's columns.
KINDS = {
    SMALL: lambda: Inputs((4, 8), 1, 0),
    "64 MiB": lambda: Inputs((4096, 4096), 1, 0),
    "strided": lambda: Inputs((4, 8), 2, 0),
    "among 1,000": lambda: Inputs((4, 8), 1, 1000),
}
KINDS_LEGEND = (
    "4 x 8 and 64 MiB (4096 x 4096) are contiguous float32; strided is every second row and column of "
    "8 x 16; among 1,000 is 4 x 8 while 1,000 other NumPy arrays are lent to Tenon"
)


def address_of(array):
    """The address of element 0, for each kind of result."""
    if isinstance(array, torch.Tensor | tn.NDArray):
        return array.data_ptr() if isinstance(array, torch.Tensor) else array.data_ptr
    if hasattr(array, "to_dlpack_for_read"):  # MXNet's
        return tn.from_dlpack(array.to_dlpack_for_read()).data_ptr
    if isinstance(array, tvm_ffi.Tensor):
        array = np.from_dlpack(array)
    return np.asarray(array).__array_interface__["data"][0]
