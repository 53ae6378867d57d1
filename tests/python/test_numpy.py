# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays become arrays and back, on the same memory; flags come back on every path."""

import contextlib
import io
import mmap
import sys
import threading
import weakref
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

NUMERIC = ["?", "b", "h", "i", "l", "q", "B", "H", "I", "L", "Q", "e", "f", "d", "F", "D"]


def address(x):
    return x.__array_interface__["data"][0]


def pass_through(x, take=tn.from_numpy, **options):
    """Takes an x that cannot be lent: its flag is as it was before, and nothing keeps it."""
    before = x.flags.writeable, sys.getrefcount(x)
    try:
        return take(x, **options)
    finally:
        assert (x.flags.writeable, sys.getrefcount(x)) == before


@pytest.mark.parametrize("code", NUMERIC)
def test_memory_is_shared_both_ways(code):
    x = np.zeros((2, 3), code)
    a = tn.from_numpy(x)
    assert a.data_ptr == address(x)
    assert a.dtype == x.dtype
    a[1, 2] = 1
    assert x[1, 2] == 1
    back = np.asarray(a)
    assert back.dtype == x.dtype
    assert address(back) == address(x)
    back[0, 0] = 1
    assert x[0, 0] == 1


def test_a_lent_array_can_be_lent_again():
    x = np.zeros(3)
    a = tn.from_numpy(x)
    b = tn.from_numpy(x)
    assert b.writable
    b[0] = 1
    assert a[0].item() == 1
    del a
    assert not x.flags.writeable
    c = tn.from_numpy(x)
    del b
    assert not x.flags.writeable
    del c
    assert x.flags.writeable


def test_a_flag_set_by_hand_while_lent_is_cleared_by_the_next_lend():
    x = np.zeros(3)
    a = tn.from_numpy(x)
    x.flags.writeable = True
    b = tn.from_numpy(x)
    assert not x.flags.writeable
    del a
    assert not x.flags.writeable
    del b
    assert x.flags.writeable


def test_many_arrays_are_lent_at_a_time():
    arrays = [np.zeros(2) for _ in range(3000)]
    lent = [tn.from_numpy(x) for x in arrays]
    again = [tn.from_numpy(x) for x in arrays]
    del lent
    assert not any(x.flags.writeable for x in arrays)
    del again
    assert all(x.flags.writeable for x in arrays)


@pytest.mark.names_count
def test_move_takes_an_array_that_nobody_else_has():
    a = tn.from_numpy(np.arange(3.0), mode="move")
    assert a.writable
    assert a.tolist() == [0, 1, 2]
    x = np.arange(3.0)
    reference = weakref.ref(x)
    b = tn.from_numpy(x, mode="move")
    assert not x.flags.writeable
    b[0] = 5
    assert x[0] == 5
    del b
    assert not x.flags.writeable
    del x
    assert reference() is None


def test_move_refuses_arrays_that_others_have():
    x = np.arange(3.0)
    y = x
    with pytest.raises(ValueError, match=r"has \d references"):
        pass_through(x, mode="move")
    del y
    view = x[1:]
    with pytest.raises(ValueError, match="references"):
        pass_through(x, mode="move")
    with pytest.raises(ValueError, match="is a view"):
        pass_through(view, mode="move")


def frozen(x):
    x.flags.writeable = False
    return x


IMPORTS = {
    "readonly": tn.from_numpy,
    "writable": lambda x: tn.from_numpy(x, mode="writable"),
    "a view": lambda x: tn.from_numpy(x[::2]),
    "read-only": lambda x: tn.from_numpy(frozen(x)),
    "from_dlpack": tn.from_dlpack,
    "asarray": tn.asarray,
    "twice": lambda x: [tn.from_numpy(x), tn.from_numpy(x)][1],
}


