# SPDX-License-Identifier: Apache-2.0
"""What `tn.push` makes of what it is given. Oracle: a parser in Python, which says for random calls which
arrays the op uses and how, what the function is given, and the text of each error."""

import functools
import gc
import random
import types
import weakref
from collections.abc import Iterable

import numpy as np
import pytest

import tenon as tn
from tenon._sync import pushes

pytestmark = pytest.mark.usefixtures("nothing_stays_behind", "no_op_is_left")

Use = type(tn.read(tn.zeros(1)))


class OwnUse(Use):
    def __init__(self, array, is_write, is_overwrite):
        super().__init__(array, is_write, is_overwrite)
        self.more = array


class Model:
    """The uses of an op, (array, is write, is overwrite), its arguments, and which of them it writes to."""

    def __init__(self, fn, arguments, keywords, lists, name, on_conflict):
        if on_conflict not in dict.fromkeys(("raise", "wait", "copy", "ignore")):
            valid = "'raise', 'wait', 'copy' or 'ignore'"
            raise ValueError(f"on_conflict is {on_conflict!r}: it must be {valid}")
        self.rows = []
        for what, arrays in lists.items():
            self._add_list(what, arrays)
        if not callable(fn):
            raise TypeError(f"fn is {fn!r}: an op runs a function")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {name!r}: it must be a str")
        if name is not None and "\0" in name:
            raise ValueError(f"name is {name!r}: it must not contain a zero byte ('\\0')")
        self.name = name or getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__
        if fn is steps:
            raise TypeError(
                f"{self.name} is a generator function (it has a yield): a call would not run its body. Use "
                "neither yield nor async; push a function that does its work before it returns"
            )
        self.parameters = fn._native.parameters if isinstance(fn, tn.CFunction) else ()
        self.is_native = isinstance(fn, tn.CFunction)
        if self.is_native:
            if fn.constants or keywords:
                arguments = fn._filled(tuple(arguments), keywords)
        else:
            arguments = [*arguments, *keywords.values()]
        named = {id(row[0]) for row in self.rows if row[1]}
        for argument in arguments:
            if isinstance(argument, Use):
                self._add(argument.array, argument.is_write, argument.is_overwrite)
        for argument, parameter in zip(arguments, self.parameters):
            self._check_declared(fn, argument, parameter)
        self.arguments, self.written = [], []
        for argument in arguments:
            is_wrapped = isinstance(argument, Use)
            array = argument.array if is_wrapped else argument
            is_bare = isinstance(array, tn.NDArray) and not is_wrapped
            if is_bare and (not self.is_native or self._modes(array)):
                self._add(array, False, False)
            self.arguments.append(array)
            self.written.append((is_wrapped and argument.is_write) or id(array) in named)
        if self.is_native and len(self.arguments) != len(self.parameters):
            count = f"takes {len(self.parameters)} arguments, not {len(self.arguments)}"
            raise TypeError(f"'{fn.name}' {count}: {fn.prototype}")

    def all_uses(self):
        rows = list(self.rows)
        for argument, (_, _, is_const, _) in zip(self.arguments, self.parameters):
            if isinstance(argument, tn.NDArray) and (is_const or not self._modes(argument)):
                rows.append((argument, not is_const, False))
        return rows

    def _add_list(self, what, arrays):
        if isinstance(arrays, tn.NDArray) or not isinstance(arrays, Iterable):
            raise TypeError(f"{what} is {arrays!r}: it must be a list of NDArrays")
        for array in arrays:
            if isinstance(array, Use):
                raise TypeError(f"{what} has {array!r}: pass the array itself")
            if not isinstance(array, tn.NDArray):
                raise TypeError(f"{what} has {array!r}: make an NDArray of it with tn.array(), which copies")
            self._add(array, what != "reads", what == "overwrites")

    def _add(self, array, is_write, is_overwrite):
        if is_write and not array.writable:
            raise BufferError(
                f"an op cannot write to a read-only array of shape {array.shape}: write to a.copy(), which "
                "is the only way for a frozen array; if the memory is another library's and may be written, "
                "import it with tn.from_dlpack(x, writable=True)"
            )
        self.rows.append((array, is_write, is_overwrite))

    def _modes(self, array):
        return [row[1] for row in self.rows if row[0] is array]

    def _check_declared(self, fn, argument, parameter):
        name, is_pointer, is_const, _ = parameter
        is_wrapped = isinstance(argument, Use)
        array = argument.array if is_wrapped else argument
        if not is_pointer or is_const or not isinstance(array, tn.NDArray):
            return
        modes = self._modes(array)
        if not argument.is_write if is_wrapped else modes and not any(modes):
            raise TypeError(
                f"the function may write to parameter {name!r} of {fn.prototype!r}, and the push only reads "
                f"the array: declare the parameter const if the function only reads, else pass `tn.write(a)`"
            )


def steps(*_):
    yield


def record(*given, **named):
    return [(x.flags.writeable if isinstance(x, np.ndarray) else x) for x in (*given, *named.values())]


