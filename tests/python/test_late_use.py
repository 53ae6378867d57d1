# SPDX-License-Identifier: Apache-2.0
"""What an array of a block does when it is used after the block."""

import asyncio
import io
import pickle

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

# Ordinary uses of an array of four floats. Each raises after the block.
ERRORS = {
    "v.sum()": lambda v: v.sum(),
    "np.sum": lambda v: np.sum(v),
    "v.prod()": lambda v: v.prod(),
    "v.mean()": lambda v: v.mean(),
    "v.std()": lambda v: v.std(),
    "v.var()": lambda v: v.var(),
    "v.min()": lambda v: v.min(),
    "v.max()": lambda v: v.max(),
    "v.argmax()": lambda v: v.argmax(),
    "v.any()": lambda v: v.any(),
    "v.all()": lambda v: v.all(),
    "v.cumsum()": lambda v: v.cumsum(),
    "np.median": lambda v: np.median(v),
    "np.histogram": lambda v: np.histogram(v),
    "np.bincount": lambda v: np.bincount(v),
    "np.allclose": lambda v: np.allclose(v, 8),
    "assert_array_equal": lambda v: np.testing.assert_array_equal(v, 8),
    "assert_allclose": lambda v: np.testing.assert_allclose(v, 8),
    "(v > 100).all()": lambda v: (v > 100).all(),
    "(v == 8).all()": lambda v: (v == 8).all(),
    "(v != 8).any()": lambda v: (v != 8).any(),
    "8 in v": lambda v: 8 in v,
    "v + 1": lambda v: v + 1,
    "1 + v": lambda v: 1 + v,
    "v + v": lambda v: v + v,
    "-v": lambda v: -v,
    "v += 1": lambda v: v.__iadd__(1),
    "np.multiply": lambda v: np.multiply(v, 2),
    "v @ v": lambda v: v @ v,
    "np.einsum": lambda v: np.einsum("i->", v),
    "np.isnan": lambda v: np.isnan(v).any(),
    "np.exp": lambda v: np.exp(v),
    "abs": lambda v: abs(v),
    "np.where(v, 1, 0)": lambda v: np.where(v, 1, 0),
    "np.where(c, v, 0)": lambda v: np.where(True, v, 0.0),
    "v.clip": lambda v: v.clip(0, 1),
    "v.round": lambda v: v.round(),
    "v[0]": lambda v: v[0],
    "v[[0]]": lambda v: v[[0]],
    "v[v > 0]": lambda v: v[v > 0],
    "v.take": lambda v: v.take([0]),
    "v[0] = 1": lambda v: v.__setitem__(0, 1),
    "v[:] = 1": lambda v: v.__setitem__(slice(None), 1),
    "v[...] = x": lambda v: v.__setitem__(..., np.zeros(4)),
    "x[:] = v": lambda v: np.zeros(4).__setitem__(slice(None), v),
    "np.copyto": lambda v: np.copyto(np.zeros(4), v),
    "v.fill": lambda v: v.fill(1),
    "float": lambda v: float(v),
    "int": lambda v: int(v),
    "bool": lambda v: bool(v),
    "v.item()": lambda v: v.item(),
    "v.astype": lambda v: v.astype("f8"),
    "np.asarray(v, 'f8')": lambda v: np.asarray(v, "f8"),
    "np.linalg.norm": lambda v: np.linalg.norm(v),
    "np.concatenate": lambda v: np.concatenate([v, np.ones(4)]),
    "np.stack": lambda v: np.stack([v, np.ones(4)]),
    "memoryview": lambda v: memoryview(v),
    "bytes": lambda v: bytes(v),
    "np.from_dlpack": lambda v: np.from_dlpack(v),
    "torch.from_numpy": lambda v: pytest.importorskip("torch").from_numpy(v),
    "torch.tensor": lambda v: pytest.importorskip("torch").tensor(v),
    "torch.as_tensor": lambda v: pytest.importorskip("torch").as_tensor(v),
    "tn.from_numpy": lambda v: tn.from_numpy(v),
}

