// SPDX-License-Identifier: Apache-2.0
//
// The native part of tenon.TensorPool, tenon.loads and tenon.open.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "callbacks.h"
#include "dims.h"
#include "dtype.h"
#include "message_bytes.h"
#include "message_format.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "owners.h"
#include "sites.h"
#include "tenon/pool.h"
#include "values.h"

namespace tenon::python {
namespace {

// What a key of the C library begins with.
SipKey key_in(const std::array<unsigned char, 32>& bytes) noexcept {
  SipKey key;
  std::memcpy(key.data(), bytes.data(), sizeof key);
  return key;
}

// "wait", "raise" or "inline".
nb::handle checked_policy(nb::handle when_full) {
  for (const char* name : {"wait", "raise", "inline"}) {
    if (PyUnicode_Check(when_full.ptr()) != 0 && PyUnicode_CompareWithASCIIString(when_full.ptr(), name) == 0)
      return when_full;
  }
  raise(PyExc_ValueError, "when_full is %R: it must be one of wait, raise, inline", when_full.ptr());
}

// Which processes may open a message, and how long.
class MessageLimits {
 public:
  // Null: not given. The timeout is not given if it is Ellipsis, either.
  MessageLimits(nb::handle opens, nb::handle tag, nb::handle timeout, nb::handle receivers) {
    constexpr int64_t kMostOpens = 60'000;
    if (opens.is_valid())
      opens_ = opens.is_none() ? 0 : static_cast<uint32_t>(integer_from(opens, "opens", 1, kMostOpens));
    if (tag.is_valid() && !tag.is_none()) tag_ = tag_from(tag);
    if (timeout.is_valid() && timeout.ptr() != Py_Ellipsis)
      timeout_ns_ = timeout.is_none() ? INT64_MAX : nanoseconds_from(timeout, "timeout", ", or None");
    if (receivers.is_valid() && !receivers.is_none()) take_receivers(receivers);
  }

  static std::string tag_from(nb::handle tag) {
    if (PyUnicode_Check(tag.ptr()) == 0) return std::to_string(integer_from(tag, "tag"));
    std::string text = text_from(tag, "tag");
    if (text.empty()) raise(PyExc_ValueError, "tag is '': it has at least one character; None gives none");
    return text;
  }

  // < 0: that of the pool.
  int64_t timeout_ns() const noexcept { return timeout_ns_; }

  // Valid as long as this object.
  tenon_message_options options() const noexcept {
    auto options = detail::sized<tenon_message_options>();
    options.opens = opens_;
    options.timeout_ns = timeout_ns_;
    options.n_receivers = static_cast<uint32_t>(receivers_.size());
    options.receivers = receivers_.empty() ? nullptr : receivers_.data();
    options.tag = tag_.empty() ? nullptr : tag_.c_str();
    return options;
  }

 private:
  void add_receiver(nb::handle pid) {
    receivers_.push_back(static_cast<uint32_t>(integer_from(pid, "receivers", 1, INT32_MAX)));
  }
  void take_receivers(nb::handle receivers) {
    const nb::object iterator = nb::steal(PyObject_GetIter(receivers.ptr()));
    if (!iterator.is_valid()) {
      PyErr_Clear();
      return add_receiver(receivers);
    }
    while (PyObject* const next = PyIter_Next(iterator.ptr())) add_receiver(nb::steal(next));
    if (PyErr_Occurred() != nullptr) nb::raise_python_error();
    if (receivers_.empty()) raise(PyExc_ValueError, "receivers is empty: no process could open the message");
  }

