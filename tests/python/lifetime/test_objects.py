# SPDX-License-Identifier: Apache-2.0
"""Arrays as Python objects: pickled, copied, weakly referenced; the module imported in odd ways."""

import copy
import pickle
import sys
import weakref

import child
import numpy as np
import pytest

import tenon as tn

SAMPLES = {
    "contiguous": lambda: tn.array(np.arange(24.0).reshape(2, 3, 4)),
    "transposed": lambda: tn.array(np.arange(6).reshape(2, 3)).T,
    "backwards": lambda: tn.array(np.arange(6, dtype="i2"))[::-2],
    "scalar": lambda: tn.array(2.5),
    "empty": lambda: tn.zeros((0, 3)),
    "bool": lambda: tn.array([True, False]),
    "complex": lambda: tn.array([1 + 2j]),
    "bfloat16": lambda: tn.zeros(3, dtype="bfloat16"),
    "fp8": lambda: tn.zeros(3, dtype="float8_e4m3fn"),
    "fp4 pairs": lambda: tn.zeros(4, dtype="float4_e2m1fn_x2"),
    "lent": lambda: tn.from_numpy(np.arange(3.0)),
    "read-only": lambda: tn.array([1.0, 2.0]).readonly(),
}


def same(a, b):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert bytes(a.copy().reshape(-1).view("uint8")) == bytes(b.copy().reshape(-1).view("uint8"))
    assert a.size == 0 or a.data_ptr != b.data_ptr


@pytest.mark.parametrize("kind", SAMPLES)
def test_pickles_out_of_band_without_a_copy(kind):
    a = SAMPLES[kind]()
    buffers = []
    data = pickle.dumps(a, protocol=5, buffer_callback=buffers.append)
    b = pickle.loads(data, buffers=buffers)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert b.copy().tolist() == a.copy().tolist() if "fp4" not in kind else True
    if kind == "contiguous":
        assert b.data_ptr == a.data_ptr
        assert len(data) < 300
    copied = pickle.loads(data, buffers=[bytearray(buffer.raw()) for buffer in buffers])
    same(a, copied)
    assert not pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers]).writable


def test_pickles_with_buffers_on_odd_addresses():
    """A transport may put a buffer anywhere: the array is then copied, or refused in words."""
    a = tn.array(np.arange(5.0))
    buffers = []
    data = pickle.dumps(a, protocol=5, buffer_callback=buffers.append)
    first, elements = buffers
    frame = bytearray(1) + bytearray(elements.raw())
    b = pickle.loads(data, buffers=[first, memoryview(frame)[1:]])
    assert b.tolist() == a.tolist()


def test_the_first_buffer_of_a_pickle_is_not_the_elements():
    """A transport may receive the first one together with the head of its message, at any address."""
    buffers = []
    pickle.dumps(tn.zeros(1000), protocol=5, buffer_callback=buffers.append)
    assert [buffer.raw().nbytes for buffer in buffers] == [1, 4000]


def test_pickled_elements_that_are_padded_stay_padded():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = tn.from_numpy(np.array([0.5, 1.0, 2.0], ml_dtypes.float4_e2m1fn))
    for protocol in (2, 5):
        b = pickle.loads(pickle.dumps(a, protocol=protocol))
        assert b.shape == a.shape
        assert b.nbytes == a.nbytes
        assert b.numpy().tolist() == a.numpy().tolist()


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_copies_have_memory_of_their_own(kind, copier):
    a = SAMPLES[kind]()
    b = copier(a)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if copier is copy.deepcopy:
        same(a, b)


def test_deepcopy_keeps_identity_inside_of_a_structure():
    a = tn.zeros(3)
    first, second = copy.deepcopy([a, a])
    assert first is second


def test_cloudpickle_and_joblib():
    cloudpickle = pytest.importorskip("cloudpickle")
    a = tn.array([1.0, 2.0])
    b = pickle.loads(cloudpickle.dumps(lambda: a))()
    same(a, b)
    joblib = pytest.importorskip("joblib")
    assert joblib.hash(tn.array([1.0, 2.0])) == joblib.hash(tn.array([1.0, 2.0]))


def test_errors_pickle():
    error = tn.OpError("message", 7)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (tn.OpError, "message", 7)


def test_weak_references():
    a = tn.zeros(3)
    called = []
    reference = weakref.ref(a, called.append)
    proxy = weakref.proxy(a)
    mapping = weakref.WeakKeyDictionary() if a.__hash__ else None
    assert mapping is None
    assert reference() is a
    assert proxy.shape == (3,)
    view = a[1:]
    del a
    assert reference() is None
    assert called == [reference]
    assert view.tolist() == [0.0, 0.0]
    with pytest.raises(ReferenceError):
        proxy.shape  # noqa: B018


