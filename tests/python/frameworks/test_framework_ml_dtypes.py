# SPDX-License-Identifier: Apache-2.0
"""The small floats of ml_dtypes in NumPy arrays, and in arrays of Tenon: same bits, same memory."""

import numpy as np
import pytest

import tenon as tn

ml_dtypes = pytest.importorskip("ml_dtypes")

WHOLE = [
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
PADDED = ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]


def sample(dtype):
    return np.array([0.5, 1.0, 2.0, 4.0], getattr(ml_dtypes, dtype))


@pytest.mark.parametrize("dtype", WHOLE + PADDED)
def test_numpy_arrays_come_in_without_a_copy(dtype):
    x = sample(dtype)
    a = tn.from_numpy(x)
    assert a.data_ptr == x.ctypes.data
    assert str(a.dtype).startswith(dtype)
    assert np.asarray(a).view("u1").tolist() == x.view("u1").tolist()
    assert [float(item) for item in np.asarray(a)] == [0.5, 1.0, 2.0, 4.0]
    del a
    assert x.flags.writeable


@pytest.mark.parametrize("dtype", WHOLE)
def test_arrays_go_out_without_a_copy(dtype):
    a = tn.from_numpy(sample(dtype), zero_copy=False)
    for view in (np.asarray(a), a.numpy(), a.__array__()):
        assert view.dtype == getattr(ml_dtypes, dtype)
        assert view.ctypes.data == a.data_ptr
        view[0] = 2.0
        assert float(np.asarray(a)[0]) == 2.0


@pytest.mark.parametrize("dtype", WHOLE)
def test_casts_agree_with_ml_dtypes_on_every_pattern(dtype):
    """All 256 (or 65,536) patterns to float32, and a dense range of float32 back."""
    theirs = np.dtype(getattr(ml_dtypes, dtype))
    patterns = np.arange(1 << (8 * theirs.itemsize), dtype=f"u{theirs.itemsize}").view(theirs)
    ours = tn.from_numpy(patterns).astype("float32").numpy()
    np.testing.assert_array_equal(ours, patterns.astype("float32"))
    rng = np.random.default_rng(7)
    values = np.concatenate(
        [
            patterns.astype("float32"),
            rng.standard_normal(20_000, dtype="float32"),
            np.ldexp(rng.standard_normal(20_000), rng.integers(-40, 40, 20_000)).astype("float32"),
            np.array([0.0, -0.0, np.inf, -np.inf], "float32"),
        ]
    )
    values = values[~np.isnan(values)]
    with np.errstate(all="ignore"):
        expected = values.astype(theirs)
    got = tn.from_numpy(values).astype(dtype).numpy()
    same = (got.astype("f4") == expected.astype("f4")) | (
        np.isnan(got.astype("f4")) & np.isnan(expected.astype("f4"))
    )
    wrong = values[~same]
    assert wrong.size == 0, (wrong[:5], got[~same][:5], expected[~same][:5])


@pytest.mark.parametrize("dtype", WHOLE)
def test_items_and_lists_are_python_floats(dtype):
    a = tn.from_numpy(sample(dtype))
    assert a.tolist() == [0.5, 1.0, 2.0, 4.0]
    assert all(type(item) is float for item in a.tolist())
    assert a[1].item() == 1.0
    assert dtype in repr(a)


@pytest.mark.parametrize("dtype", WHOLE)
def test_operators_are_those_of_ml_dtypes(dtype):
    x = sample(dtype)
    a = tn.from_numpy(x)
    if dtype == "float8_e8m0fnu":  # has no negative numbers and no zero, but sums
        assert (a + a).tolist() == (x + x).tolist()
        return
    assert (a + a).dtype == x.dtype
    assert (a * 2).tolist() == (x * 2).tolist()
    assert (-a).tolist() == (-x).tolist()
    assert (a == x).all()


def test_padded_elements_of_ml_dtypes_are_said_to_be_padded():
    """ml_dtypes keeps fp4 and fp6 in whole bytes, DLPack packs them unless a flag says otherwise."""
    import foreign_dlpack as dl

    for dtype in PADDED:
        a = tn.from_numpy(sample(dtype))
        assert a.nbytes == 4
        taken = dl.take(a.__dlpack__(max_version=(1, 3)))
        assert taken.flags & dl.SUBBYTE_PADDED
        taken.release()
        with pytest.raises(BufferError):
            a.__dlpack__()
