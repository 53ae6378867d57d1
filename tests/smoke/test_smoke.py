# SPDX-License-Identifier: Apache-2.0
"""One short walk through every door of the package, with NumPy alone.

Run under AddressSanitizer and UndefinedBehaviorSanitizer by `make test`, and on every CPython that the
wheel serves. The laws themselves are tested elsewhere.
"""

import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import tenon as tn


def test_arrays_views_and_elements():
    a = tn.zeros((3, 4), dtype="float32")
    a[...] = np.arange(12, dtype="f4").reshape(3, 4)
    assert a[1, ::-1].tolist() == [7, 6, 5, 4]
    assert a.T.shape == (4, 3)
    assert a.reshape(2, 6)[1, 0].item() == 6
    assert a.view("uint8").shape == (3, 16)
    assert a.astype("int64").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    a += 1
    assert float(a[2, 3]) == 12
    assert "float32" in repr(a)
    with pytest.raises(IndexError):
        a[9]
    with pytest.raises(ValueError, match="shape"):
        a.reshape(5, 5)
    with pytest.raises(TypeError):
        tn.empty((2,), dtype="no such dtype")


def test_every_dtype_is_made_copied_and_printed():
    names = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float64", "complex64", "bfloat16"]
    for name in names:
        a = tn.ones((2, 3), dtype=name)
        assert a.copy().dtype == a.dtype
        assert name in repr(a)
        assert a.astype("float32").tolist() == [[1.0] * 3] * 2


def test_numpy_lends_and_gets_back():
    x = np.arange(6.0).reshape(2, 3)[:, ::-1]
    a = tn.from_numpy(x)
    assert not x.flags.writeable
    assert np.shares_memory(np.asarray(a), x)
    del a
    gc.collect()
    x[0, 0] = -1
    assert x[0, 0] == -1
    w = tn.from_numpy(x, mode="writable")
    w[1, 1] = 9
    assert x[1, 1] == 9
    with pytest.raises((TypeError, ValueError, BufferError)):
        tn.from_numpy(np.array([object()]))


def test_dlpack_both_ways():
    a = tn.ones((2, 3), dtype="int16")
    x = np.from_dlpack(a)
    a[0, 0] = 5
    assert x[0, 0] == 5
    assert x.flags.writeable == (np.lib.NumpyVersion(np.__version__) >= "2.3.0")  # read-only in older ones
    b = tn.from_dlpack(x)
    assert b.data_ptr == a.data_ptr
    for _ in range(100):
        capsule = a.__dlpack__()
        tn.from_dlpack(np.from_dlpack(a))
        del capsule  # never consumed


def test_buffers():
    memory = bytearray(range(16))
    a = tn.from_buffer(memory, "uint8")
    a[0] = 200
    assert memory[0] == 200
    view = memoryview(a)
    assert view.format == "B"
    assert view.nbytes == 16
    view.release()
    assert not tn.from_buffer(b"abcd", "uint8").writable


def test_values_survive_pickle():
    a = tn.array([[1.0, 2.0]], dtype="float32")
    assert pickle.loads(pickle.dumps(a)).tolist() == a.tolist()


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("generator")
    (folder / "fill.c").write_text(
        "#include <stddef.h>\n#include <stdint.h>\n"
        "int fill(float *data, int64_t *label, size_t n, uint64_t index) {\n"
        "  for (size_t i = 0; i < n; i++) { data[i] = (float)index; label[i] = (int64_t)i; }\n"
        "  return index == 13 ? 7 : 0;\n}\n"
    )
    command = [compiler, "-shared", "-fPIC", "fill.c", "-o", "libfill.so"]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return tn.c_function(
        str(folder / "libfill.so"),
        "int fill(float *data, int64_t *label, size_t n, uint64_t index)",
        threadsafe=True,
    )


def test_native_functions_are_called(generator):
    data, label = tn.zeros((4,), dtype="float32"), tn.zeros((4,), dtype="int64")
    generator(data, label, 4, 3)
    assert data.tolist() == [3, 3, 3, 3]
    assert label.tolist() == [0, 1, 2, 3]


def test_a_feed_runs_keeps_and_fails_in_its_place(generator):
    schema = tn.schema(data=("f4", (8,)), label=("i8", (8,)))
    with tn.Feed(generator, schema, workers=2, slots=6, batches=12) as feed:
        first = None
        for count, batch in enumerate(feed):
            first = first if first is not None else batch.data
            assert batch.data.tolist() == [float(count)] * 8
        assert count == 11
        assert first.tolist() == [0.0] * 8
    with tn.Feed(generator, schema, workers=2, batches=20) as feed:
        indices = []
        with pytest.raises(tn.OpError):
            indices.extend(batch.index for batch in feed)
        assert indices == list(range(13))


def test_handles_are_used_from_many_threads():
    a = tn.zeros((64,), dtype="int64")
    start = threading.Barrier(4)

    def work():
        start.wait()
        for _ in range(200):
            view = np.asarray(a[::2])
            tn.from_dlpack(np.from_dlpack(a))
            del view

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    a[...] = 1
    assert a.tolist() == [1] * 64


@pytest.mark.skipif(sys.version_info < (3, 15), reason="lazy imports came with CPython 3.15")
def test_the_package_works_where_all_imports_are_lazy():
    program = """
import os
import tenon as tn
a = tn.zeros(3)
with a.write() as v: v[:] = 1
op = tn.push(tn.fill, tn.overwrite(a), 2)
if os.fork() == 0:
    os._exit(0 if tn.push(tn.fill, tn.overwrite(tn.zeros(2)), 2).wait() is None else 1)
assert os.wait()[1] == 0
op.wait()
print(a.tolist(), repr(a))
"""
    ways = ("-W", "ignore::DeprecationWarning", "-X", "lazy_imports=all")  # of a fork beside threads
    done = subprocess.run([sys.executable, *ways, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("[2.0, 2.0, 2.0] tenon.array([2., 2., 2.], dtype=float32)\n", "")
