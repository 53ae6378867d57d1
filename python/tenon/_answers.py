# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries: the error for an attribute or option that does not exist names the call that does
the same. ``python/src/missing_attributes.cc`` does this for the attributes of NDArrays.

An attribute that a class does not have is a descriptor that raises: with a ``__getattr__``, CPython finds the
attributes that exist more slowly. ``hasattr(o, name)`` is False, and ``dir(o)`` does not list it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

Table = Mapping[str, str]  # advice: the names that it answers, between spaces; %s in it is the name


def _each(table: Table) -> Iterator[tuple[str, str]]:
    for advice, names in table.items():
        for name in names.split():
            yield name, advice.replace("%s", name)


class Absent:
    """An attribute that the objects of a class do not have. A subclass, or an object, may have one."""

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice

    def __get__(self, owner: Any, kind: type) -> NoReturn:
        what = f"type object {kind.__name__!r}" if owner is None else f"{kind.__name__!r} object"
        # Without its object, which Python would search for similar names.
        raise AttributeError(f"{what} has no attribute {self._name!r}: {self._advice}", name=self._name)


class Unsettable(Absent):
    """One whose assignment would have no effect."""

    def __set__(self, owner: Any, value: Any) -> NoReturn:
        self.__get__(owner, type(owner))


def answer(kind: type, table: Table, how: type[Absent] = Absent) -> None:
    """Makes the errors of a class for names that it does not have."""
    for name, advice in _each(table):
        setattr(kind, name, how(name, advice))
    kind.__dir__ = _dir  # type: ignore[assignment, method-assign]


def _dir(owner: Any) -> list[str]:
    def is_absent(name: str) -> bool:
        kinds = (vars(kind) for kind in type(owner).__mro__)
        return isinstance(next((kind[name] for kind in kinds if name in kind), None), Absent)

    own = getattr(owner, "__dict__", ())
    return [name for name in object.__dir__(owner) if name in own or not is_absent(name)]


def refuse(function: Callable[..., Any], options: Mapping[str, Any], table: Table | None = None) -> NoReturn:
    """Raises the TypeError for options that a function does not have."""
    name = next(iter(options))
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    advice = dict(_each(table or {})).get(name)
    if advice is None:
        advice = "its parameters are " + ", ".join(option for option in known if option != "self")
    title = function.__qualname__.removesuffix(".__init__")
    raise TypeError(f"{title}() got an unexpected keyword argument {name!r}: {advice}")


@contextmanager
def memory_advice(option: str) -> Iterator[None]:
    """MemoryErrors of the block say what to give instead."""
    try:
        yield
    except MemoryError as error:
        error.args = (f"{error}; or give {option}",)
        raise


CHANGING = "items of changing length go through a channel of objects, tn.Channel(nbytes=...)"

_OF_LENGTH = ("rows", "resize", "reshape", "length", "size", "nbytes", "attachment", "attach")


def about_length(name: object) -> str:
    """What the error for an attribute that an item of a channel does not have adds."""
    return f"; {CHANGING}" if name in _OF_LENGTH else ""


def explain_shape(name: str, shape: tuple[int, ...], value: Any, error: ValueError) -> None:
    """Adds to an error of NumPy that a field of an item has one shape."""
    if "broadcast" in str(error):
        import numpy as np

        facts = f"field {name!r} has the shape {shape}, and its value {np.shape(value)}"
        error.args = (f"{facts}: {error}; {CHANGING}",)


