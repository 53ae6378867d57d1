# SPDX-License-Identifier: Apache-2.0
"""The calls that are compared with each other, and the goals.

A call is the Python statement that is timed, with the names of inputs.LEGEND. Making and dropping its result
are both part of it. The loops in C are named by what they do.
"""

import ctypes
from dataclasses import dataclass

import c_to_c
import nanobind_peer
import numpy as np
import torch
import tvm_ffi
from timing import Call, Loop
from tvm_ffi.libinfo import find_libtvm_ffi

import tenon as tn

from .inputs import address_of

EMPTY_LOOP = "Empty loop"
IMPORT, TENSOR, LOOK = "A NumPy array comes in", "A torch tensor comes in", "NumPy looks at it"
C_TAKE = "C to C: take a tensor and give it back"
C_GIVE = "C to C: hand a torch tensor to another library, which drops it"
C_STEPS = "C ABI: single steps"

# By the heading of the table; the others are compared with the first call of each.
CALLS = {
    EMPTY_LOOP: ["pass", "c_to_c.nop(x)"],
    IMPORT: [
        "tn.from_numpy(x)",
        "tn.from_numpy(x, mode='writable')",
        "tn.from_dlpack(x)",
        "np.from_dlpack(x)",
        "torch.from_numpy(x)",
        "torch.from_dlpack(x)",
        "tvm_ffi.from_dlpack(x)",
        "peer.take(x)",
    ],
    TENSOR: [
        "tn.from_dlpack(t)",
        "np.from_dlpack(t)",
        "t.numpy()",
        "torch.from_dlpack(t)",
        "tvm_ffi.from_dlpack(t)",
        "peer.take(t)",
    ],
    LOOK: [
        "np.asarray(a)",
        "a.numpy()",
        "np.from_dlpack(a)",
        "np.asarray(b)",
        "o.numpy()",
        "t.numpy()",
        "np.from_dlpack(x)",
        "np.from_dlpack(t)",
        "np.from_dlpack(v)",
    ],
    "A memoryview looks at it": ["memoryview(a)", "memoryview(b)", "memoryview(x)"],
    "torch looks at it": [
        "torch.from_dlpack(a)",
        "a.torch()",
        "torch.from_numpy(x)",
        "torch.from_dlpack(x)",
        "torch.from_dlpack(t)",
        "torch.from_dlpack(v)",
        "o.torch()",
    ],
    "MXNet looks at it": [
        "mx.nd.from_dlpack(a.to_dlpack_for_read())",
        "a.as_in_context(cpu)",
        "mx.nd.from_numpy(y)",
        "mx.nd.from_dlpack(to_dlpack(t))",
    ],
    "An array of MXNet comes in": [
        "tn.from_dlpack(m)",
        "tn.from_dlpack(m.to_dlpack_for_read())",
        "torch.from_dlpack(m.to_dlpack_for_read())",
    ],
}


@dataclass
class Goal:
    work: str
    heading: str
    call: str
    peer: str
    ratio: float


GOALS = [
    Goal("import a NumPy array", IMPORT, "tn.from_numpy(x)", "np.from_dlpack(x)", 0.55),
    Goal("", IMPORT, "tn.from_numpy(x)", "torch.from_numpy(x)", 0.3),
    Goal("import it, both may write", IMPORT, "tn.from_numpy(x, mode='writable')", "np.from_dlpack(x)", 0.6),
    Goal("", IMPORT, "tn.from_numpy(x, mode='writable')", "torch.from_numpy(x)", 0.3),
    Goal("import a tensor", TENSOR, "tn.from_dlpack(t)", "tvm_ffi.from_dlpack(t)", 1.2),
    Goal("view by NumPy", LOOK, "np.asarray(a)", "np.asarray(b)", 1.35),
    Goal("", LOOK, "np.from_dlpack(a)", "np.from_dlpack(x)", 1.2),
    Goal("C ABI: take and release", C_TAKE, "tenon_array_to_dlpack", "torch's table", 1.0),
    Goal("exchange table: take and release", C_TAKE, "Tenon's table", "torch's table", 1.0),
]


def tvm_functions():
    library = ctypes.CDLL(find_libtvm_ffi())
    names = ("TVMFFITensorFromDLPackVersioned", "TVMFFITensorToDLPackVersioned", "TVMFFIObjectDecRef")
    return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names)


def loops(inputs):
    """The loops in C, by heading and name."""
    a, t = inputs.a, inputs.t
    tvm = tvm_functions()
    return {
        C_TAKE: {
            "tenon_array_to_dlpack": Loop(lambda n: c_to_c.take_from_tenon(t, n)),
            "Tenon's table": Loop(lambda n: c_to_c.take(a, n)),
            "torch's table": Loop(lambda n: c_to_c.take(t, n)),
            "TVMFFITensorToDLPackVersioned": Loop(lambda n: c_to_c.take_from_tvm(t, tvm, n)),
        },
        C_GIVE: {
            "tenon_array_from_dlpack": Loop(lambda n: c_to_c.give_to_tenon(t, n)),
            "Tenon's table": Loop(lambda n: c_to_c.hand_over(t, tn.NDArray, n)),
            "torch's table": Loop(lambda n: c_to_c.hand_over(t, torch.Tensor, n)),
        },
        C_STEPS: {
            "tenon_array_adopt, _release": Loop(c_to_c.adopt),
            "tenon_array_create, _release": Loop(c_to_c.create),
            "tenon_view_open, _close": Loop(lambda n: c_to_c.view(t, n)),
        },
    }


def contenders(inputs):
    """All contenders, by heading and name. Checks first that no call copies."""
    names = {"np": np, "torch": torch, "tn": tn, "tvm_ffi": tvm_ffi, "peer": nanobind_peer, "c_to_c": c_to_c}
    names |= inputs.names()
    calls = calls_of(inputs)
    check_aliasing(calls, names, inputs)
    in_python = {heading: {call: Call(call, names) for call in group} for heading, group in calls.items()}
    return in_python | loops(inputs)


def calls_of(inputs):
    """The calls by heading. Those of MXNet where it is installed, for arrays that it can have."""
    if inputs.has_mxnet:
        return CALLS
    return {heading: calls for heading, calls in CALLS.items() if "MXNet" not in heading}


def check_aliasing(calls_by_heading, names, inputs):
    lenders = [inputs.x, inputs.t, inputs.a, inputs.b, inputs.v, inputs.o.numpy()]
    lenders += [inputs.m, inputs.y] if inputs.has_mxnet else []
    known = {address_of(array) for array in lenders}
    for heading, calls in calls_by_heading.items():
        if heading == EMPTY_LOOP:
            continue
        for call in calls:
            result = eval(call.replace("peer.take", "peer.address"), dict(names))
            address = result if isinstance(result, int) else address_of(result)
            if address not in known:
                raise AssertionError(f"{call} made a copy")
    for tensor in (inputs.a, inputs.t):
        if c_to_c.address(tensor) != address_of(tensor):
            raise AssertionError(f"the table of {type(tensor)} made a copy")


def check_released(inputs):
    """Fails if a call has kept its arguments."""
    if not inputs.x.flags.writeable:
        raise AssertionError("a NumPy array that was lent did not get its flag back")
    open_buffers, _ = inputs.b.counts()
    if open_buffers != 0:
        raise AssertionError(f"{open_buffers} buffers of the bare exporter are still open")
