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


def test_every_public_class_and_method_has_a_signature():
    """Those of nanobind have one of their own, since their type takes no attributes: `help` shows it."""
    native = []
    for name in sorted(tn.__all__):
        kind = getattr(tn, name)
        if not isinstance(kind, type):
            continue
        inspect.signature(kind)
        for method in dir(kind):
            function = inspect.getattr_static(kind, method)
            if method.startswith("_") or isinstance(function, type) or not callable(function):
                continue
            if type(function).__module__ == "nanobind":
                native.append(f"{name}.{method}")
                assert function.__nb_signature__[0][0].startswith(f"def {method}(self"), native
            elif getattr(function, "__objclass__", None) is not BaseException:
                assert inspect.signature(function) is not None
    assert "NDArray.copy" in native
    assert list(inspect.signature(tn.Channel).parameters)[:3] == ["schema", "slots", "name"]
    assert not inspect.signature(tn.Op).parameters and not inspect.signature(tn.Batch).parameters
    assert list(inspect.signature(tn.Schema).parameters) == ["fields"]


def test_a_subclass_has_its_own_signature():
    class Named(tn.OwnerDied):
        def __init__(self, place):
            super().__init__(place)

    class Chosen(tn.LeaseConflict):
        def __init__(self, place):
            super().__init__(place)

    assert str(inspect.signature(Named)) == str(inspect.signature(Chosen)) == "(place)"
    assert list(inspect.signature(tn.LeaseConflict).parameters) == ["args"]


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
