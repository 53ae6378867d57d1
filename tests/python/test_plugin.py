# SPDX-License-Identifier: Apache-2.0
"""Plug-ins from Python: the configuration, the schema, the errors. (The rest: src/data/plugin_test.cc.)

Oracle: the plug-in of tests/native/plugin.c writes its state, worker and seeds into each batch, and counts
its states.
"""

import pathlib
import re
import subprocess
import sys

import native_library
import numpy as np
import pytest

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

ROOT = pathlib.Path(__file__).parents[2]
INCLUDE = ROOT / "include"
OPEN_WORKER, FILL_WORKER, OPEN_SEED, BATCH_SEED, INDEX, EPOCH, NTH, STATE = range(8)


def library(table=0):
    return native_library.compiled(
        native_library.SOURCES / "plugin.c",
        "-std=gnu99",
        f"-DTABLE={table}",
        f"-I{INCLUDE}",
        name=f"plugin{table}",
    )


def count(what, table=0):
    return tn.c_function(library(table), f"int64_t count_{what}(void)")()


def class_library(case=0):
    source = native_library.SOURCES / "plugin_class.cc"
    options = ("-std=c++20", f"-DCASE={case}", f"-I{INCLUDE}")
    return native_library.compiled(source, *options, name=f"plugin_class{case}")


