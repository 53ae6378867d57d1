# SPDX-License-Identifier: Apache-2.0
"""Arrays of MXNet: objects that have no __dlpack__, but to_dlpack_for_read() and to_dlpack_for_write(), which
return legacy capsules and wait. tests/mxnet/test_doors.py has MXNet itself."""

import gc
import weakref

import native_library
import numpy as np
import other_thread
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

SCALE = "int scale(const float *source, float *destination, size_t n, float factor)"
VALUES = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


class Verbs:
    """An array as MXNet has them, over a NumPy array. It notes which capsules it was asked for."""

    def __init__(self, x, when_asked=lambda: None):
        self.x, self.asked, self.when_asked = x, [], when_asked

    def to_dlpack_for_read(self):
        self.when_asked()
        self.asked.append("read")
        return self.x.__dlpack__()

    def to_dlpack_for_write(self):
        self.when_asked()
        self.asked.append("write")
        return self.x.__dlpack__()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, key):  # NumPy finds 64 axes in it
        if key >= len(self.x):
            raise IndexError
        return Verbs(self.x[key : key + 1])


class WithDlpack(Verbs):
    def __dlpack__(self, **_):
        return self.x.__dlpack__()


def values():
    return np.array(VALUES, "f4")


def scale(source, destination):
    tn.c_function(native_library.generators(), SCALE)(source, destination, 6, 2)


def of_field(write):
    with tn.Feed(lambda batch: batch.__setitem__("x", 0), {"x": ("f4", (2, 3))}, batches=1) as feed:
        batch = next(iter(feed))
        write(batch)
        return batch.x.tolist()


def of_item(x):
    with tn.Channel({"x": ("f4", (2, 3))}) as channel:
        with channel.loan() as item:
            item.x = x
        return channel.recv().x.tolist()


def saved(x, folder):
    tn.save(folder / "x.npy", x)
    return tn.load(folder / "x.npy").tolist()


def written(write):
    """What `write` makes of an array."""
    a = tn.full((2, 3), 9)
    write(a)
    return a.tolist()


def added(a, x):
    a[...] = 0
    a += x


