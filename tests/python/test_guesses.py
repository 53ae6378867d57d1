# SPDX-License-Identifier: Apache-2.0
"""Lines that users of NumPy, PyTorch, queues, shared memory and ctypes write: each works, or its error names
the call that does the same."""

import ctypes
import inspect
import queue
import re
import subprocess
import sys

import numpy as np
import pytest

import tenon as tn
from tenon import _answers
from tenon._data.attached import AttachedFeed

# What the lines use. Each is made anew for a line.
MADE = {
    "tn": lambda: tn,
    "a": lambda: tn.zeros((3, 4)),
    "ch": lambda: tn.Channel(nbytes=1 << 16),
    "cs": lambda: tn.Channel({"x": ("f8", (3,))}),
    "pool": lambda: tn.TensorPool(1 << 20),
    "feed": lambda: tn.Feed(fill, {"x": ("f4", (3,))}, batches=2),
    "arena": lambda: tn.Arena({"one": {"A": ("f4", (3,))}}),
    "f": lambda: tn.c_function(None, "double cos(double x)"),
}


def fill(batch):
    batch.x = 1


# The object, the line, and words of its error.
ERRORS = [
    ("tn", "tn.linspace(0, 1, 5)", "np.linspace(...)"),
    ("tn", "tn.eye(3)", "np.eye(...)"),
    ("tn", "tn.fromiter(range(4), int)", "np.fromiter(...)"),
    ("tn", "tn.stack([np.ones(2)])", "np.stack(...)"),
    ("tn", "tn.random.rand(3)", "np.random.default_rng()"),
    ("tn", "tn.frombuffer(b'abcd', 'u1')", "tn.from_buffer("),
    ("tn", "tn.memmap('f', 'f4')", "mmap_mode="),
    ("tn", "tn.shared_memory.SharedMemory(create=True, size=64)", "tn.attach("),
    ("tn", "tn.SharedMemory(name='x', create=True, size=64)", "shared='name'"),
    ("tn", "tn.SharedArray((3, 4))", "shared='name'"),
    ("tn", "tn.shared((3, 4), 'float32')", "shared='name'"),
    ("tn", "tn.shared_array((3, 4))", "shared='name'"),
    ("tn", "tn.create('n', shape=(3, 4))", "shared='name'"),
    ("tn", "tn.Array('d', 10)", "shared='name'"),
    ("tn", "tn.Value('i', 0)", "a.write()"),
    ("tn", "tn.share(np.ones(3))", "tn.array(x, shared=True)"),
    ("tn", "tn.share_memory(np.ones(3))", "tn.array(x, shared=True)"),
    ("tn", "tn.open('name')", "tn.attach(name)"),
    ("tn", "tn.unlink('name')", "tenon gc"),
    ("tn", "tn.cleanup()", "tenon gc"),
    ("tn", "tn.connect('name')", "tn.attach(name)"),
    ("tn", "tn.Queue(maxsize=10)", "tn.Channel(nbytes="),
    ("tn", "tn.SimpleQueue()", "tn.Channel(nbytes="),
    ("tn", "tn.JoinableQueue()", "tn.Channel(nbytes="),
    ("tn", "tn.Pipe()", "tn.Channel(nbytes="),
    ("tn", "tn.channel()", "tn.Channel(schema)"),
    ("tn", "tn.channels()", "tn.Channel"),
    ("tn", "tn.Lock()", "a.write()"),
    ("tn", "tn.RLock()", "a.write()"),
    ("tn", "tn.Semaphore(2)", "a.write()"),
    ("tn", "tn.Condition()", "a.write()"),
    ("tn", "tn.Event()", "recv()"),
    ("tn", "tn.Barrier(2)", "recv()"),
    ("tn", "tn.Manager().dict()", "shared=True"),
    ("tn", "tn.Pool(4)", "tn.Feed("),
    ("tn", "tn.Process(target=print)", "multiprocessing.Process"),
    ("tn", "tn.get_context('spawn')", "multiprocessing.get_context"),
    ("tn", "tn.set_start_method('spawn')", "multiprocessing.set_start_method"),
    ("tn", "tn.set_num_threads(2)", "tn.set_engine"),
    ("tn", "tn.tensor([1, 2])", "tn.array(data)"),
    ("tn", "tn.Tensor([1, 2])", "tn.array(data)"),
    ("tn", "tn.as_tensor([1])", "tn.array(data)"),
    ("tn", "tn.ndarray((3,))", "tn.NDArray"),
    ("tn", "tn.NDarray((3,))", "tn.NDArray"),
    ("tn", "tn.NDArray((3,))", "tn.zeros(shape)"),
    ("tn", "tn.NDArray.__new__(tn.NDArray)", "tn.zeros(shape)"),
    ("tn", "object.__new__(tn.NDArray)", "tenon.NDArray.__new__()"),
    ("tn", "tn.asnumpy(1)", "a.numpy()"),
    ("tn", "tn.to_numpy(1)", "a.numpy()"),
    ("tn", "tn.to_torch(1)", "a.torch()"),
    ("tn", "tn.Dataset", "torch.utils.data.Dataset"),
    ("tn", "tn.IterableDataset", "torch.utils.data.IterableDataset"),
    ("tn", "tn.TensorDict({})", "dumps({'x': x})"),
    ("tn", "tn.Tensorpool(1)", "use tn.TensorPool"),
    ("tn", "tn.Feeds(1)", "use tn.Feed"),
    ("tn", "tn.feed(1)", "use tn.Feed"),
    ("tn", "tn.arena({})", "use tn.Arena"),
    ("tn", "tn.CDLL('libm.so.6')", "tn.c_function("),
    ("tn", "tn.cdll.LoadLibrary('libm.so.6')", "tn.c_function("),
    ("tn", "tn.load_library('libm.so.6')", "tn.c_function("),
    ("tn", "tn.dlopen('libm.so.6')", "tn.c_function("),
    ("tn", "tn.cfunction('libm.so.6', 'cos')", "use tn.c_function"),
    ("tn", "tn.c_func", "tn.c_function("),
    ("tn", "tn.ffi", "tn.c_function("),
    ("tn", "tn.POINTER", "tn.c_function("),
    ("tn", "tn.CFUNCTYPE", "tn.c_function("),
    ("tn", "tn.c_double", "tn.c_function("),
    ("tn", "tn.c_function(None, 'cos')", '"double cos(double x)"'),
    ("tn", "tn.op", "tn.push(f, a)"),
    ("tn", "tn.ops", "tn.push(f, a)"),
    ("tn", "tn.lease(1)", "a.lease(mode)"),
    ("tn", "tn.leases", "a.lease(mode)"),
    ("tn", "tn.float", "tn.float32"),
    ("tn", "tn.ls()", "`tenon ls`"),
    ("tn", "tn.doctor()", "`tenon doctor`"),
    ("tn", "tn.config", "`tenon config`"),
    ("tn", "tn.info()", "`tenon ls`"),
    ("tn", "tn.list()", "`tenon ls`"),
    ("tn", "tn.zeros(3, type='float32')", "use dtype="),
    ("tn", "tn.empty(3, dtypes='float32')", "use dtype="),
    ("tn", "tn.ones(3, requires_grad=True)", "a.torch()"),
    ("tn", "tn.full(3, 1, order='F')", "C order"),
    ("tn", "tn.zeros(3, name='n')", "use shared='name'"),
    ("tn", "tn.array([1], copy=False)", "tn.asarray()"),
    ("tn", "tn.asarray([1], share=True)", "use shared='name'"),
    ("tn", "tn.arange(3, foo=1)", "its parameters are start, stop, step, dtype, device, shared"),
    ("tn", "tn.zeros_like([1.0], names='n')", "its parameters are prototype, dtype, device, shared"),
    ("tn", "tn.Schema(x='float32', y='int64')", "tn.schema(x="),
    ("tn", "tn.Schema([('x', 'float32')])", "tn.schema(x="),
    ("tn", "tn.Schema(5)", "tn.schema(x="),
    ("tn", "tn.Schema()", "tn.schema(x="),
    ("tn", "tn.Schema({'x': ('f4', (3,))}, kept=1)", "tn.schema(x="),
    ("tn", "tn.Channel(maxsize=8)", "use slots="),
    ("tn", "tn.Channel(capacity=8)", "use slots="),
    ("tn", "tn.Channel('name', size=10)", "use slots="),
    ("tn", "tn.Channel('name', slots=10)", "name='name'"),
    ("tn", "tn.Channel(10)", "slots=10"),
    ("tn", "tn.Channel({'x': ('f4', (3,))}, rows=4)", "tn.Channel(nbytes="),
    ("tn", "tn.Channel(nbytes=4096, slotz=1)", "its parameters are schema, slots, name"),
    ("tn", "tn.Channel.create('n')", "name='name'"),
    ("tn", "tn.Channel.connect('n')", "tn.Channel.attach('name')"),
    ("tn", "tn.Channel.open('n')", "tn.Channel.attach('name')"),
    ("tn", "tn.TensorPool(1 << 20, name='n')", "pool.serve(path)"),
    ("tn", "tn.TensorPool(1 << 20, size=1)", "use budget="),
    ("tn", "tn.Feed([1, 2, 3], batch_size=2)", "('f4', (64, 3))"),
    ("tn", "tn.Feed([1, 2], num_workers=2)", "use workers="),
    ("tn", "tn.Feed([1, 2], num_worker=2)", "use workers="),
    ("tn", "tn.Feed([1, 2], batch=2)", "use batches="),
    ("tn", "tn.Feed([1, 2], collate_fn=list)", "tn.DataLoader"),
    ("tn", "tn.Feed([1, 2], pin_memory=True)", "device='cuda'"),
    ("tn", "tn.Feed([1, 2])", "tn.DataLoader takes a dataset"),
    ("a", "a.clone()", "use a.copy()"),
    ("a", "a.contiguous()", "use a.copy()"),
    ("a", "a.cpu()", "a.to('cpu')"),
    ("a", "a.cuda()", "a.to('cuda')"),
    ("a", "a.pin_memory()", "a.to('cuda_host')"),
    ("a", "a.float()", "a.astype('float32')"),
    ("a", "a.half()", "a.astype('float16')"),
    ("a", "a.long()", "a.astype('int64')"),
    ("a", "a.to('float64')", "a.astype('float64')"),
    ("a", "a.share_memory_()", "tn.asarray(a, shared=True)"),
    ("a", "a.is_shared()", "a.shared"),
    ("a", "a.is_share_memory()", "a.shared"),
    ("a", "a.requires_grad", "a.torch()"),
    ("a", "a.detach()", "a.torch()"),
    ("a", "a.to_torch()", "a.torch()"),
    ("a", "a.to_numpy()", "a.numpy()"),
    ("a", "a.as_numpy()", "a.numpy()"),
    ("a", "a.values", "a.numpy()"),
    ("a", "a.unsqueeze(0)", "a[None]"),
    ("a", "a.permute(1, 0)", "a.transpose(...)"),
    ("a", "a.numel()", "a.size"),
    ("a", "a.dim()", "a.ndim"),
    ("a", "a.length", "len(a)"),
    ("a", "a.zero_()", "a.fill(0)"),
    ("a", "a.fill_(2)", "a.fill(value)"),
    ("a", "a.copy_(np.ones((3, 4)))", "a[...] = value"),
    ("a", "a.flags.writeable", "a.writable"),
    ("a", "a.setflags(write=False)", "a.readonly()"),
    ("a", "a.data", "memoryview(a)"),
    ("a", "a.buf", "memoryview(a)"),
    ("a", "a.owner", "tn.borrowers()"),
    ("a", "a.resize((4, 4))", "np.resize(a, ...)"),
    ("a", "a.append(1)", "np.append(a, ...)"),
    ("a", "a.push(print)", "tn.push(f, a)"),
    ("a", "a.lock()", "with a.write()"),
    ("a", "a.get_lock()", "with a.write()"),
    ("a", "a.acquire()", "with a.write()"),
    ("a", "a.release()", "l.release()"),
    ("a", "a.readlock()", "with a.read()"),
    ("a", "a.name", "shared='name'"),
    ("a", "a.close()", "del a"),
    ("a", "a.unlink()", "del a"),
    ("a", "a.destroy()", "del a"),
    ("a", "a.flush()", "with a.write()"),
    ("a", "a.refcount", "a.leases()"),
    ("a", "a.write(block=False)", "its arguments are overwrite, on_owner_died, timeout"),
    ("a", "exec('a.shape = (12,)')", "a.reshape(shape)"),
    ("a", "exec('a.dtype = \"i4\"')", "a.view(dtype)"),
    ("ch", "ch.task_done()", "ch.close()"),
    ("ch", "ch.join()", "ch.close()"),
    ("ch", "ch.poll(0.1)", "ch.recv(timeout=seconds)"),
    ("ch", "ch.send_bytes(b'abc')", "ch.send(item)"),
    ("ch", "ch.recv_bytes()", "ch.recv()"),
    ("ch", "ch.join_thread()", "no thread sends it"),
    ("ch", "ch.cancel_join_thread()", "no thread sends it"),
    ("ch", "ch.flush()", "no thread sends it"),
    ("ch", "ch.shutdown()", "ch.close()"),
    ("ch", "ch.stop()", "ch.close()"),
    ("ch", "ch.terminate()", "ch.close()"),
    ("ch", "ch.name", "tn.Channel(name=...)"),
    ("ch", "ch.unlink()", "ch.close()"),
    ("ch", "ch.closed", "EOFError"),
    ("ch", "ch.clear()", "ch.get_nowait()"),
    ("ch", "ch.drain()", "ch.get_nowait()"),
    ("ch", "ch.reset()", "ch.get_nowait()"),
    ("ch", "ch.peek()", "mode='latest'"),
    ("ch", "ch.put_many([1, 2])", "ch.send(items)"),
    ("ch", "ch.is_empty()", "ch.empty()"),
    ("ch", "ch.size", "ch.qsize()"),
    ("ch", "ch.count", "ch.qsize()"),
    ("ch", "ch.capacity", "ch.slots"),
    ("ch", "ch.push(1)", "ch.send(item)"),
    ("ch", "ch.append(1)", "ch.send(item)"),
    ("ch", "ch.write(1)", "ch.send(item)"),
    ("ch", "ch.sendall(b'x')", "ch.send(item)"),
    ("ch", "ch.send_obj(1)", "ch.send(item)"),
    ("ch", "ch.pop()", "ch.recv()"),
    ("ch", "ch.receive()", "ch.recv()"),
    ("ch", "ch.read()", "ch.recv()"),
    ("ch", "ch.recv_nowait()", "ch.get_nowait()"),
    ("ch", "ch.try_recv()", "ch.get_nowait()"),
    ("ch", "ch.send_nowait(1)", "ch.put_nowait(item)"),
    ("ch", "ch.try_send(1)", "ch.put_nowait(item)"),
    ("ch", "ch.wait()", "ch.recv(timeout=seconds)"),
    ("ch", "ch.subscribe()", "tn.Channel.attach('name')"),
    ("ch", "ch.put(b'x' * (1 << 20))", "nbytes="),
    ("ch", "ch.put(1, wait=False)", "timeout=0"),
    ("ch", "ch.get(wait=False)", "ch.get_nowait()"),
    ("cs", "cs.keys()", "ch.schema"),
    ("a", "a.dtypes", "use a.dtype"),
    ("ch", "ch.resize(4)", "ch.send(item)"),
    ("cs", "cs.task_done()", "ch.close()"),
    ("cs", "cs.put({'x': 1}, x=np.ones(3))", "ch.put({'x': ...})"),
    ("cs", "cs.send({}, x=np.ones(3))", "ch.send({'x': ...})"),
    ("cs", "cs.put(np.ones(3))", "tn.Channel(nbytes=...)"),
    ("cs", "cs.send(5)", "tn.Channel(nbytes=...)"),
    ("cs", "cs.put({'x': np.ones(2)})", "tn.Channel(nbytes=...)"),
    ("cs", "cs.send({'x': np.ones((3, 3))})", "tn.Channel(nbytes=...)"),
    ("cs", "cs.send({'x': np.ones(2)}, rows=2)", "tn.Channel(nbytes=...)"),
    ("cs", "cs.resize(10)", "tn.Channel(nbytes=...)"),
    ("cs", "cs.rows", "tn.Channel(nbytes=...)"),
    ("cs", "cs.loan().resize(2)", "tn.Channel(nbytes=...)"),
    ("cs", "cs.loan().rows", "tn.Channel(nbytes=...)"),
    ("cs", "cs.loan().attachment", "tn.Channel(nbytes=...)"),
    ("cs", "setattr(cs.loan(), 'rows', 2)", "tn.Channel(nbytes=...)"),
    ("cs", "cs.loan(rows=2)", "tn.Channel(nbytes=...)"),
    ("cs", "cs.write()", "ch.send(item)"),
    ("cs", "cs.fields", "ch.schema"),
    ("cs", "cs.dtype", "ch.schema"),
    ("cs", "cs.reserve()", "ch.loan()"),
    ("pool", "pool.get()", "tn.loads(message)"),
    ("pool", "pool.recv()", "tn.loads(message)"),
    ("pool", "pool.get_nowait()", "tn.loads(message)"),
    ("pool", "pool.put({'x': np.ones(3)})", "pool.dumps("),
    ("pool", "pool.send({'x': np.ones(3)})", "pool.dumps("),
    ("pool", "pool.alloc((3,))", "pool.empty(shape, dtype)"),
    ("pool", "pool.zeros((3,))", "pool.empty(shape, dtype)"),
    ("pool", "pool.malloc(10)", "pool.empty(shape, dtype)"),
    ("pool", "pool.new(3)", "pool.empty(shape, dtype)"),
    ("pool", "pool.put_nowait(np.ones(3))", "when_full='raise'"),
    ("pool", "pool.map(abs, [1])", "tn.Feed("),
    ("pool", "pool.apply_async(abs, (1,))", "tn.Feed("),
    ("pool", "pool.join()", "tn.Feed("),
    ("pool", "pool.task_done()", "tn.Feed("),
    ("pool", "pool.close()", "pool.revoke(tag)"),
    ("pool", "pool.terminate()", "pool.revoke(tag)"),
    ("pool", "pool.free()", "pool.revoke(tag)"),
    ("pool", "pool.unlink()", "pool.revoke(tag)"),
    ("pool", "pool.qsize()", "pool.stats()"),
    ("pool", "pool.name", "pool.serve(path)"),
    ("feed", "feed.batch_size", "feed.schema.rows"),
    ("feed", "feed.num_workers", "workers=n"),
    ("feed", "feed.worker", "workers=n"),
    ("feed", "feed.dataset", "feed.generator"),
    ("feed", "feed.set_epoch(1)", "batch.epoch"),
    ("feed", "feed.sampler", "shuffle=True"),
    ("feed", "feed.shuffle", "shuffle=True"),
    ("feed", "feed.collate_fn", "assign to the fields"),
    ("feed", "feed.prefetch_factor", "slots=n"),
    ("feed", "feed.next()", "iter(feed)"),
    ("feed", "feed.get()", "iter(feed)"),
    ("feed", "feed.reset()", "iter(feed)"),
    ("feed", "feed.stop()", "feed.close()"),
    ("feed", "feed.shutdown()", "feed.close()"),
    ("feed", "feed.join()", "feed.close()"),
    ("arena", "arena.get('one')", "arena.use('layout')"),
    ("arena", "arena.lock()", "arena.use('layout')"),
    ("arena", "arena.names", "arena.layouts"),
    ("arena", "arena.close()", "its last user"),
    ("arena", "arena.unlink()", "its last user"),
    ("f", "f.argtypes", "the prototype says the types"),
    ("f", "setattr(f, 'argtypes', [1])", "the prototype says the types"),
    ("f", "setattr(f, 'restype', None)", "the prototype says the types"),
    ("f", "f.argtype", "the prototype says the types"),
    ("f", "f.restypes", "the prototype says the types"),
    ("f", "f.call(1.0)", "f(...)"),
]