_END = "ch.close(); then `for item in ch` ends in the consumers when they have all items"
CHANNEL: Table = {
    "use ch.send(item)": (
        "add append emit enqueue offer produce publish push put_item send_item send_message send_obj "
        "send_object send_pyobj sendall write send_bytes send_string send_array"
    ),
    "use ch.recv()": (
        "consume dequeue get_item pop popleft read receive recv_array recv_bytes recv_item recv_obj "
        "recv_object recv_pyobj recv_string take"
    ),
    "use ch.put_nowait(item), or ch.send(item, timeout=0)": "offer_nowait send_nowait try_put try_send",
    "use ch.get_nowait(), or ch.recv(timeout=0)": "poll_nowait receive_nowait recv_nowait try_get try_recv",
    "use ch.send(item) for each, or ch.send(items) for one item": "extend put_all put_many send_many",
    "use ch.recv() for each, or `for item in ch`": "get_all get_many items iter_items recv_all recv_many",
    "use `await ch.asend(item)`": "aput async_put async_send put_async send_async",
    "use `await ch.arecv()`": "aget async_get async_recv get_async recv_async",
    "use ch.recv(timeout=seconds), ch.empty(), or ch.fileno() with select": "poll select wait",
    "use ch.qsize()": "count length ready size",
    "use ch.empty()": "is_empty",
    "use ch.full()": "is_full",
    "use ch.slots": "capacity max_size num_slots maxlen",
    "use ch.stats()": "info statistics status",
    "use ch.schema": "dtype dtypes fields keys names shape",
    "use ch.get_nowait() until it raises queue.Empty": "clear drain purge reset",
    "an item is taken by ch.recv(); with mode='latest' the newest one stays": "peek latest newest",
    f"a channel does not count finished items; use {_END}": "task_done join",
    f"use {_END}": "done end finish shutdown stop terminate cancel kill",
    "ch.send has written the item when it returns, and no thread sends it": (
        "cancel_join_thread flush join_thread"
    ),
    "the memory ends with the last process that has it open: nothing is unlinked; use ch.close()": (
        "delete destroy remove unlink"
    ),
    "ch.recv raises EOFError when all producers have closed": "closed is_closed eof",
    "use tn.Channel(..., name='name')": "create make",
    "use tn.Channel.attach('name')": "connect open subscribe register",
    "it is what was given as tn.Channel(name=...); the pickle of a channel needs no name": "name",
    "use `with ch.loan() as item`, and fill item": (
        "acquire alloc allocate borrow claim get_slot lend lease reserve"
    ),
    f"the items of a channel have one size: {CHANGING}": "resize rows attachment attach_bytes",
    "use tn.TensorPool for messages with a number of opens": "dumps loads",
}
CHANNEL_OPTIONS: Table = {
    "use slots=": "maxsize max_size capacity size depth maxlen num_slots n_slots buffer_size slot length",
    "use nbytes=, the bytes of all items together": "bytes max_bytes memory budget bytesize",
    "use largest=, the bytes of the largest item": (
        "max_item item_size item_nbytes max_nbytes largest_nbytes"
    ),
    "use schema={'x': ('f4', (3,))}": "dtype dtypes shape fields",
    CHANGING: "rows max_rows resize attachment attachment_nbytes",
    "use name=": "shared names channel",
    "use exist_ok=True": "create exists_ok exist_okay attach get_or_create",
    "use when_full=": "policy overflow on_full drop block",
    "use tn.Channel.attach(name, wait=...)": "wait",
    "use ch.recv(timeout=...) and ch.send(item, timeout=...)": "timeout",
    "the schema= of the channel says what items are; without it, give nbytes=": "type serializer",
}
SEND_OPTIONS: Table = {
    CHANGING: "rows nbytes size resize length attachment",
    "use timeout=0, or ch.put_nowait(item) and ch.get_nowait()": "block blocking nowait wait",
}

POOL: Table = {
    "use message = pool.dumps({'x': x}), and send its bytes as you like": (
        "send dump pack serialize write publish push enqueue message msg encode"
    ),
    "use tn.loads(message) in the process that gets the message": (
        "get loads load recv receive read unpack deserialize open pop decode take"
    ),
    "use pool.empty(shape, dtype)": (
        "alloc allocate array create malloc new ndarray tensor zeros ones full acquire reserve lease rent "
        "borrow get_array get_tensor empty_like zeros_like"
    ),
    "use pool.put(x)": "add append asarray copy from_numpy insert share store from_array from_tensor",
    "memory is free when its messages and arrays have ended; pool.revoke(tag) ends messages": (
        "clear close deallocate delete destroy free gc release remove shutdown terminate trim unlink "
        "unregister reset dispose"
    ),
    "a tensor pool holds memory; use tn.Feed(f, schema, workers=n) or multiprocessing.Pool": (
        "apply apply_async imap imap_unordered map map_async starmap submit task_done join run workers"
    ),
    "use pool.stats()": (
        "qsize size nbytes used usage free_bytes available count info statistics status messages capacity "
        "total memory"
    ),
    "use pool.put(x, when_full='raise')": "put_nowait try_put",
    "use tn.loads(message); the program that gets the message waits": "get_nowait try_get poll",
    "use pool.serve(path), or the pickle of a message: a pool has no name": "name attach connect path",
}
POOL_OPTIONS: Table = {
    "use budget=": "size nbytes bytes max_bytes maxsize capacity memory limit total max_nbytes",
    "use timeout= for the deadline of messages": "ttl expires deadline expiry",
    "a pool has no name: send its messages, or use pool.serve(path)": "name shared path",
    "give dtype= to pool.empty()": "dtype shape schema",
    "use pinned=True": "pin_memory pin device",
    "use inline=": "threshold min_size min_nbytes inline_nbytes",
}