  uint32_t opens_ = 1;  // 0: no limit
  int64_t timeout_ns_ = -1;
  std::vector<uint32_t> receivers_;
  std::string tag_;  // "": none
};

nb::object seconds_from(int64_t ns) {
  if (ns < 0 || ns == INT64_MAX) return nb::none();
  return nb::float_(static_cast<double>(ns) / 1e9);
}

// Notes a message in a child of multiprocessing, which passes it to its parent at its end.
void note(nb::handle message, int64_t timeout_ns) {
  static Name process("multiprocessing.process"), parent_process("parent_process");
  PyObject* const module = PyDict_GetItemWithError(PyImport_GetModuleDict(), process.get());
  if (module == nullptr || module == Py_None) return;
  const nb::object parent = owned(PyObject_CallMethodObjArgs(module, parent_process.get(), nullptr));
  if (!parent.is_none()) callback(Callback::kNoteMessage)(message, seconds_from(timeout_ns));
}

// The base class of tenon.TensorPool: one pool of this process. A forked child gets one of its own.
class NativePool {
 public:
  NativePool(uint64_t budget, uint64_t idle, Seconds timeout, uint64_t inline_nbytes, Flag pinned)
      : budget_nbytes(budget), inline_nbytes(inline_nbytes), options_(detail::sized<tenon_pool_options>()) {
    options_.flags = TENON_POOL_NOTES_REFUSALS | (pinned.get("pinned") ? TENON_POOL_PINNED : 0);
    options_.budget_nbytes = budget;
    options_.idle_nbytes = idle;
    options_.timeout_ns = timeout.nanoseconds();
    (void)here();
  }
  NativePool(const NativePool&) = delete;
  NativePool& operator=(const NativePool&) = delete;
  ~NativePool() { tenon_tensor_pool_release(pool_); }

  void begin_child() { tenon_tensor_pool_release(std::exchange(pool_, nullptr)); }

  Array empty(nb::object shape, const DTypeLike& dtype, Seconds timeout) {
    const Dims dims(shape, "shape");
    const DType known = dtype.get();
    const int64_t wait_ns = timeout.nanoseconds();
    owners::drain();  // memory that other threads have released is room
    return Array::steal(detail::call_for<tenon_array*>(tenon_tensor_pool_empty, here(), known,
                                                       dims.shape().ndim(), dims.shape().data(), wait_ns));
  }

  Array freeze(const Array& array) {
    return Array::steal(detail::call_for<tenon_array*>(tenon_tensor_pool_freeze, here(), array.get()));
  }

  int32_t owns(const Array& array) { return tenon_tensor_pool_owns(here(), array.get()); }

  // A message of an object without leaves but arrays of the pool. Null: it has others, the pool has too many
  // messages, or views keep an array.
  nb::object dumps_plain(nb::handle value, const MessageLimits& limits) {
    std::vector<Array> arrays;
    const auto take = [&](PyObject* object) -> int64_t {
      if (!is_ndarray(object) || tenon_tensor_pool_owns(here(), array_of(object)) == 0) return -1;
      arrays.push_back(share(object));
      return static_cast<int64_t>(arrays.size()) - 1;
    };
    nb::object message;
    try {
      encode_if_plain(value, inline_nbytes, take,
                      [&](std::string_view tree) { message = sent(arrays, {"", tree, "", "", ""}, limits); });
    } catch (const Error& error) {
      if (error.code() != TENON_ERR_NO_MEMORY && error.code() != TENON_ERR_LEASE_CONFLICT) throw;
    }
    return message;
  }

  nb::object dumps_parts(const std::vector<Array>& arrays, nb::bytes tree, nb::bytes about, nb::bytes pickled,
                         nb::bytes small, const MessageLimits& limits) {
    const auto view = [](const nb::bytes& bytes) {
      return std::string_view(static_cast<const char*>(bytes.data()), bytes.size());
    };
    return sent(arrays, {"", view(tree), view(about), view(pickled), view(small)}, limits);
  }

  uint32_t revoke(nb::handle tag) {
    const std::string text = MessageLimits::tag_from(tag);
    return detail::call_for<uint32_t>(tenon_tensor_pool_revoke, here(), text.c_str());
  }

  nb::dict stats() {
    auto stats = detail::sized<tenon_pool_stats>();
    call(tenon_tensor_pool_stats, here(), &stats);
    nb::dict result;
    result["budget"] = stats.budget_nbytes;
    result["used"] = stats.used_nbytes;
    result["idle"] = stats.idle_nbytes;
    result["committed"] = stats.committed_nbytes;
    result["blocks"] = stats.blocks;
    result["messages"] = stats.messages;
    result["waiting"] = stats.waiting;
    result["processes"] = stats.processes;
    result["unopened"] = stats.unopened;
    result["unopened_bytes"] = stats.unopened_nbytes;
    result["held"] = stats.held;
    result["held_bytes"] = stats.held_nbytes;
    result["sent_total"] = stats.sent;
    result["sent_bytes_total"] = stats.sent_nbytes;
    result["opened_total"] = stats.opened;
    result["expired_total"] = stats.expired;
    result["revoked_total"] = stats.revoked;
    result["receivers_gone_total"] = stats.receivers_gone;
    result["inline_total"] = stats.inlined;
    result["inline_bytes_total"] = stats.inlined_nbytes;
    result["refused_total"] = stats.refused;
    result["waits_total"] = stats.waits;
    result["waited_ns_total"] = stats.waited_ns;
    return result;
  }

