# SPDX-License-Identifier: Apache-2.0
"""Programs that end with something alive, or with something going on: test_exit.py runs them."""

import importlib.util

# What stays alive in module globals until the very end.
ALIVE = {
    "arrays": "a = [tn.zeros(10), tn.zeros(1 << 20), tn.zeros(0), tn.array(1)]",
    "views": "a = tn.zeros((4, 4)); b = [a[1:], a.T, a.reshape(-1), a.readonly(), a.view('uint8')]",
    "numpy views": "x = [np.asarray(tn.zeros(4)), tn.zeros(9).numpy()[1:], np.from_dlpack(tn.zeros(4))]",
    "memoryviews": "m = memoryview(tn.zeros(4)); n = m[1:]; o = m.cast('B')",
    "lent numpy arrays": """
x, y = np.zeros(4), np.zeros(4)
a = tn.from_numpy(x)
b = tn.from_numpy(y).numpy()
del y
""",
    "moved": "x = np.zeros(4); a = tn.from_numpy(x, mode='move')",
    "buffers": """
import mmap
r = bytearray(8)
a = tn.from_buffer(r, 'u1')
b = tn.from_buffer(mmap.mmap(-1, 4096), 'u1')
""",
    "capsules": """
c = tn.zeros(4).__dlpack__()
d = tn.zeros(4).__dlpack__(max_version=(1, 0))
e = tn.from_numpy(np.zeros(3)).__dlpack__()
""",
    "imports": "t = dl.Tensor((4,)); a = tn.from_dlpack(t); b = np.from_dlpack(a)",
    "imports without a producer": "a = tn.from_dlpack(dl.Tensor((4,), deleter=None)); b = a.numpy()",
    "consumed capsules that nobody gives back": """
t = dl.take(tn.zeros(4).__dlpack__())
u = dl.take(tn.from_numpy(np.zeros(4)).__dlpack__())
""",
    "pointers": """
raw = (ctypes.c_double * 4)()
a = tn.from_pointer(ctypes.addressof(raw), (4,), 'f8', owner=raw, deleter=lambda p: None)
""",
    "cycles": """
class Node: pass
node = Node()
node.node = node
node.array = tn.from_numpy(np.zeros(4))
node.view = node.array.numpy()
""",
    "iterators": "i = iter(tn.zeros((3, 3))); next(i); g = (row for row in tn.zeros((3, 3))); next(g)",
    "ctypes": """
c = tn.zeros(4).ctypes
p = c.data_as(ctypes.POINTER(ctypes.c_float))
q = (ctypes.c_float * 4).from_buffer(tn.zeros(4))
""",
    "exceptions": "try: tn.zeros(3)[7]\nexcept IndexError as error: kept = error",
    "frames": "def f(a):\n    yield a[0]\n    yield a\ng = f(tn.from_numpy(np.zeros(3))); next(g)",
    "types and functions": "z, t, d, f = tn.zeros, tn.NDArray, tn.float32, tn.NDArray.__dlpack__",
    "builtins": "import builtins; builtins.kept = [tn.from_numpy(np.zeros(4)), memoryview(tn.zeros(3))]",
    "sys": "sys.kept = tn.from_numpy(np.zeros(4)); sys.modules['kept'] = tn.zeros(4)",
    "thread locals": "l = threading.local(); l.a = tn.from_numpy(np.zeros(4))",
    "contexts": "import contextvars; v = contextvars.ContextVar('v'); v.set(tn.from_numpy(np.zeros(4)))",
    "weak references": """
a = tn.zeros(4)
r = weakref.ref(a, print)
d = weakref.WeakValueDictionary(a=a)
del a, r
""",
    "dtypes of ml_dtypes": "a = tn.zeros(4, dtype='bfloat16'); r = repr(a)",
}

# What happens at the end.
ENDINGS = {
    "__del__ that makes arrays": """
class Late:
    def __del__(self, tn=tn, np=np):
        a = tn.from_numpy(np.ones(4)); b = a.numpy(); a[0] = 2; memoryview(a); tn.from_dlpack(np.ones(3))
late = Late(); sys.late = Late(); cycle = Late(); cycle.itself = cycle
""",
    "atexit": """
kept, held = tn.zeros(4), [tn.from_numpy(np.zeros(4)), memoryview(tn.zeros(3))]
atexit.register(held.clear)
atexit.register(lambda: tn.from_numpy(np.ones(4)).numpy().sum())
atexit.register(lambda: kept.tolist())
""",
    "weakref.finalize": """
x = np.zeros(4)
weakref.finalize(x, lambda: tn.zeros(4).numpy())
a = tn.from_numpy(x)
""",
    "modules are emptied first": """
a = tn.from_numpy(np.zeros(4)); b = a.numpy()
vars(tn).clear(); vars(sys.modules['tenon._core']).clear()
""",
    "a thread that goes on after the main thread": """
x = np.zeros(4)
def work():
    for _ in range(300): tn.from_numpy(x).numpy(); time.sleep(0.001)
threading.Thread(target=work).start()
""",
}

