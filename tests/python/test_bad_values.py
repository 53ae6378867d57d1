# SPDX-License-Identifier: Apache-2.0
"""Arguments that cannot be are errors that name the argument and the value, and do nothing else."""

import contextlib
import ctypes
import math
import re
import warnings

import native_library
import numpy as np
import pytest

import tenon as tn

SCHEMA = tn.schema(x=("f4", (4,)))
INT = "it must be an integer"
RANGE = "it must lie between"
SECONDS = "it must be seconds"
NOT_NEGATIVE = "it must not be negative"

FEED = [
    ("workers", -1, ValueError, RANGE),
    ("workers", 2**40, ValueError, RANGE),
    ("workers", 1.5, TypeError, INT),
    ("workers", None, TypeError, INT),
    ("slots", -1, ValueError, "-1 slots are too few"),
    ("slots", 1, ValueError, "1 slots are too few"),
    ("slots", 2**31, ValueError, RANGE),
    ("slots", math.nan, TypeError, INT),
    ("slots", "a", TypeError, INT),
    ("batches", -1, ValueError, RANGE),
    ("batches", 2**63, ValueError, RANGE),
    ("batches", 1.5, TypeError, INT),
    ("retries", -1, ValueError, RANGE),
    ("retries", 2**40, ValueError, RANGE),
    ("retries", None, TypeError, INT),
    ("attachment_nbytes", -1, ValueError, RANGE),
    ("attachment_nbytes", 2**70, ValueError, RANGE),
    ("attachment_nbytes", "a", TypeError, INT),
    ("timeout", -1, ValueError, NOT_NEGATIVE),
    ("timeout", math.nan, ValueError, SECONDS),
    ("timeout", "a", TypeError, SECONDS),
    ("fill_timeout", -1, ValueError, NOT_NEGATIVE),
    ("fill_timeout", math.nan, ValueError, SECONDS),
    ("fill_timeout", "a", TypeError, SECONDS),
    ("shared", "a\0b", ValueError, "letters, digits"),
    ("shared", "a/b", ValueError, "letters, digits"),
    ("shared", "x" * 500, ValueError, "letters, digits"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), FEED, ids=lambda v: str(v)[:20])
def test_of_a_feed(name, value, error, text):
    with pytest.raises(error, match=re.escape(text)) as caught:
        tn.Feed(lambda batch: None, SCHEMA, **{name: value})
    assert name in str(caught.value)
    assert str(value) in str(caught.value) or repr(value) in str(caught.value)


def test_a_feed_that_retries_needs_a_retry():
    with pytest.raises(ValueError, match="retries is 0"):
        tn.Feed(lambda batch: None, SCHEMA, on_error="retry", retries=0)


@pytest.mark.parametrize("value", [-1, math.nan, "a", None], ids=repr)
def test_of_the_end_of_a_feed(value):
    feed = tn.Feed(lambda batch: None, SCHEMA)
    with pytest.raises((ValueError, TypeError), match=f"timeout is {value!r}: it must "):
        feed.close(value)
    feed.close()


NO_STATES = [
    (None, TypeError, "None"),
    ("abc", TypeError, "'abc'"),
    ([0, 1], TypeError, r"\[0, 1\]"),
    ({"epoch": 0}, ValueError, r"\['epoch'\]"),
    ({"loader": {}, "now": {}}, ValueError, r"'loader', 'now'\]"),
    ({"epoch": 0, "next": 0, "states": []}, ValueError, r"'states'\]"),
]


@pytest.mark.parametrize(("state", "error", "given"), NO_STATES, ids=repr)
def test_of_what_is_no_state(state, error, given):
    pytest.importorskip("torch")
    with tn.Feed(lambda batch: None, SCHEMA) as feed:
        before = feed.state_dict()
        with pytest.raises(
            error, match=f"state .*{given}: a state is what state_dict.. of a feed has returned"
        ):
            feed.load_state_dict(state)
        assert feed.state_dict() == before
    loader = tn.DataLoader([1, 2, 3])
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(error, match=rf"{given}: it (must be a dict|is not of).* a tenon\.DataLoader"):
        loader.load_state_dict(state)
    assert loader.state_dict()["yielded"] == 1


class Counter:
    def __call__(self, batch): ...

    def state(self): ...

    def restore(self, state): ...


@pytest.mark.parametrize("change", [{"states": 3}, {"ranks": 1}, {"ranks": (1,)}], ids=repr)
def test_of_the_states_of_a_state(change):
    told = pytest.raises((ValueError, TypeError), match=r"(states|ranks) of the state is .*it must be a")
    with tn.Feed(Counter(), SCHEMA) as feed, told:
        feed.load_state_dict(feed.state_dict() | change)