@pytest.mark.parametrize(("name", "line", "words"), ERRORS, ids=[line for _, line, _ in ERRORS])
def test_the_error_of_a_guess_names_the_call(name, line, words):
    made = MADE[name]()
    try:
        with pytest.raises((AttributeError, TypeError, ValueError)) as caught:
            eval(line, {"np": np, "tn": tn, "ctypes": ctypes, name: made})
        assert words in str(caught.value)
    finally:
        caught = None
        if name == "feed":
            made.close()


# The object, the line, and its value.
RESULTS = [
    ("ch", "[ch.put(1), ch.get()]", [None, 1]),
    (
        "ch",
        "[ch.put(1, block=False), ch.put(2, timeout=1), ch.put(3, True, 0.5), ch.qsize()]",
        [None] * 3 + [3],
    ),
    ("ch", "[ch.put_nowait(1), ch.get_nowait(), ch.empty(), ch.full()]", [None, 1, True, False]),
    ("ch", "[ch.send(b'x'), ch.recv()]", [None, b"x"]),
    ("ch", "ch.maxsize", 256),
    ("cs", "[cs.put({'x': np.ones(3)}), cs.get()['x'].tolist()]", [None, [1.0] * 3]),
    ("cs", "[cs.put_nowait({'x': 2}), cs.qsize(), cs.empty(), cs.full()]", [None, 1, False, False]),
    ("f", "f.__name__", "cos"),
    ("f", "f(0.0)", 1.0),
    ("feed", "feed.schema.rows", 3),
]