if importlib.util.find_spec("torch"):
    ENDINGS["a tensor, and an array that goes after the modules"] = """
import torch
tensor = torch.from_dlpack(tn.from_numpy(np.zeros(5)))
class Late:
    def __init__(self, a): self.a = a
    def __del__(self): del self.a
sys.late = Late(tn.from_numpy(np.zeros(7)))
"""

# What daemon threads do, again and again, when Python ends under them.
DAEMONS = {
    "exchange": """
a = tn.from_numpy(np.zeros(4)); b = a.numpy(); c = memoryview(a)
d = np.from_dlpack(a[1:]); tn.from_dlpack(d)
""",
    "copy without the GIL": "large.copy(); large[...] = 1.0",
    "wait for a call of another thread": "zero(large, large.nbytes)",
    "ask a producer written in Python": "tn.from_dlpack(slow_producer)",
    "run finalisers": "a = tn.from_numpy(np.zeros(3).view(SlowEnd)); del a",
    "call deleters": "tn.from_pointer(address, (4,), 'f4', deleter=lambda p: time.sleep(0))",
    "print": "repr(square)",
    "compute": "square + 1; square.__iadd__(1); square == square",
    "convert": "tn.array([[1.0, 2.0]] * 100); square.tolist(); list(square); bytes(square)",
    "fail": "try: tn.from_numpy(np.zeros(3, '>f4'))\nexcept TypeError: pass",
    "pickle": "pickle.loads(pickle.dumps(square))",
    "iterate a feed": """
fill = tn.c_function("libc.so.6", "void bzero(uint8_t *x, size_t n)")
for batch in tn.Feed(fill, tn.schema(x=("u1", (16,)))): pass
""",
    "wait while holding all": "a = tn.from_numpy(np.zeros(4)); b = a.numpy(); threading.Event().wait()",
}
DAEMON_PRELUDE = """
import pickle
class SlowProducer:
    x = np.zeros(4)
    def __dlpack__(self, **keywords):
        time.sleep(0)
        return self.x.__dlpack__(**keywords)
    def __dlpack_device__(self): return (1, 0)
class SlowEnd(np.ndarray):
    def __del__(self): time.sleep(0)
zero = tn.c_function("libc.so.6", "void bzero(float *x, size_t n)")
slow_producer, large, square = SlowProducer(), tn.zeros(1 << 22), tn.zeros((200, 200))
raw = bytearray(64)
address = ctypes.addressof((ctypes.c_char * 64).from_buffer(raw))
"""


def with_daemons(body, n=3):
    """A program that ends while n daemon threads run body in a loop."""
    lines = "\n        ".join(body.strip().splitlines())
    loop = f"def work():\n    while True:\n        {lines}\n"
    start = f"for _ in range({n}): threading.Thread(target=work, daemon=True).start()\ntime.sleep(0.15)\n"
    return DAEMON_PRELUDE + loop + start


# What code in C does at the end.
NATIVE = {
    "the C library lets go of heap arrays at exit": """
for _ in range(8):
    t = dl.take(tn.zeros(1000).__dlpack__(max_version=(1, 0)))
    native.load().call_at_exit(t._deleter, t.address)
""",
    "the C library lets go of Python's memory at exit": """
x, raw = np.zeros(4), bytearray(64)
for a in (tn.from_numpy(x), tn.from_buffer(raw, 'u1'), tn.from_dlpack(np.zeros(3))):
    t = dl.take(a.__dlpack__())
    native.load().call_at_exit(t._deleter, t.address)
""",
    "another thread lets go of Python's memory at exit": """
x = np.zeros(4)
for a in (tn.zeros(10), tn.from_numpy(x), tn.from_buffer(bytearray(8), 'u1')):
    t = dl.take(a.__dlpack__())
    native.load().call_at_exit_on_thread(t._deleter, t.address)
""",
    "foreign threads let go while the interpreter ends": """
for _ in range(16):
    wake, waker = os.pipe(); done, doner = os.pipe()
    t = dl.take(tn.from_numpy(np.zeros(4)).__dlpack__())
    native.load().call_when_woken(t._deleter, t.address, wake, doner)
    atexit.register(os.write, waker, b'w')
""",
    "released before the end and never drained": """
x = [np.zeros(4) for _ in range(50)]
for item in x:
    t = dl.take(tn.from_numpy(item).__dlpack__())
    native.load(keep_gil=True).call_on_thread(t._deleter, t.address)
""",
    "memory of a C library": """
table = dl.Table()
table.header.version = dl.Version(1, 3)
for slot in ('allocator', 'to_object', 'stream'): setattr(table, slot, native.address_of('slot_gives_null'))
table.from_object = native.address_of('slot_gives_tensor')
capsule = dl.capsule_new(ctypes.addressof(table), dl.name_buffer(b'dlpack_exchange_api'), None)
producer = type('Producer', (), {'__dlpack_c_exchange_api__': capsule})()
kept = [tn.from_dlpack(producer) for _ in range(10)]; views = [a.numpy() for a in kept]
""",
}
