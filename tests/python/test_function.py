# SPDX-License-Identifier: Apache-2.0
"""Native functions: every argument arrives, every result comes back, what does not fit is refused by name."""

import array
import ctypes
import mmap
import pathlib
import random
import threading

import native_library
import numpy as np
import pytest

import tenon as tn
from tenon import _core

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def native(prototype, **constants):
    return tn.c_function(native_library.generators(), prototype, **constants)


SCALE = "int scale(const float *source, float *destination, size_t n, float factor)"


@pytest.fixture
def gate():
    """Holds threads inside of the library until it is opened."""

    class Gate:
        set = native("void set_gate(int open)", threadsafe=True)
        await_waiting = native("void await_waiting(int n)", threadsafe=True)

    Gate.set(0)
    yield Gate
    Gate.set(1)


def test_it_is_called_at_once_and_writes_the_arrays_own_memory():
    fill = native("int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)")
    data, label = tn.zeros((3, 8)), np.zeros(3, "i8")
    assert fill(data, label, 3, 2, 0) is None
    assert label.tolist() == [200, 201, 202]
    assert data[1, 3].item() == 213


def test_pointers_take_whatever_lends_memory():
    torch = pytest.importorskip("torch")
    source = np.arange(4, dtype="f4")
    scale = native(SCALE)
    destinations = [
        tn.zeros(4),
        np.zeros(4, "f4"),
        torch.zeros(4),
        array.array("f", [0] * 4),
        (ctypes.c_float * 4)(),
        memoryview(array.array("f", [0] * 4)),
    ]
    for destination in destinations:
        scale(source, destination, 4, 2)
        assert list(destination) == [0, 2, 4, 6], type(destination)


def test_8_bit_integers_of_either_sign_are_bytes():
    sum_bytes = native("int64_t sum_bytes(const char *bytes, size_t n)")
    for given in (
        b"\x01\xff",
        bytearray(b"\x01\xff"),
        np.array([1, -1], "i1"),
        tn.array([1, 255], dtype="u1"),
    ):
        assert sum_bytes(given, 2) == 256, given


def test_void_pointers_take_every_dtype():
    clear = native("void clear(void *bytes, size_t n)")
    values = np.ones(3, "c16")
    clear(values, values.nbytes)
    assert not values.any()
    with mmap.mmap(-1, 4096) as memory:
        memory[:3] = b"abc"
        clear(memory, 2)
        assert memory[:3] == b"\0\0c"


def test_none_is_null_and_only_for_pointers():
    is_null = native("int64_t is_null(const void *p)")
    assert is_null(None) == 1
    assert is_null(np.zeros(1)) == 0
    with pytest.raises(TypeError, match=r"'x' .float32. of 'half' takes a number"):
        native("double half(float x)")(None)


def test_results_come_back_in_their_type():
    assert native("double half(float x)")(3) == 1.5
    assert native("bool is_odd(unsigned x)")(3) is True
    assert native("uint64_t largest(void)")() == 2**64 - 1
    assert native("int8_t narrow(int8_t x)")(-128) == -128
    assert native("uint16_t wide(uint16_t x)")(65535) == 65535
    assert native("int32_t number(int code)")(-7) == -7


def test_a_result_of_type_int_is_a_status():
    status = native("int status(int code)")
    assert status(0) is None
    with pytest.raises(tn.OpError, match="'status' returned -7") as caught:
        status(-7)
    assert (caught.value.code, caught.value.op) == (-7, "status")
    assert isinstance(caught.value, tn.TenonError)