def test_the_type_is_final_and_cannot_be_made_or_changed():
    with pytest.raises(TypeError):
        type("Sub", (tn.NDArray,), {})
    with pytest.raises(TypeError):
        tn.NDArray()
    with pytest.raises(TypeError):
        tn.NDArray.__new__(tn.NDArray)
    with pytest.raises(TypeError):
        object.__new__(tn.NDArray)
    a = tn.zeros(3)
    with pytest.raises((AttributeError, TypeError)):
        a.anything = 1
    with pytest.raises((AttributeError, TypeError)):
        a.shape = (3, 1)
    with pytest.raises(TypeError):
        a.__class__ = object
    with pytest.raises(TypeError):
        hash(a)


def test_methods_of_the_type_refuse_other_objects():
    for name in dir(tn.NDArray):
        method = getattr(tn.NDArray, name)
        if not callable(method) or name in ("__class__", "__new__", "__init_subclass__", "__subclasshook__"):
            continue
        if getattr(object, name, None) is method or not hasattr(method, "__objclass__"):
            continue
        if method.__objclass__ is object:
            continue
        for junk in (None, 3, np.zeros(3)):
            with pytest.raises(TypeError):
                method(junk)


def test_other_internal_types_cannot_be_made():
    view = tn.zeros(3).numpy()
    holder = type(view.base)
    if holder is not memoryview and holder is not tn.NDArray:
        with pytest.raises(TypeError):
            holder()
        with pytest.raises(TypeError):
            object.__new__(holder)
    with pytest.raises(TypeError):
        type(iter(tn.zeros(3)))()


def test_a_reload_keeps_types_and_arrays():
    child.run(
        """
        import importlib
        a = tn.zeros(3); kind = tn.NDArray; dtype = tn.float32
        again = importlib.reload(tn)
        assert again is tn and tn.NDArray is kind and tn.float32 is dtype
        assert tn.from_dlpack(a).data_ptr == a.data_ptr
        """
    )


def test_a_second_import_after_the_module_was_forgotten_works_or_is_refused():
    """Python offers no way to unload an extension: the second import gives the same types, or is refused, and
    the first goes on working."""
    child.run(
        """
        a = tn.from_numpy(np.zeros(3)); view = a.numpy()
        for name in [name for name in sys.modules if name.split(".")[0] == "tenon"]: del sys.modules[name]
        try:
            import tenon as second
        except ImportError as error:
            assert "tenon was imported" in str(error), error
        else:
            b = second.from_numpy(view); c = second.zeros(3); second.from_dlpack(a.__dlpack__())
            assert type(b) is type(a) is second.NDArray
            assert second.float32 is tn.float32
        d = tn.zeros(3)
        assert type(d) is tn.NDArray and tn.from_dlpack(d).data_ptr == d.data_ptr
        assert tn.from_numpy(view).data_ptr == a.data_ptr
        """
    )


def test_subinterpreters_are_refused_in_words():
    """Where they share the GIL and where they do not."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = __import__(name)
            break
        except ImportError:
            continue
    else:
        pytest.skip("this CPython offers no subinterpreters")
    program = f"""
import warnings; warnings.simplefilter("ignore")
import {interpreters.__name__} as interpreters
code = '''
import sys
sys.path[:] = {sys.path!r}
try:
    import tenon
except ImportError as error:
    print("refused:", error)
else:
    print("imported")
sys.stdout.flush()
'''
i = interpreters.create()
try:
    failure = interpreters.run_string(i, code)
    if failure is not None: print("failed:", failure)
finally:
    interpreters.destroy(i)
assert tn.zeros(3).tolist() == [0.0] * 3
"""
    lines = child.run(program)
    assert len(lines) == 1 and lines[0].startswith("refused:"), lines
    assert "interpreter" in lines[0]


def test_the_import_fails_cleanly_when_the_first_interpreter_has_not_imported_it():
    try:
        interpreters = __import__("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:
        pytest.skip("this CPython offers no subinterpreters")
    code = f"""
import sys, {interpreters.__name__} as interpreters
i = interpreters.create()
inner = '''
import sys
sys.path[:] = {sys.path!r}
try:
    import tenon
except ImportError as error:
    assert "interpreter" in str(error), error
else:
    raise SystemExit("imported")
'''
failure = interpreters.run_string(i, inner)
assert failure is None, failure
interpreters.destroy(i)
import tenon
assert tenon.zeros(3).tolist() == [0.0] * 3
print("done")
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = child.subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_npz_files_of_arrays_in_fortran_order(tmp_path):
    x = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    np.savez(tmp_path / "x.npz", x=x, y=x[:, ::2], z=np.float32(3))
    loaded = tn.load(tmp_path / "x.npz")
    assert loaded["x"].tolist() == x.tolist()
    assert loaded["y"].tolist() == x[:, ::2].tolist()
    assert loaded["z"].item() == 3
    np.save(tmp_path / "x.npy", x)
    assert tn.load(tmp_path / "x.npy").tolist() == x.tolist()


def test_free_threaded_builds_are_refused_in_words():
    code = "import sys; sys.abiflags += 't'\nimport tenon"
    done = child.subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "tenon is not made for free-threaded Python yet" in done.stderr