@pytest.mark.parametrize("state", [(-1, 0), (0, -1), (2**70, 0), (0.5, 0), (0, "a")], ids=repr)
def test_of_the_state_of_a_feed(state):
    with tn.Feed(lambda batch: None, SCHEMA) as feed:
        before = feed.state_dict()
        with pytest.raises((ValueError, TypeError), match=f"of the state is .*({INT}|{RANGE})"):
            feed.load_state_dict({"epoch": state[0], "next": state[1]})
        assert feed.state_dict() == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": None},
        {"name": 5},
        {"name": "a\0b"},
        {"timeout": -1},
        {"timeout": "a"},
        {"wait": -1},
        {"wait": math.nan},
    ],
    ids=repr,
)
def test_of_an_attached_feed(arguments):
    with pytest.raises((ValueError, TypeError), match=f"{next(iter(arguments))} is |zero byte"):
        tn.Feed.attach(**{"name": "none-such", **arguments})


def test_zero_bytes_in_paths_and_prototypes_are_told():
    library, prototype = native_library.generators(), "int status(int code)"
    for call in (
        lambda: tn.c_function(library + "\0x", prototype),
        lambda: tn.c_function(library, prototype + "\0; x"),
        lambda: tn.plugin(library + "\0x"),
        lambda: tn.save("a\0b.npy", tn.ones(2)),
        lambda: tn.load("a\0b.npy"),
    ):
        with pytest.raises(ValueError, match=r"is .*\\x00.*: it must not contain a zero byte"):
            call()
    for value in (None, 5):
        with pytest.raises(TypeError, match=f"prototype is {value}"):
            tn.c_function(library, value)


def test_zero_bytes_in_the_names_of_saved_arrays_are_told(tmp_path):
    with pytest.raises(ValueError, match="zero byte"):
        tn.save(tmp_path / "a.npz", {"a\0b": tn.ones(2)})
    assert not list(tmp_path.iterdir())


def test_zero_bytes_in_dtypes_are_told():
    for name in ("\0", "f4\0", "f4\0x"):
        for take in (tn.dtype, lambda d: tn.zeros(2, d), tn.zeros(2).astype, tn.zeros(2).view):
            with pytest.raises(TypeError, match="zero byte"):
                take(name)


# ------------------------------------------------------------- every parameter, with what it cannot be

NAN = math.nan
HUGE = [2**63, 2**64, 10**30, -(2**63) - 1]
NO_NUMBER = ["a", "", "5", b"x", [], {}, object, 1j]
BOOLS = [True, np.True_]
NO_INTEGER = [*NO_NUMBER, *BOOLS, 1.5, NAN, math.inf, np.float64(2)]
NO_COUNT = [*NO_INTEGER, *HUGE, -1]
NO_SECONDS = [*NO_NUMBER, *BOOLS, -1, -0.5, NAN, -math.inf, np.float64(NAN), -(10**400)]
NO_FLAG = ["a", "", b"x", [], {}, object, 1j, 0, 1, -1, 2**64, 1.0, NAN, np.int64(1)]
NO_TEXT = [5, 1.5, True, b"x", [], {}, object, "a\0b", "\udcff"]
NO_ENTRY = ["a", b"x", None, {}, object, 1j, 1.5, NAN, math.inf, np.True_, np.float64(2), *HUGE]
NO_SHAPE = ["a", "", b"x", b"", None, {}, object, 1j, 1.5, NAN, math.inf, np.True_, np.float64(2), *HUGE]
NO_LIST = [5, 1.5, NAN, object, 1j, None, True]

a = tn.zeros(4)
memory = bytearray(64)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
shared = tn.Shared


def pointer(**arguments):
    return tn.from_pointer(**{"address": address, "shape": (2,), "dtype": "u1", **arguments})


def enter(block):
    with block:
        pass


def channel():
    return tn.Channel({"x": ("f4", (4,))}, slots=3)


def arena():
    return tn.Arena({"layout": {"x": ("f4", (4,))}})


def done():
    op = tn.push(lambda: 1)
    op.wait()
    return op


def feed(**arguments):
    tn.Feed(lambda batch: None, SCHEMA, **arguments).close()


def served():
    with tn.Feed(lambda batch: None, SCHEMA, shared=True) as feed:
        return feed.serve(epochs=0, consumers=0)


def prefetching():
    return tn.io.PrefetchingIter(tn.io.NDArrayIter(np.zeros(4)))