@pytest.mark.parametrize(
    ("prototype", "good", "bad"),
    [
        ("int8_t narrow(int8_t x)", (-128, 127, np.int64(5), True), (-129, 128, 2**70, -(2**70))),
        ("uint16_t wide(uint16_t x)", (0, 65535, np.uint8(3)), (-1, 65536, 2**64)),
        ("bool negated(bool x)", (True, False, 1, 0, np.True_), (2, -1)),
    ],
)
def test_integers_are_taken_within_their_range_only(prototype, good, bad):
    function = native(prototype)
    for value in good:
        function(value)
    for value in bad:
        with pytest.raises(OverflowError, match=r"outside of the range of parameter 'x'"):
            function(value)
    for value in (1.5, "1", None, [1]):
        with pytest.raises(TypeError, match=r"takes (an integer|True or False), not"):
            function(value)


def test_truth_is_what_a_bool_gets():
    negated = native("bool negated(bool x)")
    assert [negated(x) for x in (True, False, 1, 0, np.True_, np.False_)] == [False, True] * 3


def test_floating_point_parameters_take_every_real_number():
    half = native("double half(float x)")
    for value in (3, 3.0, np.float32(3), np.int8(3)):
        assert half(value) == 1.5
    for value in ("3", None, 3j):
        with pytest.raises(TypeError, match="takes a number"):
            half(value)


def test_arrays_that_do_not_fit_are_refused_by_parameter():
    scale = native(SCALE)
    good = np.zeros((4, 4), "f4")
    frozen = np.zeros(4, "f4")
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match=r"'source' \(const float32 \*\) of 'scale' cannot take .* float64"):
        scale(np.zeros(4), good, 4, 1)
    with pytest.raises(BufferError, match=r"'destination' .* in C order"):
        scale(good, good.T, 4, 1)
    with pytest.raises(BufferError, match=r"'destination' .* is written to, but the array is read-only"):
        scale(good, frozen, 4, 1)
    scale(frozen, good, 4, 1)
    for value in (1, "data", [1.0, 2.0], object()):
        with pytest.raises(TypeError, match=r"'source' .* takes an array, or None"):
            scale(value, good, 4, 1)


def test_the_number_of_arguments_is_checked():
    with pytest.raises(TypeError, match=r"'scale' takes 4 arguments, not 1: int scale\(const"):
        native(SCALE)(1)


def test_arguments_may_be_given_by_name():
    source, destination = np.ones(2, "f4"), np.zeros(2, "f4")
    native(SCALE)(source, destination, factor=3, n=2)
    assert destination.tolist() == [3, 3]
    with pytest.raises(ValueError, match=r"'faktor' is no parameter of .*: its parameters are source, dest"):
        native(SCALE)(source, destination, 2, faktor=3)
    with pytest.raises(TypeError, match="takes 3 arguments besides n, not 1"):
        native(SCALE)(source, n=3)


def test_constants_are_left_out_of_the_call():
    source, destination = np.ones(2, "f4"), np.zeros(2, "f4")
    scale = native(SCALE, source=source, factor=0.5)
    scale(destination, 2)
    assert destination.tolist() == [0.5, 0.5]
    scale(destination, 2, factor=4)
    assert destination.tolist() == [4, 4]
    with pytest.raises(TypeError, match="takes 2 arguments besides source, factor, not 3"):
        scale(destination, 2, 0.5)
    assert scale.constants["factor"] == 0.5


@pytest.mark.parametrize(
    ("constant", "error", "message"),
    [
        ({"gain": 1}, ValueError, "'gain' is no parameter"),
        ({"factor": "1"}, TypeError, "'factor' .* takes a number"),
        ({"n": -1}, OverflowError, "-1 is outside of the range"),
        ({"source": np.zeros(2)}, TypeError, "'source' .* cannot take an array of float64"),
        ({"destination": np.zeros((2, 2), "f4").T}, BufferError, "'destination' .* in C order"),
    ],
)
def test_a_wrong_constant_is_an_error_at_once(constant, error, message):
    with pytest.raises(error, match=message):
        native(SCALE, **constant)