  void count(uint64_t refused, uint64_t inlined, uint64_t inlined_nbytes) {
    call(tenon_tensor_pool_note, here(), refused, inlined, inlined_nbytes);
  }

  // The pool of this process.
  tenon_tensor_pool* here() {
    if (pool_ == nullptr) {
      pool_ = detail::call_for<tenon_tensor_pool*>(tenon_tensor_pool_create, &options_);
      std::array<unsigned char, 32> key{};
      call(tenon_tensor_pool_key, pool_, key.data());
      key_ = key_in(key);
    }
    return pool_;
  }

  const uint64_t budget_nbytes;
  const uint64_t inline_nbytes;

 private:
  nb::object sent(const std::vector<Array>& arrays, MessageParts parts, const MessageLimits& limits) {
    tenon_message_options options = limits.options();
    options.site = current_site();
    std::vector<tenon_array*> raw;
    raw.reserve(arrays.size());
    for (const Array& array : arrays) raw.push_back(array.get());
    const auto n = static_cast<uint32_t>(raw.size());
    constexpr size_t kUsual = 512;
    std::array<char, kUsual> on_stack;
    std::vector<char> large;
    const auto room = static_cast<size_t>(tenon_message_nbytes(raw.data(), n));
    if (room > kUsual) large.resize(room);
    char* const core = room > kUsual ? large.data() : on_stack.data();
    uint64_t nbytes = 0;
    try {
      call(tenon_tensor_pool_send, here(), raw.data(), n, &options, core, room, &nbytes);
    } catch (const Error& error) {
      if (error.code() != TENON_ERR_NOT_FOUND) throw;
      raise(PyExc_ProcessLookupError, "%s", error.what());
    }
    parts[kCore] = {core, static_cast<size_t>(nbytes)};
    try {
      nb::object message = join_message({parts, n}, key_);
      note(message, limits.timeout_ns() < 0 ? options_.timeout_ns : limits.timeout_ns());
      return message;
    } catch (...) {
      (void)tenon_message_revoke(core, nbytes, nullptr);  // nobody has its bytes
      throw;
    }
  }

  tenon_pool_options options_;
  tenon_tensor_pool* pool_ = nullptr;  // null: this is a child that has not used it
  SipKey key_{};
};

// The native part of tenon.PoolServer. In a forked child it does nothing.
class NativePoolServer {
 public:
  NativePoolServer(NativePool& pool, nb::bytes path, int32_t backlog, uint32_t group) {
    tenon_tensor_pool* const served = pool.here();
    const nb::gil_scoped_release release;
    server_ =
        detail::call_for<tenon_pool_server*>(tenon_tensor_pool_serve, served, path.c_str(), backlog, group);
  }
  NativePoolServer(const NativePoolServer&) = delete;
  NativePoolServer& operator=(const NativePoolServer&) = delete;
  ~NativePoolServer() { close(); }
  void close() noexcept { tenon_pool_server_release(std::exchange(server_, nullptr)); }

 private:
  tenon_pool_server* server_ = nullptr;
};

// The native part of tenon.PoolLink.
class NativePoolLink {
 public:
  NativePoolLink(nb::bytes path, Seconds timeout, uint32_t group) {
    const int64_t timeout_ns = timeout.nanoseconds();
    link_ = detail::call_for<tenon_pool_link*>(tenon_pool_attach, path.c_str(), timeout_ns, group);
  }
  NativePoolLink(const NativePoolLink&) = delete;
  NativePoolLink& operator=(const NativePoolLink&) = delete;
  ~NativePoolLink() { close(); }
  void offer(NativePool& pool) {
    if (link_ == nullptr) raise(PyExc_ValueError, "the PoolLink is closed");
    tenon_tensor_pool* const offered = pool.here();
    // Another thread may close this meanwhile.
    tenon_pool_link_retain(link_);
    const std::unique_ptr<tenon_pool_link, ReleaseLink> used(link_);
    const nb::gil_scoped_release release;
    call(tenon_pool_link_offer, used.get(), offered);
  }
  void close() noexcept { tenon_pool_link_release(std::exchange(link_, nullptr)); }

