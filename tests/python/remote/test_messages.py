# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/messages.md run, each with the library that carries its messages."""

import importlib.util
import pathlib

import pytest
from programs_of_engines import EXAMPLES, example, run

NEEDS = {
    "zeromq": "zmq",
    "queue": "multiprocessing",
    "pipe": "multiprocessing",
    "asyncio": "asyncio",
    "grpc": "grpc",
    "ray": "ray",
    "dask": "distributed",
    "prometheus": "prometheus_client",
}
SLOW = ("zeromq", "grpc", "ray", "dask", "prometheus")  # `make check` installs what they need


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in NEEDS]
)
def test_the_program_runs(name):
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    run(example(f"messages_{name}.py"), 300)


def test_the_page_shows_all_programs():
    page = (pathlib.Path(EXAMPLES).parent / "docs/messages.md").read_text()
    assert {path.stem for path in EXAMPLES.glob("messages_*.py")} == {f"messages_{name}" for name in NEEDS}
    assert all(f"examples/messages_{name}.py" in page for name in NEEDS)
