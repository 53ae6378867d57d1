# SPDX-License-Identifier: Apache-2.0
"""What `inspect`, `help` and `repr` say about the public names."""

import inspect
import pickle

import tenon as tn


def test_every_public_function_has_a_signature():
    for name in sorted(tn.__all__):
        function = getattr(tn, name)
        if callable(function) and not isinstance(function, type) and name != "DTypeLike":
            assert "self" not in inspect.signature(function).parameters, name
            assert function.__doc__, name
    assert str(inspect.signature(tn.overwrite)) == "(array)"
    assert list(inspect.signature(tn.from_buffer).parameters) == ["obj", "dtype", "shape", "offset"]


def test_the_verbs_of_a_push_take_one_array_by_position_or_name():
    a = tn.zeros(2)
    for verb in (tn.read, tn.write, tn.overwrite):
        assert repr(verb(a)) == repr(verb(array=a)) == f"tn.{verb.__name__}({a!r})"
        for call in (verb, lambda verb=verb: verb(a, a), lambda verb=verb: verb(a, mode="r")):
            try:
                call()
            except TypeError as error:
                assert verb.__name__ in str(error)
            else:
                raise AssertionError(verb)


def test_the_text_of_a_schema_makes_it_again():
    schema = tn.schema(x=("f4", (3, 2)), mask=("u1", (3,), "kept"))
    assert repr(schema) == "tenon.schema(x=('float32', (3, 2)), mask=('uint8', (3,), 'kept'))"
    again = eval(repr(schema), {"tenon": tn})
    assert (again.fields, again.kept) == (schema.fields, schema.kept)


def test_a_schema_is_made_of_a_mapping_too():
    given = {"x": ("f4", (3, 2)), "mask": ("u1", 3, "kept")}
    schema = tn.schema(given)
    assert repr(schema) == repr(tn.schema(**given)) and tn.schema(schema) is schema
    assert repr(tn.schema({"x": ("f4", 3)}, y=("i8", 3))) == repr(tn.schema(x=("f4", 3), y=("i8", 3)))
    assert repr(pickle.loads(pickle.dumps(schema))) == repr(schema)


def test_the_help_of_the_package_begins_with_ten_lines():
    lines = inspect.getdoc(tn).splitlines()
    assert len(lines) <= 12 and all(len(line) < 120 for line in lines)
    for name in ("zeros", "from_numpy", "write", "push", "attach", "Channel", "c_function", "Feed", "doctor"):
        assert any(name in line for line in lines), name