 private:
  struct ReleaseLink {
    void operator()(tenon_pool_link* link) const noexcept { tenon_pool_link_release(link); }
  };
  tenon_pool_link* link_ = nullptr;
};

constexpr char kDumpsDoc[] =
    R"(dumps($self, value, *, opens=1, tag=None, timeout=..., receivers=None, when_full=None)
--

A message of any object that can be pickled, for `loads` in processes of this user on this host.

Arrays of this pool end, and are sent without a copy; frozen ones stay. Other arrays of at least
``inline`` bytes are copied into the pool: of NumPy, PyTorch (also Parameters), Tenon, JAX, and
buffers of PyArrow. `loads` returns each as what it was. Tensors that share a storage share it
afterwards.

Parameters
----------
value : object
opens : int or None
    How many processes open the message. None: any number, until it is revoked or this process has
    ended. A process may open it several times.
tag : str or int, optional
    For `revoke`.
timeout : float or None
    The deadline in seconds: afterwards the message cannot be opened. None: no deadline. Default: that
    of the pool.
receivers : int or iterable of int, optional
    The numbers (pid) of the processes for which it is: it ends when all of them have ended. Other
    processes can open it, too.
when_full : {'wait', 'raise', 'inline'}, optional
    Default: that of the pool.

Raises
------
LeaseEscaped
    Another view of an array of the pool exists. Nothing was sent, and the array stays usable.
MemoryError
    The pool has no room. The message names the holders.
TypeError
    A tensor is on a GPU, or the object cannot be pickled.
RuntimeError
    A tensor requires grad and is no leaf.
ProcessLookupError
    There is no process with the number of a receiver.
)";

// Written by hand, as small messages are many.
PyObject* dumps(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static constinit FastParameters<6> parameters(
      "dumps", {"value", "opens", "tag", "timeout", "receivers", "when_full"}, 1, 1);
  const auto [value, opens, tag, timeout, receivers, when_full] = parameters.parse(arguments, n, keywords);
  const MessageLimits limits(opens, tag, timeout, receivers);
  const bool has_policy = when_full != nullptr && when_full != Py_None;
  if (has_policy) checked_policy(when_full);
  if (!nb::inst_ready(self)) raise(PyExc_RuntimeError, "the TensorPool was not initialized");
  nb::object message = nb::inst_ptr<NativePool>(self)->dumps_plain(value, limits);
  if (!message.is_valid()) {
    const nb::handle policy(has_policy ? when_full : Py_None);
    message = callback(Callback::kDumpsParts)(nb::handle(self), nb::handle(value), limits, policy);
  }
  return message.release().ptr();
}

nb::object bytes_of(std::string_view part) { return nb::bytes(part.data(), part.size()); }

// A list of the arrays; null: there are none.
nb::object open_core(const Message& message, bool is_writable) {
  std::vector<tenon_array*> raw(message.n_arrays);
  uint32_t n = 0;
  const std::string_view core = message.parts[kCore];
  call(tenon_message_open, static_cast<const void*>(core.data()), core.size(),
       is_writable ? 0U : uint32_t{TENON_READONLY}, raw.data(), message.n_arrays, &n);
  if (n == 0) return {};
  std::vector<Array> arrays;
  for (uint32_t i = 0; i < n; ++i) arrays.push_back(Array::steal(raw[i]));
  nb::list list;
  for (Array& array : arrays) list.append(nb::cast(std::move(array)));
  return list;
}

void check_message(std::string_view bytes, const Message& message) {
  std::array<unsigned char, 32> key{};
  const std::string_view core = message.parts[kCore];
  call(tenon_message_key, static_cast<const void*>(core.data()), core.size(), key.data());
  check_code(bytes, key_in(key));
}

constexpr char kStatsDoc[] = R"(What the pool holds, and what has happened in it.

Returns
-------
dict of str to int
    Names that end in ``_total`` only grow; the others say how it is now.

    - Bytes: ``budget``; ``used`` by arrays and messages; ``idle``, free but ready; ``committed``.
    - ``blocks``: pieces of memory in use; ``held``: those that other processes use, and
      ``held_bytes``; ``processes``: those that use any, this one among them.
    - ``messages`` that processes may open; ``unopened``: those that none has opened, and
      ``unopened_bytes``; ``waiting``: threads that wait for room.
    - ``sent_total`` and ``sent_bytes_total``: messages, and the memory that they keep.
    - Messages that have ended: ``opened_total`` (as often as they may be), ``expired_total``,
      ``revoked_total``, ``receivers_gone_total``.
    - ``inline_total``, ``inline_bytes_total``: messages with ``when_full="inline"`` for which there was
      no room, and the bytes of their arrays.
    - ``refused_total``: calls that raised MemoryError because the pool was full.
    - ``waits_total``, ``waited_ns_total``: of threads, for room.
)";