@pytest.mark.parametrize("what", ["rows", "size"])
def test_a_length_is_bound_to_the_first_array(what):
    scale = native(SCALE, n=what, factor=2)
    source = np.arange(6, dtype="f4").reshape(3, 2)
    n = 3 if what == "rows" else 6
    for kind in (np.zeros(6, "f4"), tn.zeros(6), array.array("f", [0] * 6)):
        scale(source, kind)
        assert list(kind) == [0, 2, 4, 6, 8, 10][:n] + [0] * (6 - n)
    destination = np.zeros(6, "f4")
    scale(source, destination, n=1)
    scale(source=source, destination=destination, factor=3)
    assert destination[n - 1] == 3 * (n - 1)
    with pytest.raises(TypeError, match=rf"'n' of 'scale' is the {what} of the first array, .* has none"):
        scale(None, None)
    a, b = tn.array(source), tn.zeros(6)
    tn.push(scale, a, tn.overwrite(b)).wait()
    assert b.tolist() == [0, 2, 4, 6, 8, 10][:n] + [0] * (6 - n)


def test_the_length_of_nothing_with_axes_is_1():
    scale = native(SCALE, n="rows", factor=1)
    destination = np.zeros((), "f4")
    scale(np.ones((), "f4"), destination)
    assert destination == 1


def test_a_feed_binds_n_itself():
    prototype = "int fill(float *data, int64_t *label, size_t n, uint64_t index, uint64_t epoch)"
    fill = native(prototype, n="rows", threadsafe=True)
    with tn.Feed(fill, {"data": ("f4", (4, 8)), "label": ("i8", 4)}, batches=2) as feed:
        assert [batch.label.tolist() for batch in feed][1] == [100, 101, 102, 103]
    with pytest.raises(ValueError, match="'n' of 'fill' is 'size': a feed has a length only"):
        tn.Feed(native(prototype, n="size"), {"data": ("f4", (4, 8)), "label": ("i8", 4)})


def test_a_handle_is_an_address():
    make = native("uint64_t make_counter(void)", threadsafe=True)
    count = native("int count_up(counter_t *counter, float *data, size_t n)", n="size")
    steps = native("int64_t steps_of(const struct counter *counter)")
    free = native("void free_counter(void *counter)")
    address = make()
    data = np.zeros(2, "f4")

    class Counter(ctypes.Structure):
        _fields_ = [("steps", ctypes.c_int64)]

    pointer = ctypes.cast(address, ctypes.POINTER(Counter))
    for k, handle in enumerate([address, ctypes.c_void_p(address), pointer]):
        count(handle, data)
        assert data.tolist() == [k + 1] * 2 and steps(handle) == k + 1
    tn.push(count, address, tn.write(tn.zeros(3))).wait()
    assert steps(address) == pointer.contents.steps == 4
    counted = tn.c_function(
        native_library.generators(),
        "int count_up(counter_t *counter, float *data, size_t n)",
        counter=ctypes.c_void_p(address),
    )
    with tn.Feed(counted, {"data": ("f4", 3)}, batches=2) as feed:
        assert [batch.data.tolist() for batch in feed] == [[5] * 3, [6] * 3]
    for wrong in (data, b"abc", "abc", 1.5, True):
        with pytest.raises(
            TypeError, match=r"'counter' .* takes an address, as an int or a pointer of ctypes"
        ):
            count(wrong, data)
    for wrong in (2**64, -(2**64)):
        with pytest.raises(OverflowError, match="no address"):
            steps(wrong)
    is_null = native("int64_t is_null(const thing *p)")
    assert is_null(None) == is_null(0) == is_null(ctypes.c_void_p()) == 1 and is_null(address) == 0
    with pytest.raises(TypeError, match="takes an address"):
        tn.Feed(native("int fill(field_t *data)"), {"data": ("f4", 3)})
    free(address)


def test_a_parameter_that_is_not_bound_says_how_to_bind_it():
    with pytest.raises(
        ValueError, match=r"'factor' .* is not bound: .* tn\.c_function\(\.\.\., factor=value"
    ):
        tn.Feed(native(SCALE, source=np.zeros(3, "f4")), {"destination": ("f4", 3)})


