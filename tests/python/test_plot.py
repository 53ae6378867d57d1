# SPDX-License-Identifier: Apache-2.0
"""`tenon plot`: the picture has what the trace has, whatever that is."""

import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import pytest

import tenon as tn
from tenon.__main__ import main

SVG = "{http://www.w3.org/2000/svg}"


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


def drawn(tmp_path, document, capsys=None):
    """The picture's root, after it was parsed as XML."""
    trace, svg = tmp_path / "run.json", tmp_path / "out.svg"
    trace.write_text(json.dumps(document))
    assert main(["plot", str(trace), str(svg)]) == 0
    return ElementTree.parse(svg).getroot()


def texts(root):
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def titles(root):
    return [element.findtext(f"{SVG}title") for element in root.iter(f"{SVG}rect")]


def bars(root):
    return [element for element in root.iter(f"{SVG}rect") if element.find(f"{SVG}title") is not None]


def test_a_trace_of_a_feed_and_ops_has_its_lanes(tmp_path):
    run, svg = tmp_path / "run.json", tmp_path / "out.svg"
    a = tn.zeros((2, 3), "float32")

    def fill(batch):
        batch.data[...] = batch.index

    with tn.trace(run):
        with tn.Feed(fill, tn.schema(data=("f4", (4,))), batches=20, slots=3) as feed:
            for batch in feed:
                tn.push(tn.copy, batch.data[:3], tn.inout(a[0]), name="step").wait()
        with a.read():
            pass
    done = subprocess.run(
        [sys.executable, "-m", "tenon", "plot", str(run), str(svg)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "slices in" in done.stdout
    root = ElementTree.parse(svg).getroot()
    shown = " | ".join(texts(root))
    for text in ("worker 0", "consumer", "slot 0", "slot 2", "leases", "fill'", "ops that wait", "fill"):
        assert text in shown, text
    assert any("array of shape (2, 3) and dtype float32" in text for text in texts(root))


def test_slices_lie_where_their_times_say(tmp_path):
    root = drawn(tmp_path, [slice_(0, 100, "first"), slice_(100, 300, "second", why="because")])
    first, second = bars(root)
    x, width = float(first.get("x")), float(first.get("width"))
    assert float(second.get("x")) == pytest.approx(x + width, abs=0.5)
    assert float(second.get("width")) == pytest.approx(3 * width, rel=0.01)
    assert first.get("y") == second.get("y")
    assert second.findtext(f"{SVG}title") == "second: 300 us, at 100 us\nwhy: because"


def test_what_lies_inside_is_drawn_below(tmp_path):
    outer, inner, beside = bars(
        drawn(tmp_path, [slice_(0, 100), slice_(10, 50), slice_(100, 50)])
    )  # in order of rows
    rows = {float(bar.get("y")) for bar in (outer, inner, beside)}
    assert len(rows) == 2


@pytest.mark.slow
def test_a_failure_has_its_colour_also_among_many(tmp_path):
    ok = [slice_(i, 0.5) for i in range(100_000)]
    bad = slice_(50_000.6, 0.2, outcome="failed", error="no")
    root = drawn(tmp_path, [*ok, bad])
    assert "failed, or skipped" in texts(root)
    colours = [bar.get("fill") for bar in bars(root)]
    assert colours.count("#d6001c") == 1


@pytest.mark.slow
def test_a_hundred_thousand_events_make_a_small_picture_in_time(tmp_path):
    events = [slice_(i * 10, 5, f"op {i}", thread=i % 4) for i in range(100_000)]
    began = time.process_time()
    root = drawn(tmp_path, events)
    took = time.process_time() - began
    assert len(bars(root)) < 4 * 1300
    together = [title for title in titles(root) if title and "together" in title]
    assert sum(int(title.split()[0]) for title in together) > 90_000  # none is left out
    assert (tmp_path / "out.svg").stat().st_size < 2_000_000
    assert took < 60


def test_the_busiest_of_many_lanes_are_shown(tmp_path):
    events = [slice_(0, 10 + i, thread=i) for i in range(200)]
    root = drawn(tmp_path, events)
    assert len(bars(root)) == 64
    assert "and 136 lanes with less" in texts(root)


def test_names_may_hold_anything(tmp_path):
    nasty = '<&>"\x00\x1b\ud800 \u00e9\U0001f600'
    events = [slice_(0, 1, nasty, nasty, note=nasty), name("thread_name", 1, 1, nasty)]
    root = drawn(tmp_path, {"traceEvents": events, "otherData": {"lost": 3}})
    assert '<&>"' in titles(root)[-1]
    assert "other" in texts(root)
    assert any("3 events lost" in text for text in texts(root))


def test_ops_that_wait_are_counted(tmp_path):
    events = []
    for i in range(5):
        for phase, at in (("b", i), ("e", 100 - i)):
            event = {
                "ph": phase,
                "cat": "op waits",
                "name": "op",
                "id": f"op {i}",
                "pid": 1,
                "tid": 1,
                "ts": at,
            }
            events.append(event)
    root = drawn(tmp_path, events)
    assert "up to 5" in texts(root)


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