_EACH_FEED: Table = {
    "use iter(feed): each iteration is an epoch, and next() of it gives a batch": (
        "get next next_batch recv get_batch get_nowait read reset restart rewind reset_epoch poll"
    ),
    "use feed.close()": "stop shutdown terminate join kill finish cancel exit destroy",
    "it is the length of axis 0 in feed.schema: feed.schema.rows": "batch_size batchsize bs rows",
}
FEED: Table = {
    **_EACH_FEED,
    "use feed.generator": "dataset source data loader",
    "use Feed(..., workers=n); feed.stats() has the state of the workers": (
        "num_workers worker n_workers workers worker_count"
    ),
    "use Feed(..., slots=n)": "slots prefetch prefetch_factor queue_size n_slots",
    "use Feed(..., shuffle=True, batches=n, rank=r, world_size=n)": (
        "shuffle sampler batch_sampler rank world_size"
    ),
    "the generator fills whole batches: assign to the fields of the batch in it": (
        "collate collate_fn map transform batch"
    ),
    "each iteration is the next epoch; batch.epoch is its number; feed.load_state_dict() sets it": (
        "epoch set_epoch epochs"
    ),
    "use Feed(..., device='cuda')": "pin_memory cuda to",
    "use feed.stats()": "statistics status info metrics qsize size length",
    "use feed.serve() in the process that has the feed, and tn.Feed.attach(name) in others": (
        "connect share subscribe open"
    ),
    "use feed.state_dict()": "state save checkpoint",
    "use Feed(..., seed=n)": "seed manual_seed",
}
ATTACHED_FEED: Table = {
    **_EACH_FEED,
    "the process that serves the feed has it": (
        "generator dataset num_workers workers stats statistics slots serve shuffle seed"
    ),
}
FEED_OPTIONS: Table = {
    "the shapes of the schema have it as axis 0, as in {'x': ('f4', (64, 3))}": (
        "batch_size batchsize bs rows"
    ),
    "use workers=": "num_workers num_worker n_workers worker nworkers threads n_threads num_threads",
    "use batches=, the number of batches of an epoch": (
        "batch n_batches num_batches length size steps total iterations"
    ),
    "give the function that fills a batch; tn.DataLoader takes a dataset": "dataset data",
    "the generator fills whole batches; tn.DataLoader has it": (
        "collate_fn sampler batch_sampler drop_last transform"
    ),
    "use slots=": "prefetch prefetch_factor queue_size buffer buffer_size n_slots maxsize",
    "use device='cuda'": "pin_memory pin_memory_device cuda",
    "use processes='spawn' or another start method": "multiprocessing_context context start_method",
    "use processes=True": "process use_processes",
    "use tn.worker, whose function runs once in each worker": "worker_init_fn init initializer",
    "workers stay from one epoch to the next": "persistent_workers",
    "use one iteration of the feed for each epoch": "epochs epoch num_epochs",
    "use shared='name'": "name",
    "use schema={'x': ('f4', (64, 3))}": "fields dtype dtypes shape shapes",
    "use seed=": "random_state rng",
}

ARENA: Table = {
    "use `with arena.use('layout') as f`": (
        "acquire activate array arrays enter get lease lock open read select switch view views write "
        "allocate alloc layout"
    ),
    "use arena.layouts": "fields names keys schema schemas shape dtype",
    "use arena.active": "current active_layout in_use state",
    "nothing is to be closed: the memory ends with its last user": (
        "close free release unlink delete destroy"
    ),
    "it is what was given as shared='name'": "name",
    "use arena.nbytes": "size itemsize length",
    "use tn.Arena.attach('name')": "connect",
}

_TYPES = "the prototype says the types, as in tn.c_function(library, 'double cos(double x)')"
FUNCTION: Table = {
    _TYPES: "argtypes restype errcheck",
}
FUNCTION_NAMES: Table = {
    _TYPES: "argtype argstypes restypes signature types return_type",
    "use f(...), or tn.push(f, ...)": "call apply run submit push",
    "use f.constants": "defaults partial kwargs",
    "use f.prototype": "declaration proto",
}

