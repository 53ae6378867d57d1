# SPDX-License-Identifier: Apache-2.0
"""A DLPack producer and a DLPack consumer in pure ctypes, which obey nobody.

`Tensor` builds either struct of DLPack with any value in any field, counts the calls of its deleter and
poisons the struct in it, so that a late reader meets garbage. `take` is the consumer: it renames a capsule
as the protocol asks and shows every field. `exchange_table` and `make_table` do the same for the C exchange
table. The structs are written from the specification; nothing of Tenon is used.
"""

import ctypes
import threading
from ctypes import (
    CFUNCTYPE,
    POINTER,
    PYFUNCTYPE,
    Structure,
    addressof,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)

READ_ONLY, IS_COPIED, SUBBYTE_PADDED = 1, 2, 4
CPU, CUDA, CUDA_HOST, METAL, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 8, 11, 13
INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOL = range(7)
F32, F64, I64, U8 = (FLOAT, 32, 1), (FLOAT, 64, 1), (INT, 64, 1), (UINT, 8, 1)


class Version(Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32))


class Device(Structure):
    _fields_ = (("type", c_int32), ("id", c_int32))


class DataType(Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class DLTensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class Legacy(Structure):
    _fields_ = (("dl", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p))


class Versioned(Structure):
    _fields_ = (
        ("version", Version),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl", DLTensor),
    )


class TableHeader(Structure):
    _fields_ = (("version", Version), ("prev_api", c_void_p))


class Table(Structure):
    _fields_ = (
        ("header", TableHeader),
        ("allocator", c_void_p),
        ("from_object", c_void_p),
        ("to_object", c_void_p),
        ("borrow", c_void_p),
        ("stream", c_void_p),
    )


Deleter = CFUNCTYPE(None, c_void_p)  # gives the GIL away around the call, takes it in a callback
DeleterWithGil = PYFUNCTYPE(None, c_void_p)
SetError = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)
Allocator = PYFUNCTYPE(c_int, POINTER(DLTensor), POINTER(c_void_p), c_void_p, c_void_p)
FromObject = PYFUNCTYPE(c_int, py_object, POINTER(c_void_p))
ToObject = PYFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))
Borrow = PYFUNCTYPE(c_int, py_object, POINTER(DLTensor))
Stream = PYFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p))
CapsuleDestructor = PYFUNCTYPE(None, c_void_p)


def _python(name, result, *arguments):
    function = PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))
    function.__name__ = name
    return function