@pytest.mark.parametrize("way", IMPORTS)
@pytest.mark.parametrize("kind", ["SharedMemory", "mmap"])
def test_lent_memory_cannot_be_closed(kind, way):
    """NumPy keeps no buffer of what np.ndarray(buffer=) lies on."""
    if kind == "mmap":
        memory = buffer = mmap.mmap(-1, mmap.PAGESIZE)
    else:
        memory = SharedMemory(create=True, size=64)
        buffer = memory.buf
        memory.unlink()
    x = np.ndarray(8, "f8", buffer=buffer)
    x[...] = 3
    a = IMPORTS[way](x)
    with pytest.raises(BufferError):
        memory.close()
    assert a.tolist() == [3] * a.size
    del a
    memory.close()
    with pytest.raises(ValueError, match=r"closed|released"):
        tn.from_numpy(x)


def test_readonly_input_gives_a_readonly_array():
    x = np.arange(3.0)
    x.flags.writeable = False
    for mode in ("readonly", "writable"):
        a = tn.from_numpy(x, mode=mode)
        assert not a.writable
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 1
        del a
        assert not x.flags.writeable
    a = tn.from_numpy(np.frombuffer(b"12345678", "f8"))
    assert not a.writable


REFUSED = {
    "object": (np.array([1, None]), TypeError, "object"),
    "text": (np.array(["a"]), TypeError, "text"),
    "bytes": (np.array([b"a"]), TypeError, "text"),
    "structure": (np.zeros(2, "i4,f4"), TypeError, "structured"),
    "date": (np.array(["2020-01-01"], "M8[D]"), TypeError, "int64"),
    "duration": (np.zeros(2, "m8[s]"), TypeError, "int64"),
    "byte-swapped": (np.zeros(2, ">f4"), TypeError, "byte-swapped"),
    "long double": (np.zeros(2, np.longdouble), TypeError, "astype"),
    "complex long double": (np.zeros(2, np.clongdouble), TypeError, "astype"),
    "void": (np.zeros(2, "V3"), TypeError, "V3"),
    "string": (np.array(["a"], np.dtypes.StringDType()), TypeError, "StringDType"),
    "unaligned": (np.zeros(9, "u1")[1:].view("f8"), ValueError, "unaligned"),
    "odd stride": (np.zeros(3, [("a", "f4"), ("b", "u1")])["a"], ValueError, "stride of 5 bytes.*itemsize 4"),
    "even odd stride": (
        np.zeros(3, [("a", "i2"), ("b", "u1"), ("c", "u1"), ("d", "u1")])["a"],
        ValueError,
        "copy",
    ),
}