@pytest.mark.parametrize(("name", "line", "value"), RESULTS, ids=[line for _, line, _ in RESULTS])
def test_a_guess_works(name, line, value):
    made = MADE[name]()
    try:
        assert eval(line, {"np": np, name: made}) == value
    finally:
        if name == "feed":
            made.close()


def test_an_empty_channel_raises_as_a_queue():
    for line in ("ch.get_nowait()", "ch.get(False)", "ch.get(block=False)", "ch.get(timeout=0.01)"):
        with pytest.raises(queue.Empty):
            eval(line, {"ch": MADE["ch"]()})


# ------------------------------------------------------------------------------------ the tables

KINDS = {
    "ch": (tn.Channel, _answers.CHANNEL),
    "cs": (tn.Channel, _answers.CHANNEL),
    "pool": (tn.TensorPool, _answers.POOL),
    "feed": (tn.Feed, _answers.FEED),
    "arena": (tn.Arena, _answers.ARENA),
    "f": (tn.CFunction, {**_answers.FUNCTION, **_answers.FUNCTION_NAMES}),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_an_object_does_not_have_is_not_shown(name):
    kind, table = KINDS[name]
    made = MADE[name]()
    try:
        names = " ".join(table.values()).split()
        assert len(names) == len(set(names))
        for absent in names:
            assert not hasattr(made, absent) and not hasattr(kind, absent), absent
            with pytest.raises(AttributeError) as caught:
                getattr(made, absent)
            assert caught.value.name == absent and "has no attribute" in str(caught.value)
        assert not set(names) & set(dir(made))
        assert {"__class__", "__init__"} < set(dir(made))
    finally:
        if name == "feed":
            made.close()


def test_what_the_package_does_not_have_is_not_shown():
    names = " ".join(_answers.PACKAGE.values()).split()
    assert len(names) == len(set(names))
    for absent in names:
        assert not hasattr(tn, absent), absent
    assert not set(names) & set(dir(tn))
    with pytest.raises(AttributeError, match=r"^module 'tenon' has no attribute 'quite_another'$"):
        _ = tn.quite_another


@pytest.mark.parametrize(
    ("function", "table"),
    [
        (tn.Channel.__init__, _answers.CHANNEL_OPTIONS),
        (tn.Channel.send, _answers.SEND_OPTIONS),
        (tn.TensorPool.__init__, _answers.POOL_OPTIONS),
        (tn.Feed.__init__, _answers.FEED_OPTIONS),
        (tn.zeros, _answers._CREATION),
    ],
)
def test_options_that_are_answered_do_not_exist(function, table):
    options = " ".join(table.values()).split()
    assert len(options) == len(set(options))
    assert not set(options) & set(inspect.signature(function).parameters)


def test_the_advice_names_what_exists():
    """The calls of the package that advice names."""
    tables = [table for table in vars(_answers).values() if isinstance(table, dict)]
    for advice in {advice for table in tables for advice in table}:
        for name in re.findall(r"\btn\.(\w+)", advice):
            assert hasattr(tn, name), advice
        for kind, made in (("ch", tn.Channel), ("pool", tn.TensorPool), ("feed", tn.Feed)):
            for name in re.findall(rf"\b{kind}\.(\w+)", advice):
                assert hasattr(made, name) or name in ("generator", "schema", "slots"), advice
    assert set(MADE) - {"tn", "a"} == set(KINDS)


def test_a_subclass_and_an_object_may_have_such_an_attribute():
    class Named(tn.Channel):
        def join(self):
            return "joined"

    channel = Named({"x": ("f4", (3,))})
    channel.name = "front"
    assert (channel.name, channel.join()) == ("front", "joined")
    assert {"name", "join"} < set(dir(channel)) and "closed" not in dir(channel)


def test_the_error_of_a_guess_does_not_keep_the_array():
    a = tn.zeros(3)
    before = sys.getrefcount(a)
    try:
        a.clone()
    except AttributeError as error:
        kept = error
    assert sys.getrefcount(a) == before and kept.name == "clone"


# ---------------------------------------------------------------------------------------- memory


WITHOUT_ADDRESSES = {
    "tn.Channel(nbytes='1 GiB')": "a smaller largest= or slots=",
    "tn.Channel({'x': ('f4', (1 << 30,))})": "a smaller slots=",
    "tn.TensorPool('64 GiB')": "a smaller budget=",
}


def test_a_lack_of_addresses_names_the_option():
    program = f"""
import resource, tenon as tn
resource.setrlimit(resource.RLIMIT_AS, (8 << 30,) * 2)
for line, words in {WITHOUT_ADDRESSES!r}.items():
    try:
        eval(line)
    except MemoryError as error:
        assert "no addresses" in str(error) and words in str(error), error
    else:
        raise SystemExit(line)
tn.Channel(nbytes="1 GiB", largest="1 MiB").close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_what_never_fits_names_the_option():
    pool = tn.TensorPool("1 MiB")
    with pytest.raises(ValueError, match="a larger budget="):
        pool.put(np.ones(1 << 20))
    with pytest.raises(MemoryError, match="a larger budget="):
        pool.dumps(np.ones(1 << 20))
    with pytest.raises(ValueError, match=r"a larger nbytes= \(and largest=\)"):
        tn.Channel(nbytes="1 MiB").send(np.ones(1 << 20))


def test_an_attached_feed_says_where_the_rest_is():
    for name, words in (("stats", "the process that serves"), ("next", "iter(feed)"), ("stop", "close()")):
        with pytest.raises(AttributeError, match=re.escape(words)):
            getattr(AttachedFeed, name)
    for name in " ".join(_answers.ATTACHED_FEED.values()).split():
        assert not hasattr(AttachedFeed, name), name