class Recorder:
    def __init__(self):
        self.name = "recorder"

    def __call__(self, *given, out=..., **named):
        return record(*given, **named) if out is ... else record(*given, out=out, **named)


class Number:
    """Its methods call Tenon, and collect garbage."""

    def __init__(self, arrays):
        self.arrays = arrays

    def _call(self):
        gc.collect()
        tn.push(record, *self.arrays, on_conflict="ignore").wait()

    def __index__(self):
        self._call()
        return 4

    def __repr__(self):
        self._call()
        return "Number()"

    def __eq__(self, other):
        return isinstance(other, Number)

    __hash__ = None


class Lists:
    """Iterables of arrays, whose iteration calls Tenon and may change what is iterated."""

    def __init__(self, arrays, number):
        self.arrays, self.number = arrays, number

    def __iter__(self):
        for array in list(self.arrays):
            self.number._call()
            yield array


def growing(items, number):
    """A list that a repr() or an iteration may change."""
    for item in items:
        if number is not None:
            items.clear()
        yield item


@functools.cache
def natives():
    bare = tn.c_function(None, "size_t strnlen(const uint8_t *text, size_t n)")
    both = tn.c_function(None, "int64_t memcmp(uint8_t *to, const uint8_t *from, size_t n)")
    bound = tn.c_function(None, "int64_t memcmp(uint8_t *to, const uint8_t *from, size_t n)", n=4)
    return bare, both, bound


def random_call(seed, arrays):
    """(fn, arguments, keywords, options). Calls of the same seed are alike."""
    rng = random.Random(seed)
    number = Number(arrays[:2])

    def array():
        return rng.choice(arrays[:3] if rng.random() < 0.95 else arrays)

    def argument():
        kind = rng.randrange(9)
        if kind < 3:
            return array()
        if kind < 6:
            return rng.choice([tn.read, tn.write, tn.overwrite])(array())
        if kind == 6:
            writes = rng.random() < 0.7
            return OwnUse(array(), writes, writes and rng.random() < 0.5)
        return rng.choice([3, "text", None, number, (1, 2)])

    def some_arrays():
        items = [array() for _ in range(rng.randrange(3))]
        if rng.random() < 0.1:
            items.append(rng.choice([tn.read(array()), 3, number, None, np.zeros(2)]))
        kinds = [tuple, iter, growing_of, lists_of]
        return rng.choice([lambda items: items, *kinds])(items)

    def growing_of(items):
        return growing(items, rng.choice([None, number]))

    def lists_of(items):
        return Lists(items, number)

    options = {}
    for what in ("reads", "writes", "overwrites"):
        if rng.random() < 0.35:
            options[what] = some_arrays() if rng.random() < 0.92 else rng.choice([array(), 3, None, number])
    if rng.random() < 0.3:
        options["name"] = rng.choice([None, "", "named", "a\0b", 3, number])
    if rng.random() < 0.3:
        options["on_conflict"] = rng.choice(["raise", "raise", "raise", "Raise", 3, number])
    keywords = {}
    if rng.random() < 0.35:
        fns = natives()
        fn = rng.choice(fns)
        wanted = [argument() for _ in range(1 if fn is fns[0] else 2)]
        is_array = [isinstance(x, Use) or (isinstance(x, tn.NDArray) and x.writable) for x in wanted]
        wanted = [x if fits else arrays[0] for x, fits in zip(wanted, is_array)]
        if fn is not fns[2]:
            wanted.append(rng.choice([4, number]))
        if rng.random() < 0.1:
            wanted.append(4)
        if rng.random() < 0.3 and fn is not fns[0]:
            keywords["from"] = wanted.pop(1)
        return fn, wanted, keywords, options
    fn = rng.choice([record, record, Recorder(), functools.partial(record), lambda *x, **y: record(*x, **y)])
    if rng.random() < 0.06:
        fn = rng.choice([steps, 3, number])
    if rng.random() < 0.4:
        keywords["out"] = argument()
    if rng.random() < 0.2:
        keywords["scale"] = argument()
    return fn, [argument() for _ in range(rng.randrange(4))], keywords, options


def told(rows, arrays):
    return [([id(array) for array in arrays].index(id(row[0])), *row[1:]) for row in rows]


def outcome(make):
    try:
        return make(), None
    except (TypeError, ValueError, BufferError, AttributeError, tn.OpError) as error:
        return None, (type(error), str(error))