READERS = {
    "from_dlpack": lambda x, _: tn.from_dlpack(x).tolist(),
    "from_dlpack, a copy": lambda x, _: tn.from_dlpack(x, copy=True, writable=True).tolist(),
    "asarray": lambda x, _: tn.asarray(x).tolist(),
    "asarray, cast": lambda x, _: tn.asarray(x, "i8").tolist(),
    "array": lambda x, _: tn.array(x).tolist(),
    "a list": lambda x, _: tn.array([x]).tolist()[0],
    "full_like": lambda x, _: tn.full_like(x, x).tolist(),
    "concatenate": lambda x, _: tn.concatenate([x, tn.zeros((0, 3))]).tolist(),
    "a[...] = x": lambda x, _: written(lambda a: a.__setitem__(..., x)),
    "a[0:2] = x": lambda x, _: written(lambda a: a.__setitem__(slice(0, 2), x)),
    "a[[0, 1]] = x": lambda x, _: written(lambda a: a.__setitem__([0, 1], x)),
    "a.fill": lambda x, _: written(lambda a: a.fill(x)),
    "a += x": lambda x, _: written(lambda a: added(a, x)),
    "copy": lambda x, _: written(lambda a: tn.copy(x, a)),
    "cast": lambda x, _: written(lambda a: tn.cast(x, a)),
    "fill": lambda x, _: written(lambda a: tn.fill(a, x)),
    "copy to NumPy": lambda x, _: (y := np.zeros((2, 3)), tn.copy(x, y))[0].tolist(),
    "batch.x = x": lambda x, _: of_field(lambda batch: setattr(batch, "x", x)),
    "batch.x[...] = x": lambda x, _: of_field(lambda batch: batch.x.__setitem__(..., x)),
    "item.x = x": lambda x, _: of_item(x),
    "a const pointer": lambda x, _: [[v / 2 for v in row] for row in written(lambda a: scale(x, a))],
    "NDArrayIter": lambda x, _: next(tn.io.NDArrayIter(x, batch_size=2)).data[0].tolist(),
    "save": saved,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_only_reads_asks_for_reading(read, tmp_path):
    x = Verbs(values())
    assert read(x, tmp_path) == VALUES
    assert set(x.asked) == {"read"}


WRITERS = {
    "copyto": lambda a, x: a.copyto(x),
    "copy": lambda a, x: tn.copy(a, x),
    "cast": lambda a, x: tn.cast(a, x),
    "fill": lambda a, x: tn.fill(x, a),
    "a pointer": lambda a, x: scale(a / 2, x),
    "from_dlpack": lambda a, x: tn.from_dlpack(x, writable=True).__setitem__(..., a),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_writes_asks_for_writing(write):
    x = Verbs(np.zeros((2, 3), "f4"))
    write(tn.array(values()), x)
    assert x.x.tolist() == VALUES
    assert x.asked == ["write"]


def test_copyto_returns_the_destination_and_casts_and_broadcasts():
    x = Verbs(np.zeros((2, 3), "i8"))
    assert tn.array([1.5, 2.5, 3.5]).copyto(x) is x
    assert x.x.tolist() == [[1, 2, 3]] * 2


def test_an_arena_lies_on_memory_that_is_lent_for_writing():
    x = Verbs(np.zeros(64, "u1"))
    arena = tn.Arena({"one": {"A": ("u1", (4,))}}, buffer=x)
    with arena.use("one") as layout:
        layout.A[...] = 7
    assert x.x[:5].tolist() == [7, 7, 7, 7, 0]
    assert x.asked == ["write"]


def test_indices_are_read():
    x = Verbs(np.array([1, 0]))
    a = tn.array([5, 6, 7])
    assert a[x].tolist() == [6, 5]
    a[x] = 0
    assert tn.array(VALUES)[:, x].tolist() == [[1, 0], [4, 3]]
    assert (a.tolist(), set(x.asked)) == ([0, 0, 7], {"read"})


def test_the_memory_is_shared_and_writable_as_the_method_says():
    x = Verbs(values())
    for a in (tn.asarray(x), tn.from_dlpack(x), tn.from_dlpack(x, writable=False)):
        assert (a.data_ptr, a.writable) == (x.x.ctypes.data, False)
        with pytest.raises(ValueError, match=r"read-only: .*tn\.from_dlpack\(x, writable=True\)"):
            a[...] = 0
    assert tn.from_dlpack(x, writable=True).writable
    assert x.asked == ["read"] * 3 + ["write"]
    assert not tn.from_dlpack(x.to_dlpack_for_write()).writable, "a bare capsule does not tell"


def test_arrays_of_tenon_and_objects_with_dlpack_are_not_asked():
    a, x = tn.zeros((2, 3)), WithDlpack(values())
    assert a.copyto(a) is a
    assert tn.from_dlpack(a).writable
    assert tn.asarray(x).tolist() == VALUES
    a[...] = x
    assert (tn.push(lambda y: y is x, x).result(), x.asked) == (True, [])

    class Half:
        def to_dlpack_for_read(self):
            raise AssertionError

    for other in (Half(), Verbs):
        with pytest.raises(TypeError, match="neither __dlpack__ nor __cuda_array_interface__"):
            tn.from_dlpack(other)


def test_the_memory_is_given_back_after_the_last_use():
    x = Verbs(values())
    alive = weakref.ref(x.x)
    a = tn.asarray(x)
    tn.ones((2, 3)).copyto(x)
    scale(a, x)
    assert len(set(x.asked)) == 2
    x.x = None
    assert (alive() is None, a.tolist()) == (False, [[2.0] * 3] * 2)
    del a
    gc.collect()
    assert alive() is None


def test_what_our_own_arrays_lend_keeps_their_access():
    class Over(Verbs):
        def to_dlpack_for_read(self):
            return self.x.to_dlpack_for_read()

        def to_dlpack_for_write(self):
            return self.x.to_dlpack_for_write()

    a = tn.array(VALUES)
    assert tn.asarray(Over(a)).data_ptr == a.data_ptr
    tn.zeros(3).copyto(Over(a))
    assert a.tolist() == [[0.0] * 3] * 2
    with pytest.raises(BufferError, match="read-only"):
        tn.ones(3).copyto(Over(a.readonly()))
    assert tn.asarray(Over(a.readonly())).tolist() == a.tolist()


DOORS = {
    "a[...] = x": lambda a, x: a.__setitem__(..., x),
    "a[[0, 1]] = x": lambda a, x: a.__setitem__([0, 1], x),
    "a += x": lambda a, x: added(a, x),
    "copyto": lambda a, x: a.copyto(x),
    "cast": lambda a, x: tn.cast(a, x),
    "concatenate": lambda a, x: tn.concatenate([a, x]),
    "a pointer": lambda a, x: scale(a, x),
    "a const pointer": lambda a, x: scale(x, a),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_other_threads_have_access_while_mxnet_is_waited_for(door):
    """No call and no view of the array is there yet."""

    def other_access():
        tn.push(tn.fill, tn.overwrite(a), 1).wait(10)

    a = tn.zeros((2, 3))
    x = Verbs(values(), lambda: other_thread.Other(other_access).value())
    door(a, x)
    assert len(x.asked) == 1


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_an_error_of_the_method_is_raised_and_nothing_is_written(door):
    class Failed(Exception):
        pass

    def fail():
        raise Failed

    a = tn.zeros((2, 3))
    with pytest.raises(Failed):
        door(a, Verbs(values(), fail))
    assert (a.tolist(), a.leases()) == ([[0.0] * 3] * 2, [])


def test_what_is_no_fresh_capsule_is_refused_by_name():
    class Wrong(Verbs):
        def to_dlpack_for_read(self):
            return self.x

    x = Wrong(5)
    with pytest.raises(TypeError, match=r"to_dlpack_for_read\(\) gave 5, not a capsule"):
        tn.asarray(x)
    x.x = values().__dlpack__()
    assert tn.asarray(x).tolist() == VALUES
    with pytest.raises(ValueError, match="consumed once"):
        tn.asarray(x)


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_sparse_array_is_refused_before_it_is_asked(door):
    x = Verbs(values())
    x.stype = "csr"
    with pytest.raises(BufferError, match=r"sparse array of MXNet \(stype 'csr'\).*x\.tostype\('default'\)"):
        door(tn.zeros((2, 3)), x)
    assert x.asked == []
    for x.stype in ("default", "undefined"):  # the second: without memory, as MXNet says
        assert tn.asarray(x).tolist() == VALUES


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_empty_arrays_and_those_without_axes_are_shared(shape):
    x = Verbs(np.zeros(shape, "f8"))
    assert (tn.asarray(x).shape, tn.array(x).dtype) == (shape, tn.float64)
    assert tn.ones(shape).copyto(x) is x
    assert x.x.tolist() == np.ones(shape).tolist()


PUSHES = {
    "an argument": lambda a, x: tn.push(len, x),
    "a keyword": lambda a, x: tn.push(np.add, a, 1, where=x),
    "copy": lambda a, x: tn.push(tn.copy, a, x),
    "read": lambda a, x: tn.push(tn.copy, tn.read(x), tn.overwrite(a)),
    "write": lambda a, x: tn.push(tn.copy, a, tn.write(x)),
    "overwrite": lambda a, x: tn.push(tn.fill, tn.overwrite(x), 1),
    "reads": lambda a, x: tn.push(print, reads=[x]),
    "writes": lambda a, x: tn.push(print, writes=[a, x]),
    "a pointer": lambda a, x: tn.push(tn.c_function(native_library.generators(), SCALE), a, x, 6, 2),
    "a constant": lambda a, x: tn.push(
        tn.c_function(native_library.generators(), SCALE, source=Verbs(values())), a, 6, 2
    ),
}


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_ops_have_no_arrays_of_mxnet(push):
    a, x = tn.zeros((2, 3)), Verbs(values())
    with pytest.raises(TypeError, match=r"argument of .*Verbs'>.*tn\.array\(x\).*writable=True"):
        push(a, x)
    assert (x.asked, a.leases()) == ([], [])
    assert tn.push(tn.fill, tn.overwrite(tn.from_dlpack(x, writable=True)), 1).wait() is None
    assert x.x.tolist() == [[1.0] * 3] * 2


def test_an_array_is_no_number():
    x = Verbs(values())
    with pytest.raises(TypeError, match=r"'n' .* takes an integer, not .*Verbs'"):
        tn.c_function(native_library.generators(), SCALE)(None, None, x, 2)
    assert x.asked == []


def test_a_feed_takes_a_constant():
    table = Verbs(values())
    fill = tn.c_function(
        native_library.generators(),
        "int scale(const float *source, float *x, size_t count, float factor)",
        source=table,
        count=6,
        factor=2,
    )
    with tn.Feed(fill, {"x": ("f4", (2, 3))}, batches=2) as feed:
        batches = [batch.x.tolist() for batch in feed]
    assert batches == [[[2 * v for v in row] for row in VALUES]] * 2
    assert set(table.asked) == {"read"}


def test_a_field_is_named_in_the_error():
    x = Verbs(np.zeros((2, 4), "f4"))
    with pytest.raises(ValueError, match="field 'x': cannot broadcast"):
        of_field(lambda batch: setattr(batch, "x", x))