PARAMETERS = {
    "zeros(shape)": ("shape", tn.zeros, NO_SHAPE),
    "zeros(shape[0])": ("shape", lambda v: tn.zeros((2, v)), NO_ENTRY),
    "reshape(shape)": ("shape", lambda v: a.reshape(v), NO_SHAPE),
    "reshape(copy)": ("copy", lambda v: a.reshape(4, copy=v), NO_FLAG),
    "transpose(axes)": ("axes", lambda v: a.transpose(v, v), NO_ENTRY),
    "astype(copy)": ("copy", lambda v: a.astype("f4", copy=v), NO_FLAG),
    "__array__(copy)": ("copy", lambda v: a.__array__(copy=v), NO_FLAG),
    "__dlpack__(copy)": ("copy", lambda v: a.__dlpack__(copy=v), NO_FLAG),
    "from_dlpack(copy)": ("copy", lambda v: tn.from_dlpack(np.zeros(2), copy=v), NO_FLAG),
    "from_dlpack(x)": ("x", tn.from_dlpack, [5, "a", None, [], {}]),
    "from_numpy(zero_copy)": ("zero_copy", lambda v: tn.from_numpy(np.zeros(2), zero_copy=v), NO_FLAG),
    "from_buffer(shape)": (
        "shape",
        lambda v: tn.from_buffer(memory, "u1", v),
        [v for v in NO_SHAPE if v is not None],
    ),
    "from_buffer(offset)": ("offset", lambda v: tn.from_buffer(memory, "u1", offset=v), [*NO_COUNT, 65]),
    "from_pointer(address)": ("address", lambda v: pointer(address=v), [*NO_INTEGER, -1, 2**64, 10**30]),
    "from_pointer(shape)": ("shape", lambda v: pointer(shape=v), NO_SHAPE),
    "from_pointer(strides)": ("strides", lambda v: pointer(strides=(v,)), NO_ENTRY),
    "from_pointer(readonly)": ("readonly", lambda v: pointer(readonly=v), NO_FLAG),
    "from_pointer(deleter)": ("deleter", lambda v: pointer(deleter=v), [5, "a", [], NAN]),
    "lease(mode)": ("mode", lambda v: a.lease(v), [5, None, "", "rw", b"r", [], {}, True]),
    "lease(timeout)": ("timeout", lambda v: a.lease("r", timeout=v), NO_SECONDS),
    "lease(on_owner_died)": ("on_owner_died", lambda v: a.lease("r", on_owner_died=v), [5, None, "a", []]),
    "write(overwrite)": ("overwrite", lambda v: enter(a.write(overwrite=v)), NO_FLAG),
    "read(timeout)": ("timeout", lambda v: a.read(timeout=v), NO_SECONDS),
    "write(timeout)": ("timeout", lambda v: a.write(timeout=v), NO_SECONDS),
    "from_dlpack(writable)": ("writable", lambda v: tn.from_dlpack(a, writable=v), NO_FLAG),
    "wait_to_read(timeout)": ("timeout", lambda v: a.wait_to_read(v), NO_SECONDS),
    "wait_to_write(timeout)": ("timeout", lambda v: a.wait_to_write(v), NO_SECONDS),
    "waitall(timeout)": ("timeout", tn.waitall, NO_SECONDS),
    "Op.wait(timeout)": ("timeout", lambda v: done().wait(v), NO_SECONDS),
    "Op.result(timeout)": ("timeout", lambda v: done().result(v), NO_SECONDS),
    "Op.exception(timeout)": ("timeout", lambda v: done().exception(v), NO_SECONDS),
    "push(fn)": ("fn", tn.push, [5, "a", None, [], NAN]),
    "push(name)": ("name", lambda v: tn.push(lambda: 1, name=v), NO_TEXT),
    "push(reads)": ("reads", lambda v: tn.push(lambda: 1, reads=v), NO_LIST),
    "push(writes)": ("writes", lambda v: tn.push(lambda: 1, writes=v), NO_LIST),
    "push(overwrites)": ("overwrites", lambda v: tn.push(lambda: 1, overwrites=v), NO_LIST),
    "push(reads[0])": ("reads", lambda v: tn.push(lambda: 1, reads=[v]), NO_LIST),
    "set_engine(name)": ("name", tn.set_engine, NO_TEXT),
    "set_engine(workers)": ("workers", lambda v: tn.set_engine("pool", v), [*NO_COUNT, 2**31]),
    "set_engine_limits(ops)": ("ops", lambda v: tn.set_engine_limits(ops=v), NO_COUNT),
    "set_engine_limits(nbytes)": ("nbytes", lambda v: tn.set_engine_limits(nbytes=v), NO_COUNT),
    "set_lock_timeout(seconds)": ("seconds", tn.set_lock_timeout, NO_SECONDS),
    "attach(name)": ("name", tn.attach, NO_TEXT),
    "attach(readonly)": ("readonly", lambda v: tn.attach("none-such", v), NO_FLAG),
    "Channel.attach(name)": ("name", tn.Channel.attach, NO_TEXT),
    "Arena.attach(name)": ("name", tn.Arena.attach, NO_TEXT),
    "Shared(name)": ("name", lambda v: tn.zeros(2, shared=shared(name=v)), ["", *NO_TEXT]),
    "Shared(huge_pages)": ("huge_pages", lambda v: tn.zeros(2, shared=shared(huge_pages=v)), NO_FLAG),
    "Shared(populate)": ("populate", lambda v: tn.zeros(2, shared=shared(populate=v)), NO_FLAG),
    "Shared(numa_node)": ("numa_node", lambda v: tn.zeros(2, shared=shared(numa_node=v)), NO_COUNT),
    "Channel(schema)": ("schema", tn.Channel, [5, "a", None, [], NAN]),
    "Channel(slots)": ("slots", lambda v: tn.Channel({"x": ("f4", 4)}, v), [*NO_COUNT, 0, 4096]),
    "Channel.loan(timeout)": ("timeout", lambda v: channel().loan(v), NO_SECONDS),
    "Channel.recv(timeout)": ("timeout", lambda v: channel().recv(v), NO_SECONDS),
    "Arena.use(layout)": ("layout", lambda v: arena().use(v), [5, None, "a", [], {}]),
    "Arena.use(timeout)": ("timeout", lambda v: enter(arena().use("layout", timeout=v)), NO_SECONDS),
    "Feed(seed)": ("seed", lambda v: feed(seed=v), NO_INTEGER),
    "Feed(processes)": ("processes", lambda v: feed(processes=v), [5, None, 1.0, [], NAN]),
    "Feed(workers)": ("workers", lambda v: feed(workers=v), NO_COUNT),
    "Feed(timeout)": ("timeout", lambda v: feed(timeout=v), NO_SECONDS),
    "Feed(fill_timeout)": ("fill_timeout", lambda v: feed(fill_timeout=v), [*NO_SECONDS, 0]),
    "Feed.attach(timeout)": ("timeout", lambda v: tn.Feed.attach("none-such", timeout=v), NO_SECONDS),
    "Feed.attach(wait)": ("wait", lambda v: tn.Feed.attach("none-such", wait=v), [*NO_SECONDS, None]),
    "Server.wait(timeout)": ("timeout", lambda v: served().wait(v), NO_SECONDS),
    "Handle(timeout)": ("timeout", lambda v: tn.Handle(tn.zeros(2, shared=True), timeout=v), NO_SECONDS),
    "PrefetchingIter.close(timeout)": ("timeout", lambda v: prefetching().close(v), [*NO_SECONDS, None]),
    "trace(capacity)": ("capacity", lambda v: tn.trace("/dev/null", capacity=v), [*NO_COUNT, 0, 2**22]),
}


