# SPDX-License-Identifier: Apache-2.0
"""What keeps memory alive is given back once, soon, and on any path: from threads without Python, by a
program that makes no further call, out of the middle of other releases."""

import ctypes
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


class Owned:
    """An object whose end can be seen."""

    def __init__(self):
        self.memory = (ctypes.c_uint8 * 64)()

    def array(self, **options):
        return tn.from_pointer(ctypes.addressof(self.memory), 64, "uint8", owner=self, **options)


def deleter_of(capsule):
    """The deleter of a versioned capsule and its tensor, for a call by hand; the capsule is consumed."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
    tensor = api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    api.PyCapsule_SetName(capsule, USED)
    deleter = ctypes.c_void_p.from_address(tensor + 16).value
    return deleter, tensor


USED = b"used_dltensor_versioned"  # capsules keep the pointer


def comes_true(condition):
    """Within a time that is long for any machine; the loop makes no call into Tenon."""
    limit = time.monotonic() + 600
    while not condition() and time.monotonic() < limit:
        pass
    return condition()


def test_a_deleter_without_the_gil_gives_the_owner_back_without_a_further_call():
    owner = Owned()
    gone = threading.Event()
    weakref.finalize(owner, gone.set)
    deleter, tensor = deleter_of(owner.array().__dlpack__(max_version=(1, 0)))
    del owner
    assert not gone.is_set()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(tensor)  # without the GIL
    assert gone.wait(30)


def test_a_deleter_with_the_gil_gives_the_owner_back_at_once():
    owner = Owned()
    reference = weakref.ref(owner)
    deleter, tensor = deleter_of(owner.array().__dlpack__(max_version=(1, 0)))
    del owner
    ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter)(tensor)  # holds the GIL
    assert reference() is None


def test_a_tensor_of_torch_gives_the_flag_back_without_a_further_call():
    torch = pytest.importorskip("torch")
    x = np.zeros(3, "f4")
    t = torch.from_dlpack(tn.from_numpy(x))
    u = t[1:]
    del t
    assert not x.flags.writeable
    del u  # PyTorch gives the GIL away meanwhile
    assert comes_true(lambda: x.flags.writeable)


def test_owners_may_use_tenon_when_they_go():
    seen = []

    class Nested(Owned):
        def __del__(self):
            a = tn.zeros(3)
            a[...] = 1
            x = np.zeros(2)
            b = tn.from_numpy(x)
            del b
            seen.append((a.tolist(), x.flags.writeable))

    for _ in range(3):
        a = Nested().array()
        del a
    assert seen == [([1, 1, 1], True)] * 3


def test_owners_may_raise_when_they_go(monkeypatch):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(type(report.exc_value)))

    class Raising(Owned):
        def __del__(self):
            raise RuntimeError("no")

    a = Raising().array()
    with pytest.raises(KeyError):
        try:
            raise KeyError
        finally:
            del a
    assert reports == [RuntimeError]


def test_long_chains_of_owners_end_without_deep_recursion():
    class Link(Owned):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

    a = tn.zeros(64, "uint8")
    for _ in range(100_000):
        a = Link(a).array()
    del a


def test_cycles_through_the_owner_do_not_crash():
    class Cyclic(Owned):
        pass

    owner = Cyclic()
    owner.array_of_its_own = owner.array()
    assert owner.array_of_its_own.shape == (64,)
    del owner.array_of_its_own