@pytest.mark.parametrize(("x", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_lent_is_refused_by_name(x, error, text):
    for mode in ("readonly", "writable", "move"):
        with pytest.raises(error, match=text):
            pass_through(x, mode=mode)
    with pytest.raises((TypeError, BufferError)):
        pass_through(x, tn.from_dlpack)


@pytest.mark.parametrize("name", ["byte-swapped", "unaligned", "odd stride", "even odd stride"])
def test_copies_can_be_made_of_it(name):
    x = REFUSED[name][0]
    x[...] = range(len(x))
    a = tn.from_numpy(x, zero_copy=False)
    assert a.tolist() == x.tolist()
    assert x.flags.writeable


def test_a_copy_shares_nothing():
    x = np.arange(6).reshape(2, 3)
    for source in (x, x.T, x[:, ::-1], np.broadcast_to(x, (2, 2, 3))):
        a = tn.from_numpy(source, zero_copy=False)
        assert a.tolist() == source.tolist()
        assert a.writable
        assert a.data_ptr % 64 == 0
        a[...] = 0
    assert x.sum() == 15
    assert x.flags.writeable


def test_other_things_than_arrays_are_refused():
    for x in ([1, 2], 1, None, memoryview(b"ab"), np.float32(1)):
        with pytest.raises(TypeError, match=r"numpy\.ndarray"):
            tn.from_numpy(x)
    x = np.zeros(2)
    with pytest.raises(ValueError, match="mode is"):
        tn.from_numpy(x, mode="forever")
    with pytest.raises(TypeError, match="positional"):
        tn.from_numpy(x, True, "readonly")
    with pytest.raises(TypeError, match="twice"):
        tn.from_numpy(x, x=x)
    with pytest.raises(TypeError, match="wrong"):
        tn.from_numpy(x, wrong=1)
    with pytest.raises(TypeError, match="needs"):
        tn.from_numpy()
    assert x.flags.writeable


def test_an_array_and_back_is_the_same_storage_and_nothing_is_lent():
    a = tn.zeros((4, 5))
    for x in (np.asarray(a), a.numpy(), np.asarray(a)[1:3, ::2], a.T.numpy(), np.asarray(memoryview(a))):
        b = tn.from_numpy(x)
        assert x.flags.writeable
        assert b.writable
        assert b.data_ptr == address(x)
        b[...] += 1
    assert a.numpy().sum() > 0
    assert not tn.from_numpy(a.readonly().numpy()).writable


def test_the_array_of_a_lent_array_and_back():
    x = np.zeros(4)
    a = tn.from_numpy(x)
    b = tn.from_numpy(np.asarray(a))
    del a
    assert not x.flags.writeable
    b[0] = 1
    del b
    assert x.flags.writeable
    assert x[0] == 1


def line_here(offset=0):
    return f"{__file__}:{sys._getframe(1).f_lineno + offset}"


def test_borrowers_name_the_line_that_made_an_array_read_only():
    x = np.zeros((4, 3), "f4")
    assert tn.borrowers(x) == []
    a = tn.from_numpy(x)
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        x[0] = 1
    (borrower,) = tn.borrowers(x)
    assert borrower == tn.Borrower("readonly", (4, 3), "float32", line_here(-4))
    part = a[1:]
    del a
    assert tn.borrowers(x) == [borrower], "a slice of the array keeps the borrow"
    view = np.asarray(part)
    del part
    assert tn.borrowers(x) == [borrower], "so does a view"
    del view
    assert tn.borrowers(x) == []
    assert x.flags.writeable


def test_borrowers_are_found_through_views_and_bases():
    base = np.zeros(8)
    middle = base[2:6]
    a = tn.from_numpy(middle)
    (borrower,) = tn.borrowers(middle)
    assert (borrower.shape, borrower.dtype, borrower.site) == ((4,), "float64", line_here(-2))
    part = middle[1:]
    assert not part.flags.writeable
    for x in (base, part, part[::-1], base[:3], base[::-1], base.reshape(2, 4)):
        assert tn.borrowers(x) == [borrower]
    for x in (base[:2], base[6:], part[:0], np.zeros(8)):
        assert tn.borrowers(x) == []
    del a
    assert tn.borrowers(base) == []


def test_each_borrow_of_an_array_is_a_borrower_of_its_own():
    x = np.zeros(3)
    a = tn.from_numpy(x)
    b = tn.from_numpy(x, mode="writable")
    c = tn.asarray(x)
    d = tn.from_numpy(x)
    sites = [line_here(n) for n in (-4, -3, -2, -1)]
    modes = ["readonly", "writable", "writable", "readonly"]
    assert [(b.mode, b.site) for b in tn.borrowers(x)] == list(zip(modes, sites))
    del c
    assert [b.site for b in tn.borrowers(x)] == [*sites[:2], sites[3]]
    del a
    assert [b.site for b in tn.borrowers(x)] == [sites[1], sites[3]]
    del d
    assert x.flags.writeable
    assert [b.site for b in tn.borrowers(x)] == [sites[1]]
    e = tn.from_numpy(x)
    assert [b.site for b in tn.borrowers(x)] == [sites[1], line_here(-1)]
    del b, e
    assert tn.borrowers(x) == []


@pytest.mark.parametrize(
    "made", [lambda: np.zeros((2, 4)), lambda: np.zeros(8).reshape(2, 4)], ids=["owner", "view"]
)
@pytest.mark.parametrize("first", ["whole", "part"])
def test_a_view_of_a_lent_array_is_another_borrow_of_that(made, first):
    x = made()
    arrays = {"whole": tn.from_numpy(x), "part": tn.from_numpy(x[1, 1:])}
    assert tn.borrowers(x) == [tn.Borrower("readonly", (2, 4), "float64", line_here(-1))] * 2
    assert (arrays["whole"].writable, arrays["part"].writable) == (True, False)
    del arrays[first]
    assert not x.flags.writeable
    third = tn.from_numpy(x[1])
    arrays.clear()
    assert not x.flags.writeable
    assert tn.borrowers(x) == [tn.Borrower("readonly", (2, 4), "float64", line_here(-3))]
    del third
    assert tn.borrowers(x) == []
    x[...] = 1


def test_a_view_of_a_lent_array_does_not_keep_that_from_ops():
    x = np.zeros(8)
    a = tn.from_numpy(x)
    part = tn.from_numpy(x[1:])
    del x
    tn.push(tn.fill, tn.overwrite(a), 3).wait()
    assert part.tolist() == [3] * 7


def test_the_widest_lent_array_around_a_view_stays_read_only():
    flat = np.zeros(12)
    x, row = flat.reshape(3, 4), flat[4:8]
    of_row, of_x = tn.from_numpy(row), tn.from_numpy(x)
    of_part = tn.from_numpy(x[1, 1:3])
    del of_x, of_row
    assert (x.flags.writeable, row.flags.writeable, flat.flags.writeable) == (False, True, True)
    del of_part
    assert x.flags.writeable


def test_a_read_only_view_lends_nothing_but_itself_where_no_borrow_made_it_read_only():
    flat, other = np.zeros(12), np.zeros(12)
    x, beside = flat[:6], flat[6:]
    beside.flags.writeable = False
    kept = [tn.from_numpy(x), tn.from_numpy(other, mode="writable")]
    view = other[1:]
    view.flags.writeable = False
    a, b = tn.from_numpy(beside[1:]), tn.from_numpy(view)
    assert [(borrow.mode, borrow.shape) for borrow in tn.borrowers(beside)] == [("readonly", (5,))]
    assert [one.mode for one in tn.borrowers(other)] in (["writable", "readonly"], ["readonly", "writable"])
    del kept
    assert x.flags.writeable and other.flags.writeable
    del a, b
    assert not beside.flags.writeable and not view.flags.writeable


def test_an_array_that_another_owner_keeps_is_no_view_of_the_lent_one():
    memory = bytearray(64)
    x, other = np.frombuffer(memory), np.frombuffer(memory)
    view = other[1:]
    view.flags.writeable = False
    a, b = tn.from_numpy(x), tn.from_numpy(view)
    del a
    assert x.flags.writeable
    del b


def test_a_promise_to_order_writes_holds_for_views_of_a_lent_array():
    x = np.zeros(8)
    a = tn.from_numpy(x)
    part = tn.from_numpy(x[1:], mode="writable")
    del a
    x[1] = 5
    assert part.tolist() == [5, 0, 0, 0, 0, 0, 0]


def test_a_lent_read_only_array_has_borrowers_and_stays_as_it_was():
    x = np.zeros(3)
    x.flags.writeable = False
    a, b = tn.from_numpy(x), tn.from_numpy(x, mode="writable")
    sites = [line_here(-1)] * 2
    assert tn.borrowers(x) == [tn.Borrower("readonly", (3,), "float64", site) for site in sites]
    x.flags.writeable = True
    c = tn.from_numpy(x)
    assert c.writable and not x.flags.writeable and len(tn.borrowers(x)) == 3
    del a
    assert len(tn.borrowers(x)) == 2 and not x.flags.writeable
    del c
    assert x.flags.writeable
    x.flags.writeable = False
    del b
    assert tn.borrowers(x) == [] and not x.flags.writeable


def test_no_borrow_has_no_borrower():
    x = np.zeros(3)
    copy = tn.from_numpy(x, zero_copy=False)
    assert tn.borrowers(x) == tn.borrowers(np.asarray(copy)) == []
    for wrong in (copy, [1.0], None):
        with pytest.raises(TypeError, match=r"borrowers\(\) takes a numpy.ndarray"):
            tn.borrowers(wrong)


def test_borrowers_keep_nothing_alive():
    x = np.zeros(3)
    before = sys.getrefcount(x)
    a = tn.from_numpy(x)
    kept = tn.borrowers(x)
    del a
    assert x.flags.writeable
    assert len(kept) == 1
    assert sys.getrefcount(x) == before


def test_many_borrows_are_found_and_end_in_any_order():
    x = np.arange(1000.0)
    rows = [x[i : i + 1] for i in range(500)]
    arrays = [tn.from_numpy(row) for row in rows] + [tn.from_numpy(rows[7]) for _ in range(20)]
    assert len(tn.borrowers(x)) == 520
    assert len(tn.borrowers(rows[7])) == 21
    for i in [7, 510, 519, 500, *range(7), *range(8, 500)]:
        arrays[i] = None
    assert len(tn.borrowers(x)) == len(tn.borrowers(rows[7])) == 17
    del arrays
    assert tn.borrowers(x) == []


def test_the_text_of_an_array_says_that_nothing_else_has_its_numpy_array():
    x = np.zeros(2)
    a = tn.from_numpy(x)
    site = line_here(-1)
    plain = "tenon.array([0., 0.], dtype=float64)"
    assert repr(a) == plain, "x is in use elsewhere"
    part = x[:1]
    del x
    assert repr(a) == plain, "a view of x is, too"
    del part
    alone = f"borrowed at {site} from an array that nothing else refers to"
    assert repr(a) == f"tenon.array([0., 0.], dtype=float64, {alone})"
    assert repr(a[1:]) == f"tenon.array([0.], dtype=float64, {alone})"
    big = tn.from_numpy(np.zeros((9,) * 4))
    assert repr(big).endswith(f", borrowed at {line_here(-1)} from an array that nothing else refers to>")
    assert "borrowed" not in repr(tn.from_numpy(np.zeros(2), mode="writable"))
    assert "borrowed" not in repr(tn.zeros(2))
    base = np.zeros(4)
    b = tn.from_numpy(base[:2])
    assert "borrowed" not in repr(b), "a base of its NumPy array is in use"
    del base
    assert "borrowed" in repr(b)


def test_asnumpy_is_a_copy():
    a = tn.ones(3)
    x = a.asnumpy()
    x[0] = 5
    assert a.tolist() == [1, 1, 1]
    assert a.readonly().asnumpy().flags.writeable


def test_without_ml_dtypes_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    a = tn.zeros(2, "bfloat16")
    for make in (np.asarray, np.array, tn.NDArray.numpy):
        with pytest.raises(TypeError, match="ml_dtypes"):
            make(a)


def test_elements_without_bytes_are_refused_and_do_not_divide_by_zero():
    for x in (np.zeros(2, np.dtype([])), np.zeros(2, "V0"), np.zeros(2, "S0")):
        for take in (tn.asarray, tn.array, lambda x: tn.from_numpy(x, zero_copy=False), tn.zeros(2).copyto):
            with pytest.raises(TypeError):
                take(x)


def test_an_argument_that_has_no_truth_is_an_error():
    with pytest.raises(TypeError, match=r"zero_copy is array\(\[1, 2\]\): it must be True or False"):
        tn.from_numpy(np.zeros(3), zero_copy=np.array([1, 2]))


def test_ufunc_at_does_not_write_to_a_read_only_array():
    a = tn.zeros(3)
    with pytest.raises(ValueError, match="read-only"):
        np.add.at(a.readonly(), [0], 5)
    version = a.version
    np.add.at(a, [0], 5)
    assert a.tolist() == [5, 0, 0]
    assert a.version != version


def test_there_is_no_array_interface_because_an_address_holds_no_view():
    assert not hasattr(tn.zeros(3), "__array_interface__")


def test_asnumpy_copies_and_names_what_does_not():
    a = tn.zeros(3)
    assert not np.shares_memory(a.asnumpy(zero_copy=False), a.numpy())
    with pytest.raises(TypeError, match=r"a\.numpy\(\) and np\.asarray\(a\)"):
        a.asnumpy(zero_copy=True)


def test_ravel_is_a_view_where_reshape_is():
    a = tn.zeros((2, 3))
    a.ravel()[1] = 4
    assert a.tolist() == [[0, 4, 0], [0, 0, 0]]
    copied = a.T.ravel()
    assert copied.tolist() == [0, 0, 4, 0, 0, 0]
    copied[0] = 1
    assert a[0, 0].item() == 0


def test_bytes_are_the_elements_in_c_order():
    x = np.arange(6, dtype="i2").reshape(2, 3)
    for is_shared in (False, True):
        a = tn.zeros((2, 3), "i2", shared=is_shared)
        a[...] = x
        assert a.tobytes() == bytes(a) == x.tobytes()
        assert a.T.tobytes() == bytes(a.T) == x.T.tobytes()
        assert a[:, ::-1].tobytes() == x[:, ::-1].tobytes()
        assert a[0:0].tobytes() == b""
    assert len(tn.zeros(3, "bfloat16").tobytes()) == 6


def test_cast_reads_and_writes_shared_arrays_without_a_lease():
    a, b = tn.zeros(3, shared=True), tn.zeros(3, "int8", shared=True)
    a[...] = [1.5, 2.5, 3.5]
    tn.cast(a, b)
    assert b.tolist() == [1, 2, 3]
    tn.cast([4.5, 5.5, 6.5], b)
    assert b.tolist() == [4, 5, 6]
    x = np.zeros(3)
    tn.cast(b, x)
    assert x.tolist() == [4, 5, 6]
    tn.push(tn.cast, a, tn.overwrite(b)).wait()
    assert b.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.sum() / 3,
        lambda a: a[[0]].tolist()[0],
        lambda a: a[np.array([True, False, False])].item(),
        lambda a: np.frombuffer(bytes(a), "f4")[0],
        lambda a: np.frombuffer(a.tobytes(), "f4")[0],
        lambda a: a[::2].ravel().tolist()[0],
        lambda a: tn.concatenate([a, a])[5].item(),
        lambda a: a.fill(7) or 7,
    ],
    ids=range(8),
)
def test_methods_wait_for_ops_and_are_refused_in_bodies_that_do_not_name_the_array(call):
    may_end = threading.Event()
    a = tn.zeros(3)

    def write(x):
        assert may_end.wait(60)
        x[...] = 7

    tn.push(write, tn.overwrite(a))
    threading.Timer(0.05, may_end.set).start()
    assert call(a) == 7
    error = tn.push(lambda x: call(a), tn.zeros(1)).exception()
    assert "has not declared" in str(error)
    with contextlib.suppress(ExceptionGroup):
        tn.waitall()