# These give no element, and arrays of the same kind: the next computation raises.
SILENT = {
    "iteration": lambda v: list(v),
    "len": lambda v: [0] * len(v),
    "v.tolist()": lambda v: v.tolist(),
    "v.tobytes()": lambda v: v.tobytes(),
    "v.copy()": lambda v: v.copy(),
    "np.array": lambda v: np.array(v),
    "v[:2]": lambda v: v[:2],
    "v[...]": lambda v: v[...],
    "v.reshape": lambda v: v.reshape(-1),
    "v.T": lambda v: v.T,
    "v.flatten()": lambda v: v.flatten(),
    "np.sort": lambda v: np.sort(v),
    "np.unique": lambda v: np.unique(v),
    "np.zeros_like": lambda v: np.zeros_like(v),
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "np.save": lambda v: np.load((np.save(file := io.BytesIO(), v), file.seek(0), file)[2]),
}


def ended(shape=(4,), mode="write"):
    with getattr(tn.full(shape, 8), mode)() as v:
        pass
    return v


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("mode", ["read", "write"])
@pytest.mark.parametrize("use", ERRORS.values(), ids=ERRORS)
def test_a_late_use_is_an_error(use, mode):
    if use is ERRORS["bool"] and np.lib.NumpyVersion(np.__version__) < "2.2.0":
        pytest.skip("an empty array is False in earlier versions of NumPy")
    v = ended(mode=mode)
    with pytest.raises(Exception, match=r"."):
        use(v)


@pytest.mark.parametrize("use", SILENT.values(), ids=SILENT)
def test_what_is_no_error_gives_no_element(use):
    result = use(ended())
    assert len(result) == 0
    if isinstance(result, np.ndarray):
        with pytest.raises(TypeError, match="ended with its block at"):
            result + 1


@pytest.mark.parametrize("shape", [(4,), (2, 3), (), (0,)])
@pytest.mark.parametrize("use", ["v.sum()", "v + 1", "(v == 8).all()", "np.allclose", "v.any()", "float"])
def test_a_late_use_is_an_error_for_every_shape(shape, use):
    v = ended(shape)
    with pytest.raises(TypeError):
        ERRORS[use](v)


def line_of(mark):
    with open(__file__) as file:
        return 1 + next(n for n, text in enumerate(file) if text.endswith(f"# {mark}\n"))


def test_the_array_says_where_its_block_was():
    a = tn.ones(4)
    with a.write() as v:  # the block
        part = v[1:]
    place = f"ended with its block at {__file__}:{line_of('the block')}"
    assert place in repr(v) and place in repr(part) and place in str(v.dtype)
    assert "copy what is to be kept" in repr(v)
    with pytest.raises(TypeError) as told:
        v.sum()
    assert place in str(told.value)
    with pytest.raises(TypeError) as told:
        part + 1
    assert place in str(told.value)
    with pytest.raises(TypeError, match="ended with its block at"):
        tn.from_numpy(v)


def test_every_kind_of_block_says_where_it_was():
    arena = tn.Arena({"x": {"A": ("f4", 3)}})
    channel = tn.Channel({"x": ("f4", (3,))}, slots=2)

    async def of_a_task():
        async with tn.ones(3).write() as v:
            pass
        return v

    with arena.use("x") as f:
        of_an_arena = f.A
    with channel.loan() as item:
        of_a_loan = item.x
    channel.recv().release()
    for v in (asyncio.run(of_a_task()), of_an_arena, of_a_loan):
        assert f"ended with its block at {__file__}:" in repr(v)
    del v
    channel.close()


def test_arrays_of_a_body_end_with_it():
    kept = []

    def body(x):
        kept.append(x)

    tn.push(body, tn.ones(3))
    with pytest.raises(ExceptionGroup):  # it may keep nothing
        tn.waitall()
    assert kept[0].size == 0
    line = body.__code__.co_firstlineno
    with pytest.raises(TypeError, match=f"ended with its block at .*test_late_use.py:{line}"):
        kept[0] + 1
    kept.clear()


def test_a_few_dtypes_serve_all_rounds_of_a_loop():
    a = tn.ones(4)
    found = []
    for _ in range(20):
        with a.read() as v:
            pass
        found.append(v.dtype)
    assert len(set(map(id, found))) <= 4


def test_arrays_of_blocks_on_one_line_cannot_be_compared():
    a, b, c = tn.ones(4), tn.zeros(4), tn.ones(4)
    with a.read() as u, b.read() as v, c.read() as w:
        pass
    for x, y in ((u, v), (v, w), (u, w)):
        with pytest.raises(TypeError, match="structured"):
            assert (x == y).all()
        with pytest.raises(TypeError, match=r"promotion|structured"):
            np.testing.assert_array_equal(x, y)