def test_a_library_of_the_current_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "libsim.so").touch()
    for name in ("libsim.so", "libsim", "sim"):
        with pytest.raises(
            FileNotFoundError, match=r"the current folder has that file: write './libsim\.so'"
        ):
            tn.c_function(name, "int f(void)")
    with pytest.raises(FileNotFoundError, match=r"write a path with a slash for a file"):
        tn.c_function("libother.so", "int f(void)")


def test_what_is_missing_is_named():
    library = native_library.generators()
    with pytest.raises(FileNotFoundError, match=r"cannot load library './none\.so': .*No such file"):
        tn.c_function("./none.so", "int fill(void)")
    with pytest.raises(FileNotFoundError, match="has no function 'fil'; did you mean 'fill'"):
        tn.c_function(library, "int fil(void)")
    with pytest.raises(FileNotFoundError, match="this process has no function 'no_such_function_'"):
        tn.c_function(None, "int no_such_function_(void)")
    with pytest.raises(FileNotFoundError, match="has no function 'fil'"):
        tn.c_function(ctypes.CDLL(library), "int fil(void)")


def test_a_cpp_function_without_c_linkage_is_recognised(tmp_path):
    source = tmp_path / "mangled.cc"
    source.write_text("int fill(float *data) { return data == nullptr; }\n")
    library = native_library.compiled(source)
    with pytest.raises(
        FileNotFoundError, match=r"but the C\+\+ function '_Z4fillPf': declare it extern \"C\""
    ):
        tn.c_function(library, "int fill(float *data)")


def test_a_prototype_that_cannot_be_read_shows_the_place():
    with pytest.raises(ValueError, match="pointers to pointers") as caught:
        native("int fill(float **data)")
    lines = str(caught.value).split("\n")
    assert lines[1][lines[2].index("^") :] == "*data)"


def test_libraries_may_be_paths_handles_or_the_process():
    path = native_library.generators()
    for library in (path, pathlib.Path(path), path.encode(), ctypes.CDLL(path)):
        assert tn.c_function(library, "double half(float x)")(1) == 0.5, library
    assert tn.c_function(None, "double ldexp(double x, int e)")(0.5, 3) == 4
    with pytest.raises(TypeError, match="PyDLL"):
        tn.c_function(ctypes.PyDLL(path), "double half(float x)")


def test_repr_shows_the_prototype():
    text = repr(native("int status ( int\ncode );", threadsafe=True, code=1))
    assert text == "<tenon.c_function 'int status ( int code )', threadsafe, code=...>"


def test_python_runs_and_arrays_stay_viewed_while_a_function_is_inside(gate):
    write = native("void write_at_gate(double *values, size_t n)", threadsafe=True)
    views = _core.statistics()["views"]
    values = tn.zeros(3, dtype="f8")
    lent = np.zeros(3)
    threads = [threading.Thread(target=write, args=(a, 3)) for a in (values, lent)]
    for thread in threads:
        thread.start()
    gate.await_waiting(2)  # from here on both are inside, and this thread runs: the GIL is free
    assert _core.statistics()["views"] >= views + 2
    gate.set(1)
    for thread in threads:
        thread.join()
    assert values.tolist() == [1, 1, 1]
    assert lent.tolist() == [1, 1, 1]


def test_one_call_at_a_time_unless_threadsafe():
    labels = np.zeros(8, "i8")
    most_inside = native("int32_t take_most_inside(void)")

    def most(threadsafe):
        crowd = native("int crowd(int64_t *label, uint64_t index)", threadsafe=threadsafe)
        start = threading.Barrier(4)

        def run():
            start.wait()
            for i in range(50):
                crowd(labels, i)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return most_inside()

    assert most(threadsafe=False) == 1
    assert most(threadsafe=True) > 1