def test_arrays_that_are_saved_are_read_in_one_call():
    a, b = tn.ones(3), tn.zeros(3)
    tries = []

    def try_to_write():
        for array in (a, b):
            try:
                array.lease("w", timeout=0).release()
                tries.append("written")
            except TimeoutError:
                tries.append("waits")

    class Watched(io.BytesIO):
        def write(self, data):
            thread = threading.Thread(target=try_to_write)
            thread.start()
            thread.join()
            return super().write(data)

    file = Watched()
    tn.save(file, {"a": a, "b": b})
    assert set(tries) == {"waits"}
    file.seek(0)
    assert {name: array.tolist() for name, array in tn.load(file).items()} == {"a": [1] * 3, "b": [0] * 3}
    tries.clear()
    try_to_write()
    assert tries == ["written"] * 2


def test_a_list_is_no_destination_of_cast():
    with pytest.raises(TypeError, match=r"destination is list: cast\(\) writes to an array or a buffer"):
        tn.cast(tn.array([1.0, 2.0]), [0, 0])


def test_a_view_that_was_read_only_before_a_borrow_counts_as_one_of_the_borrow():
    """NumPy does not tell it from a view that was taken meanwhile."""
    x = np.zeros(3)
    view = np.broadcast_to(x, (2, 3))
    a, b = tn.from_numpy(x), tn.from_numpy(view)
    del a
    assert not x.flags.writeable
    assert not b.writable
    del b
    assert x.flags.writeable