@pytest.mark.parametrize("where", PARAMETERS)
def test_each_parameter_names_itself_and_the_value(where):
    name, call, values = PARAMETERS[where]
    wrong = []
    for value in values:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                call(value)
            except (ValueError, TypeError, OverflowError, KeyError) as error:
                text = str(error)
                number = value is not None and not isinstance(value, str) and str(value) in text
                if name not in text or not (number or repr(value) in text or repr(repr(value)) in text):
                    wrong.append(f"{value!r}: {type(error).__name__}: {text}")
            except BaseException as error:
                wrong.append(f"{value!r}: {type(error).__name__}: {error}")
            else:
                wrong.append(f"{value!r} is accepted")
    assert not wrong, "\n".join(wrong)
    with contextlib.suppress(Exception):
        tn.waitall()


def test_numbers_of_numpy_are_numbers():
    assert tn.zeros(np.int64(3)).shape == (3,)
    a.wait_to_read(np.float32(1))
    a.lease("r", timeout=np.int64(1)).release()
    assert a.astype("i4", copy=np.True_).shape == (4,)
    assert tn.from_buffer(memory, "u1", offset=np.uint8(60)).shape == (4,)


@pytest.mark.parametrize("seconds", [math.inf, 1e300, 10**400])
def test_a_time_may_be_longer_than_any_wait(seconds):
    feed = tn.Feed(lambda batch: None, SCHEMA, timeout=seconds, fill_timeout=seconds)
    feed.close(seconds)
    served().wait(seconds)
    batches = prefetching()
    batches.reset()
    batches.close(seconds)


@pytest.mark.parametrize(
    ("begin", "shape", "strides"),
    [(16, (3,), (-8,)), (16, (4,), (-8,)), (8, (2, 2), (-16, 8)), (8, (2**29,), (-(2**30),))],
)
def test_no_array_reaches_down_to_address_0(begin, shape, strides):
    with pytest.raises(ValueError, match="leaves the address space"):
        tn.from_pointer(begin, shape, "u1" if strides[0] % 8 else "f8", strides)