# Oracle: compiled C code compares each argument with a number that is written into its source.
TYPES = {
    "signed char": (-(2**7), 2**7 - 1), "unsigned char": (0, 2**8 - 1), "short": (-(2**15), 2**15 - 1),
    "unsigned short int": (0, 2**16 - 1), "int": (-(2**31), 2**31 - 1), "unsigned": (0, 2**32 - 1),
    "long": (-(2**63), 2**63 - 1), "unsigned long long": (0, 2**64 - 1), "int16_t": (-(2**15), 2**15 - 1),
    "uint32_t": (0, 2**32 - 1), "ptrdiff_t": (-(2**63), 2**63 - 1), "size_t": (0, 2**64 - 1), "bool": (0, 1),
}  # fmt: skip
FLOATS = ("float", "double")


def random_function(name, rng):
    """Its C source, its prototype and the arguments that it checks."""
    parameters, checks, arguments = [], [], []
    for i in range(rng.randrange(25)):
        kind = rng.choice([*TYPES, *FLOATS * 4, "pointer"])
        if kind in FLOATS:
            value = rng.randrange(-(2**20), 2**20) / 8
            checks.append(f"p{i} == {value!r}")
        elif kind == "pointer":
            value = np.full(1, rng.randrange(1000))
            checks.append(f"*p{i} == {value[0]}")
            kind = "const int64_t *"
        else:
            value = rng.choice([*TYPES[kind], rng.randint(*TYPES[kind])])
            checks.append(f"p{i} == ({kind}){value & 2**64 - 1}ULL")
        parameters.append(f"{kind} p{i}")
        arguments.append(value)
    result = rng.choice([*TYPES, *FLOATS])
    low, high = TYPES.get(result, (-1000, 1000))
    expected = rng.choice([low, high, rng.randint(low, high)])
    wrong = 1 if expected == 0 else 0
    prototype = f"{result} {name}({', '.join(parameters) or 'void'})"
    test = " && ".join(checks) or "1"
    written = f"({result}){expected & 2**64 - 1}ULL" if result in TYPES else f"{expected}"
    return f"{prototype} {{ return {test} ? {written} : {wrong}; }}\n", prototype, arguments, expected


@pytest.mark.slow
def test_random_prototypes_pass_every_argument_to_compiled_c(tmp_path):
    seed = 20240229
    rng = random.Random(seed)
    functions = [random_function(f"f{i}", rng) for i in range(200)]
    source = tmp_path / "random_functions.c"
    includes = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n"
    source.write_text(includes + "".join(function[0] for function in functions))
    library = native_library.compiled(source, "-Wno-float-equal")
    for _, prototype, arguments, expected in functions:
        if prototype.startswith("int "):  # a status: read it as a number
            prototype = "int32_t " + prototype.removeprefix("int ")
        assert tn.c_function(library, prototype)(*arguments) == expected, (seed, prototype)


def test_bytes_are_taken_as_elements_by_the_advice_of_their_refusal():
    scale, destination = native(SCALE), tn.zeros(4)
    for data in (np.ones(4, "f4").tobytes(), bytearray(np.ones(4, "f4"))):
        with pytest.raises(TypeError, match=r"pass `tn\.from_buffer\(a, 'float32'\)`"):
            scale(data, destination, 4, 2.0)
        scale(tn.from_buffer(data, "float32"), destination, 4, 2.0)
        assert destination.tolist() == [2] * 4


def test_the_advice_for_an_output_in_another_order_is_one_that_arrays_have():
    scale, a = native(SCALE), tn.zeros((2, 2))
    with pytest.raises(
        BufferError, match=r"in C order .*b = a\.copy\(\) before .*a\[\.\.\.\] = b after"
    ) as caught:
        scale(tn.ones(4), a.T, 4, 2.0)
    assert "order=" not in str(caught.value)
