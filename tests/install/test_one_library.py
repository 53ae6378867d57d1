# SPDX-License-Identifier: Apache-2.0
"""One libtenon in a process: a C library that is linked to a prefix shares that of the Python package,
whichever is loaded first. A second copy is refused, and the error names the files of both."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installed import HERE, compile_c

import tenon as tn

LIBRARY = Path(tn._core.__file__).parent / "lib/libtenon.so.0"
LOADED = """
import ctypes, os, sys, threading

def loaded():
    with open("/proc/self/maps") as maps:
        return {os.path.basename(line.split()[-1]) for line in maps if "libtenon" in line}

def client():
    return ctypes.CDLL(sys.argv[1])

def fill(library, address, n, value, timeout_ns):
    message = ctypes.create_string_buffer(512)
    library.holder_fill.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int64,
                                    ctypes.c_char_p, ctypes.c_size_t]
    results = []
    def call():  # a lease belongs to its thread
        results.append(library.holder_fill(address, n, value, timeout_ns, message, len(message)))
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return results[0], message.value.decode()
"""
SHARED = """
import numpy as np
assert len(loaded()) == 1, loaded()
a = tn.zeros(4, "f8")
with a.write() as v:
    status, message = fill(library, a.data_ptr, 4, 7.0, 50_000_000)
    assert status == 7, (status, message)  # TENON_ERR_TIMEOUT
    assert (v == 0).all()
assert fill(library, a.data_ptr, 4, 7.0, -1)[0] == 0
assert (np.asarray(a) == 7).all()
print("shared")
"""
CLIENT_FIRST = LOADED + "library = client()\nimport tenon as tn\n" + SHARED
CLIENT_LAST = LOADED + "import tenon as tn\nlibrary = client()\n" + SHARED

pytestmark = [pytest.mark.slow]


def python(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def holder(prefix, tmp_path_factory):
    """A library that is linked to the prefix and finds its libtenon there."""
    lib = prefix / "lib"
    output = tmp_path_factory.mktemp("holder") / "libholder.so"
    flags = ["-shared", "-fPIC", f"-I{prefix / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltenon"]
    return compile_c(HERE / "holder/holder.c", output, *flags)


@pytest.mark.parametrize("code", [CLIENT_FIRST, CLIENT_LAST], ids=["client-first", "client-last"])
def test_a_client_of_a_prefix_and_python_share_one_library(holder, code):
    assert python(code, holder) == "shared\n"


def test_the_prefix_and_the_wheel_have_the_same_soname(prefix):
    for library in (prefix / "lib/libtenon.so", LIBRARY):
        text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        assert "[libtenon.so.0]" in text


@pytest.fixture
def other(tmp_path):
    """A copy under another SONAME, as tools that bundle libraries make it, and a client of it."""
    folder = tmp_path / "bundled"
    folder.mkdir()
    copy = folder / "libtenon-b.so"
    content = LIBRARY.read_bytes()
    assert len(copy.name) == len(LIBRARY.name)
    copy.write_bytes(content.replace(LIBRARY.name.encode() + b"\0", copy.name.encode() + b"\0"))
    includes = LIBRARY.parents[1] / "include"
    flags = ["-shared", "-fPIC", f"-I{includes}", copy, f"-Wl,-rpath,{folder}"]
    return copy, compile_c(HERE / "holder/holder.c", tmp_path / "libholder.so", *flags)


IMPORT = """
try:
    import tenon
except ImportError as error:
    print(error)
else:
    print("imported")
"""


def test_the_import_beside_another_copy_is_an_import_error(other):
    copy, client = other
    message = python(LOADED + "client()\n" + IMPORT, client)
    assert f"{copy} was first" in message and os.fspath(LIBRARY) in message


def test_another_copy_beside_python_is_refused(other):
    copy, client = other
    call = "status, message = fill(library, tn.zeros(4, 'f8').data_ptr, 4, 7.0, -1)\nprint(status, message)"
    message = python(LOADED + "import tenon as tn\nlibrary = client()\n" + call, client)
    assert message.startswith("10 ")  # TENON_ERR_SYSTEM
    assert f"{LIBRARY} was first" in message and os.fspath(copy) in message


def test_the_same_file_by_another_path_is_refused(tmp_path):
    copy = shutil.copy(LIBRARY, tmp_path)
    code = """
import sys, ctypes, tenon
library = ctypes.CDLL(sys.argv[1])
message = ctypes.create_string_buffer((524).to_bytes(4, "little"), 524)
status = library.tenon_dtype_from_name(b"f4", ctypes.byref(ctypes.c_uint32()), message)
print(status, message.raw[8:].decode().rstrip(chr(0)))
"""
    message = python(code, copy)
    assert message.startswith("10 ") and os.fspath(copy) in message and os.fspath(LIBRARY) in message