@pytest.mark.parametrize("seed", range(12))
def test_random_calls_are_read_as_by_the_model(seed, monkeypatch):
    """Each call is pushed alone, and beside views, with which it conflicts: then its work is seen."""
    works = []

    def explained(work, conflict, found=None):
        works.append(work)
        return conflict

    monkeypatch.setattr(pushes, "_live_places", lambda conflict, work: [])
    monkeypatch.setattr(pushes, "_explained", explained)
    monkeypatch.setattr(pushes, "gc", types.SimpleNamespace(collect=lambda *_: 0))  # takes long
    arrays = [tn.zeros(4, "u1") for _ in range(4)]
    arrays[3] = arrays[3].readonly()
    n_errors = n_works = 0
    for i in range(200):
        number = 1000 * seed + i
        fn, arguments, keywords, options = random_call(number, arrays)
        lists = {what: options.get(what, ()) for what in ("reads", "writes", "overwrites")}
        rest = options.get("name"), options.get("on_conflict", "raise")
        model, error = outcome(lambda: Model(fn, arguments, keywords, lists, *rest))  # noqa: B023
        fn, arguments, keywords, options = random_call(number, arrays)
        pushed, found = outcome(lambda: tn.push(fn, *arguments, **keywords, **options))  # noqa: B023
        assert found == error, number
        if error is not None:
            n_errors += 1
            assert all(holder.kind != "op" for array in arrays for holder in array.leases()), number
            continue
        assert pushed.name == model.name, number
        if not model.is_native:
            expected = [
                is_written if isinstance(argument, tn.NDArray) else argument
                for argument, is_written in zip(model.arguments, model.written)
            ]
            assert pushed.result() == expected, number
        tn.waitall()
        if any(isinstance(x, Number) for x in model.arguments):
            continue  # whose methods would conflict, too
        views = [np.asarray(array) for array in arrays[:3]]
        fn, arguments, keywords, options = random_call(number, arrays)
        options = {
            what: list(value) if what[0] in "rwo" and what != "on_conflict" else value
            for what, value in options.items()
        }
        try:
            tn.push(fn, *arguments, **keywords, **options)
            assert not any(row[1] for row in model.all_uses()), number
        except tn.LeaseConflict:
            n_works += 1
            work = works.pop()
            assert told(work.uses(False), arrays) == told(model.rows, arrays), number
            assert told(work.uses(True), arrays) == told(model.all_uses(), arrays), number
            assert all(x is y or x == y for x, y in zip(work.arguments(), model.arguments)), number
            del work
        tn.waitall()
        del views
    assert n_errors > 20 and n_works > 20, (n_errors, n_works)


class Held:
    pass


BAD = [{"reads": 3}, {"writes": [None]}, {"name": 3}, {"on_conflict": "x"}, {"last": "read-only"}]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_refused_push_keeps_nothing(bad):
    """The last one is refused after all arguments have been read."""
    a, held = tn.zeros(2), Held()
    ref = weakref.ref(held)
    given = {key: tn.write(a.readonly()) if key == "last" else value for key, value in bad.items()}
    with pytest.raises((TypeError, ValueError, BufferError)):
        tn.push(record, a, tn.write(a), held, out=held, **given)
    del held
    assert ref() is None
    assert a.leases() == []


def test_work_that_an_error_keeps_in_a_cycle_is_collected():
    a, held = tn.zeros(2), Held()
    view = np.asarray(a)
    try:
        tn.push(record, tn.write(a), held)
    except tn.LeaseConflict as error:
        held.error = error
    ref = weakref.ref(held)
    del held, view
    gc.collect()
    assert ref() is None


PLAIN = [0, 1, -1, 127, 128, 255, 256, 2**24 + 1, 2**53 + 1, 2**63, -(2**63), True, 0.1, 1e39, 1e-42, 2.5]
PLAIN += [float("nan"), float("inf"), -0.0, 1j, np.float32(0.1), np.int64(300), np.uint8(3), "1", None, [1]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["u1", "i1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
def test_a_pushed_fill_writes_what_numpy_s_assignment_does(dtype):
    """With the same error or warning, if there is one. The elements are compared by their bytes."""
    for value in PLAIN:
        a, x = tn.zeros((3, 2), dtype), np.zeros((3, 2), dtype)
        try:
            x[...] = value
            expected = None
        except Exception as error:
            expected = type(error), str(error)
        failure = tn.push(tn.fill, tn.overwrite(a[:, 1]), value).exception()
        x[:, 0] = 0
        cause = failure and failure.__cause__
        assert (failure and (type(cause), str(cause))) == expected, value
        if expected is None:
            assert bytes(a) == x.tobytes(), value


@pytest.mark.parametrize("push", [tn.copy, tn.cast])
def test_a_pushed_copy_of_overlapping_memory_reads_before_it_writes(push):
    for begin in (0, 1, 3):
        a, x = tn.arange(8, dtype="i4"), np.arange(8, dtype="i4")
        tn.push(push, a[:-3], tn.overwrite(a[begin : begin + 5])).wait()
        x[begin : begin + 5] = x[:-3].copy()
        assert a.tolist() == x.tolist()
    assert tn.push(push, a[::-1], tn.overwrite(a)).result() is None
    assert a.tolist() == x[::-1].tolist()
    error = tn.push(push, tn.zeros(3), tn.overwrite(tn.zeros(2))).exception()
    assert isinstance(error.__cause__, ValueError)


def test_an_object_that_only_claims_to_be_a_c_function_is_called_as_it_is():
    class Claims:
        __class__, _native, constants = tn.CFunction, None, None

        def __call__(self, *arguments, **named):
            return arguments, named

    assert tn.push(Claims(), 1, 2, 3, x=4).result() == ((1, 2, 3), {"x": 4})

    class Bare(tn.CFunction):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match="was not initialised"):
        tn.push(Bare(), 1)
