# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: OrtValues over arrays, arrays over OrtValues, and a model bound to both."""

import struct

import live
import numpy as np
import pytest
from onnx_model import doubling_model

import tenon as tn

ort = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def session():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(doubling_model(8), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "int8", "float16"])
def test_values_over_arrays(dtype):
    a = tn.zeros((2, 3), dtype=dtype)
    a[...] = 1
    value = ort.OrtValue.from_dlpack(a)
    assert value.data_ptr() == a.data_ptr
    assert value.shape() == [2, 3]
    expected = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    assert value.data_type() == f"tensor({expected})"
    a[0, 0] = 0
    assert value.numpy().tolist() == a.tolist()


def test_booleans_travel_as_bytes():
    """ONNX Runtime before 1.32 has uint8 for bool in its DLPack structs, and refuses the code of bool."""
    a = tn.array([True, False, True])
    if tuple(map(int, ort.__version__.split(".")[:2])) < (1, 32):
        with pytest.raises(RuntimeError, match="Unsupported"):
            ort.OrtValue.from_dlpack(a)
    else:
        assert ort.OrtValue.from_dlpack(a).data_ptr() == a.data_ptr
    value = ort.OrtValue.from_dlpack(a.view("uint8"))
    assert value.data_ptr() == a.data_ptr
    back = tn.from_dlpack(ort.OrtValue.ortvalue_from_numpy(np.array([True, False])))
    assert back.dtype in (tn.uint8, np.dtype("bool"))
    assert back.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "int8"])
def test_arrays_over_values(dtype):
    x = np.arange(6).astype(dtype).reshape(2, 3)
    value = ort.OrtValue.ortvalue_from_numpy(x)
    a = tn.from_dlpack(value)
    assert a.data_ptr == value.data_ptr()
    assert a.dtype == x.dtype
    assert a.tolist() == x.tolist()
    assert a.strides == x.strides  # ONNX Runtime exports NULL strides
    del value
    assert a.tolist() == x.tolist()


def test_a_value_keeps_the_array_s_memory():
    before = live.now()
    a = tn.full(8, 3.0)
    value = ort.OrtValue.from_dlpack(a)
    del a
    live.now()
    assert value.numpy().tolist() == [3.0] * 8
    del value
    assert live.now() == before


def test_a_read_only_array_is_refused_by_the_legacy_struct_and_can_be_read_by_promise():
    a = tn.full(8, 3.0).readonly()
    with pytest.raises(BufferError):
        ort.OrtValue.from_dlpack(a)
    value = ort.OrtValue.from_dlpack(a.to_dlpack_for_read())
    assert value.data_ptr() == a.data_ptr


def test_views_that_are_not_contiguous_are_refused_not_misread():
    a = tn.array(np.arange(8.0, dtype="f4").reshape(4, 2))
    for view in (a.T, a[::2], a[::-1]):
        try:
            value = ort.OrtValue.from_dlpack(view)
        except (RuntimeError, ValueError, TypeError, BufferError):
            continue
        assert value.numpy().tolist() == view.tolist()


def test_a_model_reads_one_array_and_writes_another(session):
    x, y = tn.full(8, 3.0), tn.zeros(8)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.from_dlpack(x))
    binding.bind_ortvalue_output("y", ort.OrtValue.from_dlpack(y))
    session.run_with_iobinding(binding)
    assert y.tolist() == [6.0] * 8
    x[...] = 5.0
    session.run_with_iobinding(binding)
    assert y.tolist() == [10.0] * 8


def test_a_model_reads_through_a_numpy_binding(session):
    x, y = tn.full(8, 3.0), tn.zeros(8)
    binding = session.io_binding()
    view = y.numpy()
    binding.bind_cpu_input("x", x.numpy())
    binding.bind_output("y", "cpu", 0, np.float32, (8,), view.ctypes.data)
    session.run_with_iobinding(binding)
    assert y.tolist() == [6.0] * 8
    assert session.run(None, {"x": x.numpy()})[0].tolist() == [6.0] * 8


def test_the_output_of_a_model_comes_in_without_a_copy(session):
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.from_dlpack(tn.full(8, 1.5)))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    a = tn.from_dlpack(value)
    assert a.data_ptr == value.data_ptr()
    del value, binding
    assert a.tolist() == [3.0] * 8


def test_scalars_and_empty_values():
    value = ort.OrtValue.from_dlpack(tn.array(np.float32(2.5)))
    assert value.numpy().item() == 2.5
    assert tn.from_dlpack(value).shape == ()
    assert struct.pack("f", tn.from_dlpack(value).item()) == struct.pack("f", 2.5)
    a = tn.zeros((0, 3))
    try:
        value = ort.OrtValue.from_dlpack(a)
    except (RuntimeError, ValueError, TypeError):
        return  # a known limit of ONNX Runtime
    assert value.shape() == [0, 3]