_CREATION: Table = {
    "use dtype=": "type dtypes typecode data_type d_type",
    "arrays are in C order; a.T has the axes in reverse order": "order",
    "use shared='name'": "name share shm share_memory shared_memory",
    "arrays have no gradients; a.torch().requires_grad_() is a tensor": "requires_grad",
    "use device='cuda_host'": "pin_memory pinned",
    "use exist_ok=True": "exists_ok create get_or_create",
    "use shape=": "size shapes",
    "use device=": "devices ctx context",
    "tn.array() makes a copy, and tn.asarray() none if possible": "copy",
}


def refuse_creation(function: Callable[..., Any], options: Mapping[str, Any]) -> NoReturn:
    """The same, for a function that makes arrays."""
    refuse(function, options, _CREATION)


_SHELL = "it is a command of the shell: `tenon %s`, or `python -m tenon %s`"
PACKAGE: Table = {
    "tn.Channel(nbytes='64 MiB') passes any objects between processes, with put() and get()": (
        "Queue SimpleQueue JoinableQueue LifoQueue PriorityQueue Pipe Connection Deque deque queue pipe "
        "queues Publisher Subscriber channel_of"
    ),
    "use tn.Channel(schema), or tn.Channel(nbytes=...) for any objects": "channel make_channel",
    "use tn.zeros(shape, dtype, shared='name'), and tn.attach('name') in other processes": (
        "SharedMemory shared_memory SharedArray SharedNDArray SharedNumpyArray shared_array shared_zeros "
        "shared_empty create create_shared shm Array RawArray sharedctypes ShareableList shared "
        "create_array shared_ndarray shareds Segment segment allocate alloc malloc"
    ),
    "use tn.array(x, shared=True), or shared='name'": (
        "share share_memory share_array to_shared Share shares share_memory_ publish put"
    ),
    "use tn.zeros((), dtype, shared=True), and `with a.write() as v` for each change": "Value RawValue",
    "`with a.write():` excludes others, in other processes too if the array is shared": (
        "Lock RLock Semaphore BoundedSemaphore Condition Mutex lock mutex RWLock"
    ),
    "use tn.Channel(nbytes='1 MiB'): a recv() waits for a send()": "Event Barrier event signal",
    "use tn.zeros(..., shared=True) and tn.Channel(nbytes=...), which need no process of a server": (
        "Manager SharedMemoryManager BaseManager SyncManager managers Namespace"
    ),
    "use tn.Feed(f, schema, workers=n) or tn.push(f, a); tn.TensorPool has memory for messages": (
        "Pool ThreadPool ProcessPoolExecutor ThreadPoolExecutor Executor ProcessPool"
    ),
    "use multiprocessing.%s, which takes shared arrays and channels as arguments": (
        "Process get_context set_start_method current_process cpu_count parent_process spawn"
    ),
    "memory ends with its last process; `tenon gc` in a shell collects what dead ones held": (
        "unlink cleanup destroy remove release delete close shutdown free terminate"
    ),
    "use tn.attach(name), tn.Channel.attach(name), tn.Arena.attach(name) or tn.Feed.attach(name)": (
        "connect attach_channel attach_feed attach_array find lookup exists"
    ),
    _SHELL: "ls doctor config",
    "it is a command of the shell: `tenon ls`": "list list_shared info status stats names show",
    "it is a command of the shell: `tenon gc`": "gc collect",
    "use tn.array(data), or tn.asarray(x) without a copy; tn.NDArray is their class": (
        "tensor Tensor as_tensor asanyarray ndarray from_array from_list from_data nparray FloatTensor "
        "DoubleTensor LongTensor to_array as_array asarrays matrix"
    ),
    "use a.numpy(), or np.asarray(a)": "asnumpy to_numpy as_numpy numpy tonumpy",
    "use a.torch()": "to_torch as_torch torch totorch",
    "use a.jax()": "to_jax as_jax jax",
    "use tn.from_dlpack(x)": (
        "from_torch from_jax from_tensor from_cupy from_tensorflow from_array_interface fromdlpack"
    ),
    "use x = a.torch(), or a.to_dlpack_for_write()": "to_dlpack dlpack",
    "use tn.Feed(f, schema), whose function fills batches, or tn.DataLoader(dataset)": (
        "Loader loader dataloader data_loader DataFeed feeder"
    ),
    "use torch.utils.data.%s: tn.DataLoader(dataset) takes it": (
        "Dataset IterableDataset TensorDataset ConcatDataset Subset Sampler BatchSampler "
        "DistributedSampler RandomSampler random_split default_collate"
    ),
    "use a dict of arrays: tn.TensorPool(...).dumps({'x': x})": "TensorDict dict Message message",
    "use tn.TensorPool('1 GiB')": "pool tensor_pool MemoryPool Arenas Buffer BufferPool",
    "use message = pool.dumps(x) of a tn.TensorPool, and tn.loads(message)": "dumps dump",
    "use tn.set_engine(...) and tn.set_engine_limits(...)": (
        "set_num_threads set_num_workers engine threads set_threads"
    ),
    "use tn.array(np.random.default_rng().random(shape))": (
        "random rand randn randint manual_seed seed normal uniform"
    ),
    "use device='cuda' of tn.zeros() and others": "cuda device gpu",
    "use tn.array(np.%s(...))": (
        "linspace logspace geomspace eye identity diag tri tril triu meshgrid fromiter fromfunction "
        "fromfile fromstring loadtxt genfromtxt indices mgrid ogrid"
    ),
    "use tn.from_buffer(data, dtype)": "frombuffer from_bytes frombytes from_memory buffer",
    "use tn.from_pointer(address, shape, dtype)": "as_ctypes from_address from_ptr frompointer ctypeslib",
    "use np.%s(...), which takes these arrays": (
        "stack vstack hstack dstack column_stack dot matmul sum mean min max where sort argsort argmax "
        "argmin unique split array_split reshape transpose allclose array_equal isclose exp log sqrt abs "
        "maximum minimum add subtract multiply divide einsum tensordot linalg clip round any all prod std "
        "var median cumsum isnan isfinite repeat tile roll flip squeeze expand_dims broadcast_to ravel "
        "copyto nonzero take pad sin cos tanh power swapaxes moveaxis ascontiguousarray asfortranarray "
        "put_along_axis histogram bincount interp shape size ndim iinfo finfo pi nan inf append insert"
    ),
    "use tn.concatenate([a, b])": "cat concat",
    "use tn.float32, or dtype='float32'": "float single float_",
    "use tn.float64, or dtype='float64'": "double",
    "use tn.int64, or dtype='int64'": "int long int_ longlong",
    "use tn.float16, or dtype='float16'": "half",
    "use None": "newaxis",
    "use tn.load(file, mmap_mode='r+'), or tn.from_buffer(mmap, dtype)": "memmap open_memmap mmap",
    "use tn.save(file, a)": "savez savez_compressed write_file savetxt",
    "use tn.c_function('./libx.so', 'int f(float *x, size_t n)')": (
        "CDLL cdll LoadLibrary load_library dlopen PyDLL CFUNCTYPE c_func cfunc ffi cffi POINTER c_double "
        "c_float c_int c_int64 c_void_p c_char_p byref pointer lib library function func c_library wrap "
        "Function cfunctions"
    ),
    "use tn.push(f, a), which returns a tn.Op": (
        "op ops submit run apply map launch enqueue async_ task Task spawn_op call delayed remote"
    ),
    "use tn.waitall()": "wait sync synchronize barrier join",
    "use `with a.read():`, `with a.write():` or a.lease(mode)": "lease leases acquire",
    "use tn.zeros(n, shared='name'), tn.Channel, tn.TensorPool or tn.Arena": "shm_open",
    "use logging.getLogger('tenon')": "logger set_log_level set_verbosity",
    "use `except tn.TenonError`": "Error Exception",
    "use tn.borrowers(x)": "borrower holders refcount",
    "use tn.__version__": "version VERSION",
}


def about_package(name: str, public: list[str]) -> str | None:
    """What the error for an attribute that the package does not have adds; None if it is not known."""
    advice = dict(_each(PACKAGE)).get(name)
    if advice is None:
        like = [other for other in public if _plain(other) == _plain(name)]
        like.sort(key=lambda other: other.islower() != name.islower())
        advice = f"use tn.{like[0]}" if like else None
    return advice


def _plain(name: str) -> str:
    return name.lower().replace("_", "").removesuffix("s")
