# SPDX-License-Identifier: Apache-2.0
"""The format of plain objects in messages: what is read is what was written, and bytes that nobody has
written give a ValueError."""

import hashlib
import random
import string

import numpy as np
import pytest

from tenon._core import code_of_bytes, decode_plain, encode_plain


def through(value, inline_nbytes=0):
    data, leaves = encode_plain(value, inline_nbytes)
    return decode_plain(data, leaves)


VALUES = [
    None,
    True,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    -(10**100),
    1.5,
    float("inf"),
    1 - 2j,
    "",
    "a\0\xe9\U0001f600",
    "\ud800 alone",
    b"",
    b"\0\xff",
    bytearray(b"xy"),
    [],
    (),
    {},
    set(),
    frozenset(),
    [1, [2, (3,)]],
    {1: 2, "k": (3,), (4, None): frozenset([5])},
    {1, "a", (2, 3)},
]


# Numbers, because the text of a set is not the same in each process.
@pytest.mark.parametrize("value", VALUES, ids=map(str, range(len(VALUES))))
def test_what_is_read_is_what_was_written(value):
    for kept in (value, [value, value], {"k": value}):
        read = through(kept)
        assert read == kept and type(read) is type(kept)
    assert type(through([value])[0]) is type(value)


def test_random_objects_come_back():
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)

    def make(depth):
        kind = rng.randrange(9 if depth else 5)
        many = range(rng.randrange(5))
        if kind < 5:
            return rng.choice(
                [None, rng.random(), rng.randrange(-(2**70), 2**70), "ab" * len(many), b"x" * 9]
            )
        if kind == 5:
            return [make(depth - 1) for _ in many]
        if kind == 6:
            return tuple(make(depth - 1) for _ in many)
        if kind == 7:
            return {rng.choice(string.ascii_letters): make(depth - 1) for _ in many}
        return {rng.randrange(100) for _ in many}

    for _ in range(300):
        value = make(5)
        assert through(value) == value


def test_an_object_that_occurs_twice_is_one_afterwards():
    parts = [[1], (2, [3]), {"a": 1}, {4}, frozenset([5]), bytearray(b"6"), "text" * 3, b"bytes"]
    read = through([parts, parts, *parts])
    assert read[0] is read[1] and all(a is b for a, b in zip(read[0], read[2:], strict=True))


def test_containers_may_contain_themselves():
    as_list, as_dict = [1], {}
    as_list.append(as_list)
    as_dict["me"] = [as_dict]
    assert (read := through(as_list))[1] is read
    assert (read := through(as_dict))["me"][0] is read
    through_tuple = ([],)
    through_tuple[0].append(through_tuple)
    data, leaves = encode_plain(through_tuple)  # the caller pickles it
    assert leaves == [through_tuple] and decode_plain(data, ["read"]) == "read"


def test_leaves_are_listed_once_each():
    leaf, other = object(), object()
    data, leaves = encode_plain([leaf, {"a": leaf}, (other,)])
    assert leaves == [leaf, other]
    assert decode_plain(data, ["x", "y"]) == ["x", {"a": "x"}, ("y",)]


def test_small_arrays_of_numpy_are_written_if_that_is_asked():
    a = np.arange(6, dtype="i2").reshape(2, 3)
    read = through([a, a, np.zeros((0, 2)), np.array(2.5)], 64)
    assert read[0] is read[1] and read[0].dtype == a.dtype and (read[0] == a).all()
    assert read[0].ctypes.data % 64 == 0 and read[0].flags.writeable
    assert read[2].shape == (0, 2) and read[3] == 2.5
    noted = np.zeros(2, np.dtype("i2", metadata={"unit": "m"}))
    others = [np.zeros(8), a.T, a.astype(">i2"), np.array([None]), np.matrix(a), noted]
    for one in others:
        assert encode_plain(one, 64)[1] == [one] or encode_plain(one, 64)[1][0] is one


def test_scalars_of_numpy_are_written_with_small_arrays():
    kinds = "? i1 u1 i2 u2 i4 u4 i8 u8 q f2 f4 f8 g c8 c16 G".split()
    values = [np.dtype(kind).type(1) for kind in kinds]
    data, leaves = encode_plain([*values, values[0], values[0]], 64)
    read = decode_plain(data, [])
    assert leaves == [] and read[-1] is read[-2]
    assert all(type(b) is type(a) and b == a for a, b in zip(values, read, strict=False))
    for one in (np.datetime64(5, "s"), np.str_("a"), np.void(b"ab")):
        assert encode_plain(one, 64)[1] == [one]


def test_deep_objects_are_refused_by_their_depth():
    deep = []
    for _ in range(900):
        deep = [deep]
    assert through(deep) == deep
    for _ in range(200):
        deep = [deep]
    with pytest.raises(RecursionError, match="1000 levels"):
        encode_plain(deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_plain(b"l\1" * 5000 + b"N", [])


def test_bytes_that_nobody_wrote_give_a_value_error():
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    whole = encode_plain([*VALUES, VALUES, np.arange(3.0), object()], 1000)[0]
    cases = [whole[:n] for n in range(len(whole))] + [whole + b"N"]
    for _ in range(20_000):
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        cases.append(bytes(changed))
    tags = b"NTFiIfcsSbBltdezrxyAa\0\1\2\x7f\x80\xff"
    cases += [bytes(rng.choices(tags, k=rng.randrange(40))) for _ in range(20_000)]
    cases += [
        b"l" + b"\xff" * 9 + b"\1",
        b"A\x0b\2" + b"\xff" * 8 + b"\x7f" + b"\2",
        b"s\5ab",
        b"x\1",
        b"y\0",
        b"r\0",
    ]
    n_read = 0
    for data in cases:
        try:
            decode_plain(data, [None])
            n_read += 1
        except ValueError as error:
            assert "no message of Tenon" in str(error)
    assert 0 < n_read < len(cases)  # a changed number is another number


def test_the_code_of_messages_is_siphash():
    key = bytes(range(16))
    codes = [code_of_bytes(key, bytes(range(n))) for n in range(64)]  # the vectors of its authors
    assert codes[0].hex() == "a3817f04ba25a8e66df67214c7550293"
    assert codes[63].hex() == "5150d1772f50834a503e069a973fbd7c"
    digest = "ecfaa9fe47ff788fa834a9863ea2715a2880cd37d2b8c3c194402838428119b9"
    assert hashlib.sha256(b"".join(codes)).hexdigest() == digest