capsule_new = _python("PyCapsule_New", py_object, c_void_p, c_char_p, c_void_p)
capsule_name = _python("PyCapsule_GetName", c_char_p, py_object)
capsule_pointer = _python("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
capsule_rename = _python("PyCapsule_SetName", c_int, py_object, c_char_p)
_name_at = _python("PyCapsule_GetName", c_char_p, c_void_p)
_pointer_at = _python("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)

# Names must outlive their capsules.
_names = {
    name: ctypes.create_string_buffer(name)
    for name in (b"dltensor", b"dltensor_versioned", b"used_dltensor", b"used_dltensor_versioned")
}


def name_buffer(name):
    return _names.setdefault(name, ctypes.create_string_buffer(name))


def versioned_name(is_versioned):
    return b"dltensor_versioned" if is_versioned else b"dltensor"


# What the producers lent and nobody gave back yet: it stays even when the Tensor object is forgotten.
_lent = {}
_lent_lock = threading.Lock()


def _delete(address):
    with _lent_lock:
        tensor = _lent.pop(address, None)
    if tensor is None:  # twice, or never lent
        _double_frees.append(address)
        return
    tensor.deaths += 1
    tensor.death_thread = threading.get_ident()
    ctypes.memset(address, 0xDD, ctypes.sizeof(tensor.managed))
    tensor.on_death()


_double_frees = []
_delete_callback = Deleter(_delete)


def double_frees():
    """How often a deleter ran for a tensor that was not lent (any more), in this process."""
    return len(_double_frees)


def is_lent(tensor):
    return addressof(tensor.managed) in _lent


class Tensor:
    """One managed tensor over `buffer` (a ctypes object, writable) and the protocol's methods.

    Every field takes any value that fits its C type. shape, strides: sequences, or None for NULL.
    data: an address, or None for the buffer's. deleter: True for the counting one, None for NULL.
    """

    def __init__(
        self,
        shape=(4,),
        strides=None,
        dtype=F32,
        *,
        buffer=None,
        data=None,
        null_data=False,
        ndim=None,
        byte_offset=0,
        device=(CPU, 0),
        flags=0,
        version=(1, 0),
        legacy=False,
        deleter=True,
        name=None,
        on_death=lambda: None,
    ):
        self.buffer = aligned_bytes(256) if buffer is None else buffer
        self.deaths = 0
        self.death_thread = None
        self.on_death = on_death
        self.legacy = legacy
        self.name = versioned_name(not legacy) if name is None else name
        self._device = device
        self._shape = None if shape is None else (c_int64 * max(len(shape), 1))(*shape)
        self._strides = None if strides is None else (c_int64 * max(len(strides), 1))(*strides)
        self.managed = Legacy() if legacy else Versioned()
        dl = self.managed.dl
        dl.data = None if null_data else (addressof(self.buffer) if data is None else data)
        dl.device = Device(*device)
        dl.ndim = len(shape or ()) if ndim is None else ndim
        dl.dtype = DataType(*dtype)
        dl.shape = self._shape
        dl.strides = self._strides
        dl.byte_offset = byte_offset
        if not legacy:
            self.managed.version = Version(*version)
            self.managed.flags = flags
        if deleter:
            self.managed.deleter = ctypes.cast(_delete_callback, c_void_p).value

    def lend(self):
        """The address of the struct, whose deleter may now be called once."""
        address = addressof(self.managed)
        with _lent_lock:
            _lent[address] = self
        return address

    def capsule(self, destructor=None):
        return capsule_new(self.lend(), name_buffer(self.name), destructor)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.capsule()

    def __dlpack_device__(self):
        return self._device


def aligned_bytes(size, alignment=64):
    """A ctypes array of `size` bytes on an aligned address, zeroed."""
    raw = (c_uint8 * (size + alignment))()
    return (c_uint8 * size).from_buffer(raw, -addressof(raw) % alignment)


class OldProducer:
    """Speaks the protocol of before max_version, dl_device and copy."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, *, stream=None):
        return self.tensor.capsule()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Wrapped:
    """Any object whose __dlpack__ gives exactly this, and whose device says exactly that."""

    def __init__(self, result, device=(CPU, 0)):
        self.result = result
        self.device = device
        self.calls = []

    def __dlpack__(self, **kwargs):
        self.calls.append(kwargs)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    def __dlpack_device__(self):
        if isinstance(self.device, BaseException):
            raise self.device
        return self.device


class Taken:
    """A consumed tensor: every field as Python values, until release() calls the deleter once."""

    def __init__(self, address, is_versioned):
        self.address = address
        self.is_versioned = is_versioned
        managed = (Versioned if is_versioned else Legacy).from_address(address)
        dl = managed.dl
        self.version = (managed.version.major, managed.version.minor) if is_versioned else None
        self.flags = managed.flags if is_versioned else 0
        self.data = dl.data
        self.device = (dl.device.type, dl.device.id)
        self.ndim = dl.ndim
        self.dtype = (dl.dtype.code, dl.dtype.bits, dl.dtype.lanes)
        self.shape = tuple(dl.shape[: dl.ndim]) if dl.shape else None
        self.strides = tuple(dl.strides[: dl.ndim]) if dl.strides else None
        self.byte_offset = dl.byte_offset
        self._deleter = managed.deleter

    def release(self, with_gil=False):
        """Calls the deleter; without the GIL unless asked otherwise."""
        address, self.address = self.address, None
        if address is not None and self._deleter is not None:
            (DeleterWithGil if with_gil else Deleter)(self._deleter)(address)

    def at(self, *index, kind=ctypes.c_float):
        """The element at this index as a ctypes object, by the tensor's own strides."""
        position = sum(i * s for i, s in zip(index, self.strides, strict=True))
        return kind.from_address(self.data + self.byte_offset + position * ctypes.sizeof(kind))


def take(capsule):
    """Consumes a capsule as the protocol says: the pointer, then the new name at once."""
    name = capsule_name(capsule)
    is_versioned = name == b"dltensor_versioned"
    assert is_versioned or name == b"dltensor", name
    address = capsule_pointer(capsule, name)
    assert capsule_rename(capsule, name_buffer(b"used_" + name)) == 0
    return Taken(address, is_versioned)


def exchange_table(of_type):
    """The table that a type advertises, and its slots as callables (None for NULL)."""
    address = capsule_pointer(of_type.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    table = Table.from_address(address)
    kinds = {
        "allocator": Allocator,
        "from_object": FromObject,
        "to_object": ToObject,
        "borrow": Borrow,
        "stream": Stream,
    }
    slots = {key: kind(getattr(table, key)) if getattr(table, key) else None for key, kind in kinds.items()}
    return table, slots


_tables = []  # a table lives for ever


def make_table(version=(1, 3), prev=None, name=b"dlpack_exchange_api", **slots):
    """A capsule with an exchange table of Python functions; slots that are not given are NULL."""
    kinds = {
        "allocator": Allocator,
        "from_object": FromObject,
        "to_object": ToObject,
        "borrow": Borrow,
        "stream": Stream,
    }
    callbacks = {key: kinds[key](function) for key, function in slots.items()}
    table = Table()
    table.header.version = Version(*version)
    table.header.prev_api = prev
    for key, callback in callbacks.items():
        setattr(table, key, ctypes.cast(callback, c_void_p).value)
    _tables.append((table, callbacks))
    return capsule_new(addressof(table), name_buffer(name), None)


def raise_in_c(error):
    """Sets a Python error, as a C function that returns -1 does. For callbacks of make_table."""
    set_error = _python("PyErr_SetString", None, py_object, c_char_p)
    set_error(type(error), str(error).encode())
    return -1
