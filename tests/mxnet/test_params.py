# SPDX-License-Identifier: Apache-2.0
"""Files of parameters: each side reads what the other has written, and both write the same bytes."""

from pathlib import Path

import numpy as np
import pytest
from mxnet_side import mx

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

DTYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
LAYOUTS = 300


def random_arrays(random, least):
    """By name, pairs of an array in any order of its elements and its values."""
    pairs = {}
    for number in range(random.integers(1, 5)):
        shape = random.integers(least, 6, random.integers(least, 5)).tolist()
        values = random.integers(0, 2, shape).astype(random.choice(DTYPES))
        axes = random.permutation(values.ndim).tolist()
        steps = tuple(slice(None, None, int(random.choice([1, 2, -1]))) for _ in axes)
        a = tn.array(values).transpose(*axes)[steps] if axes else tn.array(values)
        pairs[f"arg:\u00fc{number}"] = a, values.transpose(axes)[steps]
    return pairs


@pytest.mark.parametrize("is_np_shape", [False, True])
def test_both_read_and_write_the_same_files(tmp_path, is_np_shape):
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    ours, theirs = str(tmp_path / "ours.params"), str(tmp_path / "theirs.params")
    for number in range(LAYOUTS):
        pairs = random_arrays(random, 0 if is_np_shape else 1)
        if is_np_shape:
            pairs["number"] = tn.full((), number), np.full((), number, "f4")
        tn.save(ours, {name: a for name, (a, _) in pairs.items()})
        with mx.util.np_shape(is_np_shape):
            loaded = mx.nd.load(ours)
            mx.nd.save(theirs, loaded)
        assert Path(ours).read_bytes() == Path(theirs).read_bytes()
        back = tn.load(theirs, shared=bool(number % 2))
        for name, (a, values) in pairs.items():
            for read in (loaded[name].asnumpy(), back[name].snapshot()):
                assert (read.dtype, read.shape) == (values.dtype, values.shape)
                assert np.array_equal(read, values)
            assert back[name].dtype == a.dtype


def test_mxnet_reads_a_file_under_one_kind_of_shapes_only(tmp_path):
    """As the page on files says."""
    path = str(tmp_path / "a.params")
    for shape, wants_np_shape in (((2,), False), ((), True), ((0, 2), True)):
        tn.save(path, [tn.ones(3), tn.ones(shape)])
        with mx.util.np_shape(wants_np_shape):
            assert [m.shape for m in mx.nd.load(path)] == [(3,), shape]
        with mx.util.np_shape(not wants_np_shape), pytest.raises(mx.MXNetError, match="np shape semantics"):
            mx.nd.load(path)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "uint64"])
def test_mxnet_does_not_read_the_dtypes_that_the_page_names(tmp_path, dtype):
    path = str(tmp_path / "a.params")
    tn.save(path, tn.ones(2, dtype))
    with pytest.raises(mx.MXNetError, match="Unknown type enum"):
        mx.nd.load(path)


def test_bfloat16_and_old_files_are_read(tmp_path):
    path = str(tmp_path / "a.params")
    a = tn.array([1.5, -2.0]).astype("bfloat16")
    tn.save(path, a)
    (m,) = mx.nd.load(path)
    assert m.asnumpy().view("u2").tolist() == a.view("u2").tolist()
    with open(path, "rb") as file:
        assert tn.load(file)[0].tolist() == [1.5, -2.0]


def test_bool_is_uint_with_1_bit_in_the_dlpack_of_mxnet():
    m = mx.nd.array([1, 0]).astype("bool")
    with pytest.raises(TypeError, match="1 bit"):
        tn.from_dlpack(m.to_dlpack_for_read())
    assert tn.from_dlpack(m.astype("uint8").to_dlpack_for_read()).view("bool").tolist() == [True, False]