def split_mix(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_a_feed_takes_schema_threads_and_seed_from_the_plug_in():
    plugin = tn.plugin(library(), rows=3)
    assert (plugin.name, plugin.threadsafe, plugin.config) == ("telling", True, {"rows": 3})
    assert plugin.schema.fields == (("data", tn.uint64, (3, 8)), ("label", tn.int64, (3,)))
    assert count("open") == 0
    with tn.Feed(plugin, workers=3, batches=30, seed=5) as feed:
        assert feed.schema is plugin.schema
        assert feed.stats().workers == 3
        states = {}
        for epoch in range(2):
            for index, batch in enumerate(feed):
                row = np.asarray(batch.data)[2].tolist()
                assert (row[INDEX], row[EPOCH], row[OPEN_SEED]) == (index, epoch, 5)
                assert row[BATCH_SEED] == split_mix(split_mix(split_mix(5) ^ epoch) ^ index)
                assert row[OPEN_WORKER] == row[FILL_WORKER]
                assert states.setdefault(row[FILL_WORKER], row[STATE]) == row[STATE]
                assert np.asarray(batch.label).tolist() == [index * 100 + r for r in range(3)]
        assert len(set(states.values())) == len(states)
        assert count("open") == len(states)
    assert count("open") == 0
    assert count("overlaps") == 0


def test_one_plug_in_serves_several_feeds():
    plugin = tn.plugin(library())
    with tn.Feed(plugin, batches=3, seed=1) as one, tn.Feed(plugin, batches=3, seed=2) as two:
        for first, second in zip(one, two, strict=True):
            assert (first.data[0, OPEN_SEED].item(), second.data[0, OPEN_SEED].item()) == (1, 2)
            assert first.data[0, STATE].item() != second.data[0, STATE].item()


def test_a_plug_in_that_is_not_threadsafe_or_has_no_description():
    plugin = tn.plugin(library(7))
    assert (plugin.schema, plugin.threadsafe) == (None, False)
    with pytest.raises(ValueError, match=r"'libplugin7.so' does not describe its fields: give a schema"):
        tn.Feed(plugin)
    schema = tn.schema(data=("u8", (4, 8)), label=("i8", (4,)))
    with tn.Feed(plugin, schema, workers=3, batches=4) as feed:
        assert feed.stats().workers == 1
        assert [batch.data[0, NTH].item() for batch in feed] == [0, 1, 2, 3]
    assert "libplugin7.so" in repr(plugin)


def test_a_failure_comes_at_the_place_of_its_batch_with_code_and_text():
    text = 'disk "A:\\" is full: \u00e9 \U0001f600'
    plugin = tn.plugin(library(), fail_at=3, text=text)
    with tn.Feed(plugin, workers=2, batches=10) as feed:
        seen = []
        with pytest.raises(tn.OpError, match="returned 7 at batch 3 of epoch 0: disk") as info:
            seen.extend(batch.index for batch in feed)
        assert seen == [0, 1, 2]
        assert text in str(info.value)
        assert (info.value.code, info.value.op) == (7, "telling")


def test_an_open_that_fails_is_an_error_of_the_first_batch():
    plugin = tn.plugin(library(), fail_open="no camera \u00e9")
    with tn.Feed(plugin, batches=3) as feed:
        for _ in range(2):
            with pytest.raises(tn.OpError, match="for worker 0 returned 5: no camera \u00e9") as info:
                next(iter(feed))
            assert info.value.code == 5
    with pytest.raises(tn.OpError, match="returned 3: rows must be an integer from 1 to"):
        tn.plugin(library(), rows=0)


def test_texts_of_any_bytes_are_text():
    plugin = tn.plugin(library(), fail_at=0, lie="endless text")
    with tn.Feed(plugin, batches=1) as feed, pytest.raises(tn.OpError, match="batch 0 of epoch 0: xxxx"):
        next(iter(feed))
    plugin = tn.plugin(library(), fail_at=0, text="\u00e9" * 300)
    with tn.Feed(plugin, batches=1) as feed, pytest.raises(tn.OpError, match="\u00e9" * 100):
        next(iter(feed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        (1, ValueError, "its ABI is 9, this library's is 3"),
        (2, ValueError, "struct_size of its table is 24"),
        (3, ValueError, "unknown flags: 512"),
        (4, ValueError, "open is NULL"),
        (5, ValueError, "fill is NULL"),
        (6, ValueError, "close is NULL"),
        (9, ValueError, "its ABI is 0"),
        (10, FileNotFoundError, "did you mean 'tenon_plugin_tabel'"),
        (11, ValueError, r"tenon_plugin_table\(\) returned NULL"),
    ],
)
def test_libraries_that_cannot_serve_are_refused(table, error, text):
    with pytest.raises(error, match=text):
        tn.plugin(library(table))


def test_a_library_that_is_missing_or_no_library(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no_such\.so"):
        tn.plugin(tmp_path / "no_such.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(FileNotFoundError, match=r"text\.so.*(invalid ELF|too short)"):
        tn.plugin(tmp_path / "text.so")
    with pytest.raises(FileNotFoundError, match="has no function 'tenon_plugin_table'"):
        tn.plugin(native_library.generators())


@pytest.mark.parametrize("lie", ["no list", "negative", "many", "no name", "no dtype", "other rows", "huge"])
def test_descriptions_that_cannot_be_are_refused(lie):
    with pytest.raises(ValueError, match="plug-in 'telling'"):
        tn.plugin(library(), lie=lie)
    assert count("open") == 0


def test_fields_named_as_an_attribute_of_batches_are_refused():
    with pytest.raises(ValueError, match="a field cannot be named 'index'"):
        tn.plugin(library(), lie="attribute")


def test_a_description_that_changes_is_an_error_of_the_batch():
    with (
        tn.Feed(tn.plugin(library(), lie="for workers"), batches=1) as feed,
        pytest.raises(
            tn.OpError, match=r"for worker 0 as data uint64 \(4, 9\).* made for data uint64 \(4, 8\)"
        ),
    ):
        next(iter(feed))


def test_a_schema_of_the_users_must_be_the_one_described():
    plugin = tn.plugin(library())
    with tn.Feed(plugin, tn.schema(data=("u8", (4, 8)), label=("i8", (4,))), batches=1) as feed:
        assert len(list(feed)) == 1
    with pytest.raises(ValueError, match=r"fills data uint64 \(4, 8\).* but the schema is data float32"):
        tn.Feed(plugin, tn.schema(data=("f4", (4, 8)), label=("i8", (4,))))


def test_the_configuration_is_what_json_has(tmp_path):
    plugin = tn.plugin(library(), rows=np.int64(2), path=tmp_path, list=[1, {"rows": 9}], none=None)
    assert plugin.schema.rows == 2
    for value in (object(), {1, 2}, np.zeros(3)):
        with pytest.raises(TypeError, match="configuration is JSON"):
            tn.plugin(library(), value=value)
    with pytest.raises(ValueError, match="Out of range float values"):
        tn.plugin(library(), value=float("nan"))


def test_generators_of_another_kind_are_refused():
    with pytest.raises(TypeError, match=r"generator is str: it is made by tn\.c_function or tn\.plugin"):
        tn.Feed("./libgen.so", tn.schema(label=("i8", (4,))))
    with pytest.raises(TypeError, match=r"schema is None: .*names to \(dtype, shape\)"):
        tn.Feed(tn.c_function(native_library.generators(), "int fill_label(int64_t *label, uint64_t index)"))


@pytest.mark.slow
def test_a_class_fills_through_views_and_its_exceptions_are_texts():
    plugin = tn.plugin(class_library(), rows=4, gain=0.5, name="abc\u00e9")
    assert plugin.schema.fields[2] == ("flag", tn.bool, (4,))
    objects = tn.c_function(class_library(), "int64_t count_objects(void)")
    with tn.Feed(plugin, workers=2, batches=5, seed=9) as feed:
        for batch in feed:
            wanted = 0.5 * (100 * batch.index + 10 * np.arange(4)[:, None]) + np.arange(6)
            assert (np.asarray(batch.data).reshape(4, 6) == wanted).all()
            assert np.asarray(batch.label).tolist() == [5000] * 4  # bytes of the name
            assert np.asarray(batch.flag).all()
        assert 1 <= objects() <= 2
    assert objects() == 0
    with (
        tn.Feed(tn.plugin(class_library(), name="thrower"), batches=5) as feed,
        pytest.raises(tn.OpError, match="at batch 3 of epoch 0: no batch thrower"),
    ):
        list(feed)
    with pytest.raises(tn.OpError, match=r"'rows' is 1\.5, not an integer"):
        tn.plugin(class_library(), rows=1.5)


def from_page(language, file):
    """The library that a block of docs/plugins.md makes with the options named there."""
    (block,) = re.findall(rf"```{language}\n(#include.*?)```", (ROOT / "docs/plugins.md").read_text(), re.S)
    file.write_text(block)
    return native_library.compiled(file, f"-I{INCLUDE}", *(["-std=c++20"] if language == "cpp" else []))


@pytest.mark.slow
def test_the_plug_ins_of_the_page_fill_the_same_batches(tmp_path):
    plugins = [
        tn.plugin(from_page("cpp", tmp_path / "ramp_class.cc"), gain=0.5, rows=8),
        tn.plugin(from_page("c", tmp_path / "ramp.c"), gain=0.5, rows=8),
    ]
    assert [plugin.name for plugin in plugins] == ["Ramp", "ramp"]
    with tn.Feed(plugins[0], workers=2, batches=5) as one, tn.Feed(plugins[1], workers=1, batches=5) as two:
        for ours, theirs in zip(one.numpy(), two.numpy(), strict=True):
            assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))
            assert (ours[0] == 0.5 * ours[1][:, None, None]).all() and ours[0].any()
    with pytest.raises(tn.OpError, match="gain must be a number, and rows an integer"):
        tn.plugin(plugins[1].path)
    with (
        tn.Feed(tn.plugin(plugins[0].path), batches=1) as feed,
        pytest.raises(tn.OpError, match="configuration: 'gain' is missing"),
    ):
        next(iter(feed))


@pytest.mark.slow
def test_the_example_runs(tmp_path):
    folder = ROOT / "examples"
    source = (folder / "walk.cc").read_text()
    assert "c++ -std=c++20 -O3 -shared -fPIC $(tenon config --includes) walk.cc -o libwalk.so" in source
    library = native_library.compiled(folder / "walk.cc", "-std=c++20", "-O3", f"-I{INCLUDE}")
    (tmp_path / "libwalk.so").symlink_to(library)
    script = [sys.executable, str(folder / "walk.py")]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    right, spread = map(float, re.findall(r"\d+\.\d+", done.stdout)[:2])
    assert 0.4 < right < 0.6
    assert 4.5 < spread < 5.5
