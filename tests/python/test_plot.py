# SPDX-License-Identifier: Apache-2.0
"""`tenon plot`: the picture has what the trace has, whatever that is."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

import tenon as tn
from tenon.__main__ import main

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex

from tenon._tools import plot as _plot

SVG = "{http://www.w3.org/2000/svg}"
FAILED = "#d6001c"


def name(what, process, thread, text):
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": text}}


def slice_(begin, duration, text="s", category="op", process=1, thread=1, **arguments):
    return {
        "ph": "X",
        "name": text,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": begin,
        "dur": duration,
        "args": arguments,
    }


def drawn(document, title="run.json"):
    """The picture, which can be written."""
    return _plot.draw(document, title)[0]


def lanes(figure):
    return [label.get_text() for ax in figure.axes for label in ax.get_yticklabels()]


def groups(figure):
    return [ax.get_title(loc="left") for ax in figure.axes]


def kinds(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def bars(figure):
    """Of every bar the box (x0, y0, x1, y1) in seconds and rows, and its colour."""
    found = []
    for ax in figure.axes:
        for collection in ax.collections:
            colours = collection.get_facecolors()
            for k, path in enumerate(collection.get_paths()):
                box = path.get_extents()
                found.append((box.x0, box.y0, box.x1, box.y1, to_hex(colours[k % len(colours)])))
    return found


def test_a_trace_of_a_feed_and_ops_has_its_lanes(tmp_path):
    run, svg = tmp_path / "run.json", tmp_path / "out.svg"
    a = tn.zeros((2, 3), "float32")

    def fill(batch):
        batch.data[...] = batch.index

    with tn.trace(run):
        with tn.Feed(fill, tn.schema(data=("f4", (4,))), batches=20, slots=3) as feed:
            for batch in feed:
                tn.push(tn.copy, batch.data[:3], tn.write(a[0]), name="step").wait()
        with a.read():
            pass
    done = subprocess.run(
        [sys.executable, "-m", "tenon", "plot", str(run), str(svg)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{svg}: ") and "slices in" in done.stdout
    document = json.loads(run.read_text())
    figure = drawn(document)
    assert {"worker 0", "consumer", "slot 0", "slot 2"} <= set(lanes(figure))
    assert any("ops that wait, up to" in lane for lane in lanes(figure))
    assert any("array of shape (2, 3) and dtype floa" in lane for lane in lanes(figure))
    assert "leases" in groups(figure) and {"fill", "ops that wait"} <= set(kinds(figure))
    count = sum(event["ph"] == "X" for event in document["traceEvents"])
    assert len(bars(figure)) == count + 1  # and the curve of the ops that wait
    shown = {"".join(element.itertext()).strip() for element in ElementTree.parse(svg).iter(f"{SVG}text")}
    assert {"worker 0", "consumer", "leases", "fill"} <= shown


def test_slices_lie_where_their_times_say():
    figure = drawn([slice_(7, 100, "first"), slice_(107, 300, "second")])
    first, second = bars(figure)
    assert first[:3:2] == pytest.approx((0, 100e-6))
    assert second[:3:2] == pytest.approx((100e-6, 400e-6))
    assert first[1:4:2] == second[1:4:2]
    assert figure.axes[0].get_xlim() == pytest.approx((0, 400e-6))
    assert {text.get_text().strip() for text in figure.axes[0].texts} == {"first", "second"}


def test_lanes_and_groups_keep_their_order():
    def index(what, process, thread, value):
        return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"sort_index": value}}

    events = [
        *(slice_(0, 10, process=process, thread=thread) for process in (1, 2) for thread in (1, 2)),
        *(name("process_name", process, 0, f"group {process}") for process in (1, 2)),
        *(name("thread_name", p, t, f"lane {p}.{t}") for p in (1, 2) for t in (1, 2)),
        *(index("process_sort_index", process, 0, -process) for process in (1, 2)),
        *(index("thread_sort_index", 1, thread, -thread) for thread in (1, 2)),
    ]
    figure = drawn(events)
    assert groups(figure) == ["group 2", "group 1"]
    assert lanes(figure) == ["lane 2.1", "lane 2.2", "lane 1.2", "lane 1.1"]


def test_what_lies_inside_is_drawn_below():
    figure = drawn([slice_(0, 100), slice_(10, 50), slice_(100, 50)])
    rows = {bar[1]: bar[0] for bar in bars(figure)}
    assert len(rows) == 2
    assert rows[max(rows)] == pytest.approx(10e-6)
    assert figure.axes[0].yaxis_inverted()


def test_a_failure_has_its_colour_also_among_many():
    ok = [slice_(i, 0.5) for i in range(10_000)]
    bad = slice_(5000.6, 0.2, outcome="failed", error="no")
    figure = drawn([*ok, bad])
    assert "failed, or skipped" in kinds(figure)
    found = bars(figure)
    assert [bar[4] for bar in found].count(FAILED) == 1
    assert found[-1][4] == FAILED, "it is drawn last, above the others"


@pytest.mark.slow
def test_many_events_are_all_drawn_and_make_a_small_picture(tmp_path):
    events = [slice_(i * 10, 5, f"op {i}", thread=i % 4) for i in range(20_000)]
    assert len(bars(drawn(events))) == 20_000
    write(tmp_path, events, "out.svg")
    assert (tmp_path / "out.svg").stat().st_size < 500_000


def test_the_busiest_of_many_lanes_are_shown():
    events = [slice_(0, 10 + i, thread=i) for i in range(200)]
    figure = drawn(events)
    assert len(bars(figure)) == 64
    assert lanes(figure) == [*(f"thread {i}" for i in range(136, 200)), "and 136 lanes with less"]


def test_names_may_hold_anything(tmp_path):
    nasty = '<&>"$x$ $\\frac{\x00\x1b\ud800 \u00e9\U0001f600'
    events = [slice_(0, 1, nasty, nasty, note=nasty), name("thread_name", 1, 1, nasty)]
    document = {"traceEvents": events, "otherData": {"lost": 3}}
    figure = drawn(document)
    assert lanes(figure) == ['<&>"$x$ $\\frac{??? \u00e9\U0001f600']
    assert kinds(figure) == ["other"]
    assert "3 events lost" in figure.get_suptitle()
    write(tmp_path, document, "out.svg")
    write(tmp_path, document, "out.png")


def test_ops_that_wait_are_counted():
    events = [
        {"ph": phase, "cat": "op waits", "name": "op", "id": f"op {i}", "pid": 1, "tid": 1, "ts": at}
        for i in range(5)
        for phase, at in (("b", i), ("e", 100 - i))
    ]
    figure = drawn(events)
    assert lanes(figure) == ["ops that wait, up to 5"]
    (curve,) = figure.axes[0].collections
    heights = [y for x, y in curve.get_paths()[0].vertices if 10e-6 < x < 90e-6]
    assert min(heights, default=0.1) == pytest.approx(0.1)
    assert curve.get_paths()[0].get_extents().y0 == pytest.approx(0.1)


def write(tmp_path, document, picture):
    trace = tmp_path / "run.json"
    trace.write_text(json.dumps(document))
    assert main(["plot", str(trace), str(tmp_path / picture)]) == 0


@pytest.mark.parametrize(("picture", "begin"), [("out.svg", b"<?xml"), ("OUT.PNG", b"\x89PNG")])
def test_the_picture_s_name_says_its_form(tmp_path, capsys, picture, begin):
    write(tmp_path, [slice_(0, 100, "first")], picture)
    assert (tmp_path / picture).read_bytes().startswith(begin)
    assert capsys.readouterr().out == f"{tmp_path / picture}: 1 slices in 1 lanes, 100.000 \u00b5s\n"


@pytest.mark.parametrize("picture", ["out", "out.gif", ".svg"])
def test_other_forms_are_refused(tmp_path, capsys, picture):
    trace = tmp_path / "run.json"
    trace.write_text(json.dumps([slice_(0, 1)]))
    assert main(["plot", str(trace), str(tmp_path / picture)]) == 1
    assert "a name that ends in .svg or .png" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["run.json"]


@pytest.mark.slow
def test_without_matplotlib_the_error_names_the_extra(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')")
    (tmp_path / "run.json").write_text(json.dumps([slice_(0, 1)]))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "tenon", "plot", "run.json", "out.svg"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tenon plot: ") and 'pip install "tenon-arrays[plot]"' in done.stderr
    assert not (tmp_path / "out.svg").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"3", "traceEvents"),
        (b'{"events": []}', "traceEvents"),
        (b'{"traceEvents": [3]}', "traceEvents"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": [{"ph": "X", "name": "no time"}]}', "lacks"),
        (b'{"traceEvents": [{"ph": "X", "ts": "soon"}]}', "a number"),
        (b'{"traceEvents": [{"ph": "X", "ts": NaN}]}', "a number"),
        (b'{"traceEvents": [{"ph": "M"}]}', "lacks"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, capsys, content, said):
    trace, svg = tmp_path / "run.json", tmp_path / "out.svg"
    trace.write_bytes(content)
    assert main(["plot", str(trace), str(svg)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("tenon plot: ") and said in error and "run.json" in error
    assert not svg.exists()


def test_files_that_cannot_be_read_or_written_are_named(tmp_path, capsys):
    trace = tmp_path / "run.json"
    assert main(["plot", str(trace), str(tmp_path / "out.svg")]) == 1
    assert "run.json" in capsys.readouterr().err
    trace.write_text(json.dumps([slice_(0, 1)]))
    assert main(["plot", str(trace), str(tmp_path / "no" / "out.svg")]) == 1
    assert "out.svg" in capsys.readouterr().err