constexpr char kLoadsDoc[] = R"(loads(data, *, writable=True, arrays_only=False)
--

The object of a message of `TensorPool.dumps`. Its arrays are in the memory of the sender's pool,
without a copy, aligned to 64 bytes.

Parameters
----------
data : bytes or another buffer
writable : bool
    True: the arrays are writable. If the message can be opened once and its sender has kept nothing, they
    are on the memory of the message; else what this process writes is seen by no other process. False:
    they are read-only, on shared memory; PyTorch's tensors, which cannot be read-only, are copies.
arrays_only : bool
    Nothing is unpickled: a message with other objects than None, numbers, texts, bytes, plain containers
    and arrays raises ValueError.

Raises
------
MessageGone
    The message has ended: it was opened as often as it may be, its deadline has passed, it was revoked,
    its sender or its receivers have ended. ``reason`` says which.
ValueError
    The bytes are no message, or a process of another user or host has made or changed them.
)";

PyObject* loads(PyObject*, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static constinit FastParameters<3> parameters("loads", {"data", "writable", "arrays_only"}, 1, 1);
  const auto [data, writable, arrays_only] = parameters.parse(arguments, n, keywords);
  const bool is_writable = writable == nullptr || flag_from(writable, "writable");
  const bool has_arrays_only = arrays_only != nullptr && flag_from(arrays_only, "arrays_only");
  const BytesOf bytes(data);
  const Message message = split_message(bytes.view());
  const MessageParts& parts = message.parts;
  check_message(bytes.view(), message);
  if (has_arrays_only && !parts[kPickle].empty()) {
    raise(PyExc_ValueError, "the message has objects that are pickled, and arrays_only=True refuses them");
  }
  const nb::object arrays = open_core(message, is_writable);
  if (parts[kArrays].empty()) return decode_plain(parts[kTree], {}, arrays, is_writable).release().ptr();
  return callback(Callback::kLoadsParts)(bytes_of(parts[kTree]), bytes_of(parts[kArrays]),
                                         bytes_of(parts[kPickle]), bytes_of(parts[kSmall]),
                                         arrays.is_valid() ? arrays : nb::list(), is_writable)
      .release()
      .ptr();
}

template <class Call>
auto with_core(nb::bytes message, Call use) {
  const std::string_view core =
      split_message({static_cast<const char*>(message.data()), message.size()}).parts[kCore];
  return use(static_cast<const void*>(core.data()), static_cast<uint64_t>(core.size()));
}

}  // namespace

void add_tensor_pool(nb::module_& module) {
  nb::class_<MessageLimits>(module, "MessageLimits", "Which processes may open a message, and how long.")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle>(), nb::arg("opens").none(),
           nb::arg("tag").none(), nb::arg("timeout").none(), nb::arg("receivers").none(),
           nb::sig(
               "def __init__(self, opens: int | None, tag: str | int | None, timeout: float | EllipsisType | "
               "None, receivers: int | Iterable[int] | None) -> None"));
  static PyMethodDef methods[] = {fast_method<dumps>("dumps", kDumpsDoc), {nullptr, nullptr, 0, nullptr}};
  static const PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, nullptr}};
  nb::class_<NativePool>(module, "NativePool", nb::type_slots(slots))
      .def(nb::init<uint64_t, uint64_t, Seconds, uint64_t, Flag>(), nb::arg("budget"), nb::arg("idle"),
           nb::arg("timeout").none(), nb::arg("inline_nbytes"), nb::arg("pinned"),
           nb::sig("def __init__(self, budget: int, idle: int, timeout: float | None, inline_nbytes: int, "
                   "pinned: bool) -> None"))
      .def_ro("budget", &NativePool::budget_nbytes)
      .def_ro("inline", &NativePool::inline_nbytes)
      .def("_begin_child", &NativePool::begin_child)
      .def("_empty", &NativePool::empty, nb::arg("shape"), nb::arg("dtype"), nb::arg("timeout").none(),
           nb::sig("def _empty(self, shape: int | Sequence[int], dtype: DTypeLike, timeout: float | None) -> "
                   "NDArray"))
      .def("_freeze", &NativePool::freeze, nb::arg("array"))
      .def("_owns", &NativePool::owns, nb::arg("array"))
      .def(
          "_dumps_plain",
          [](NativePool& self, nb::handle value, const MessageLimits& limits) {
            nb::object message = self.dumps_plain(value, limits);
            return message.is_valid() ? message : nb::none();
          },
          nb::arg("value").none(), nb::arg("limits"),
          nb::sig("def _dumps_plain(self, value: object, limits: MessageLimits) -> bytes | None"))
      .def("_dumps_parts", &NativePool::dumps_parts, nb::arg("arrays"), nb::arg("tree"), nb::arg("about"),
           nb::arg("pickled"), nb::arg("small"), nb::arg("limits"),
           nb::sig("def _dumps_parts(self, arrays: Sequence[NDArray], tree: bytes, about: bytes, pickled: "
                   "bytes, small: bytes, limits: MessageLimits) -> bytes"))
      .def("_revoke", &NativePool::revoke, nb::arg("tag"))
      .def("stats", &NativePool::stats, nb::sig("def stats(self) -> dict[str, int]"), kStatsDoc)
      .def("_note", &NativePool::count, nb::arg("refused"), nb::arg("inlined"), nb::arg("inlined_nbytes"));
  nb::class_<NativePoolServer>(module, "NativePoolServer")
      .def(nb::init<NativePool&, nb::bytes, int32_t, uint32_t>(), nb::arg("pool"), nb::arg("path"),
           nb::arg("backlog"), nb::arg("group"))
      .def("close", &NativePoolServer::close);
  nb::class_<NativePoolLink>(module, "NativePoolLink")
      .def(nb::init<nb::bytes, Seconds, uint32_t>(), nb::arg("path"), nb::arg("timeout").none(),
           nb::arg("group"),
           nb::sig("def __init__(self, path: bytes, timeout: float | None, group: int) -> None"))
      .def("offer", &NativePoolLink::offer, nb::arg("pool"))
      .def("close", &NativePoolLink::close);
  static PyMethodDef loads_method = fast_method<loads>("loads", kLoadsDoc);
  add_function(module, &loads_method);
  module.def(
      "checked_policy", [](nb::handle when_full) { return nb::borrow(checked_policy(when_full)); },
      nb::arg("when_full").none(), nb::sig("def checked_policy(when_full: Any) -> Any"));
  module.def(
      "code_of_bytes",
      [](nb::bytes key, nb::bytes data) {
        SipKey words{};
        if (key.size() != sizeof words) raise(PyExc_ValueError, "the key has %zu bytes, not 16", key.size());
        std::memcpy(words.data(), key.data(), sizeof words);
        const SipCode code = siphash(words, {static_cast<const char*>(data.data()), data.size()});
        return nb::bytes(code.data(), sizeof code);
      },
      nb::arg("key"), nb::arg("data"), "SipHash-2-4 with 128 bits.");
  module.def(
      "core_of_message",
      [](nb::bytes message) {
        return with_core(message, [](const void* data, uint64_t nbytes) {
          return nb::bytes(static_cast<const char*>(data), static_cast<size_t>(nbytes));
        });
      },
      nb::arg("message"));
  module.def(
      "revoke_message",
      [](nb::bytes message) {
        return with_core(message, [](const void* data, uint64_t nbytes) {
          const bool is_kept = tenon_message_is_unopened(data, nbytes) != 0;
          call(tenon_message_revoke, data, nbytes);
          return is_kept;
        });
      },
      nb::arg("message"));
  module.def(
      "take_over_message",
      [](nb::bytes core, Seconds timeout) {
        const int64_t after = timeout.nanoseconds();
        return detail::call_for<int32_t>(tenon_message_take_over, static_cast<const void*>(core.data()),
                                         static_cast<uint64_t>(core.size()), after) != 0;
      },
      nb::arg("core"), nb::arg("timeout"));
  module.def(
      "is_message_unopened",
      [](nb::bytes core) { return tenon_message_is_unopened(core.data(), core.size()) != 0; },
      nb::arg("core"));
  module.def(
      "linger_pools",
      [](Seconds timeout) {
        const int64_t most = timeout.nanoseconds();
        const nb::gil_scoped_release release;
        return tenon_tensor_pools_linger(most);
      },
      nb::arg("timeout"));
}

}  // namespace tenon::python
