// SPDX-License-Identifier: Apache-2.0
//
// The native part of tenon.TensorPool, tenon.loads and tenon.open.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

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

constexpr size_t kKeyBytes = 32;
using Key = std::array<unsigned char, kKeyBytes>;

nb::object mac_of(const Key& key) {
  return keyed_mac({reinterpret_cast<const char*>(key.data()), key.size()});
}

// Seconds of Python: negative for the value of the pool, infinity for none.
int64_t limit_from(double seconds) {
  constexpr double kMost = 9e9;
  if (seconds < 0) return -1;
  return seconds > kMost ? INT64_MAX : static_cast<int64_t>(seconds * 1e9);
}

// Who may open a message, and how long; as tenon_message_options.
struct Limits {
  uint32_t opens;  // 0: no limit
  double timeout;  // as limit_from()
  std::vector<uint32_t> receivers;
  std::string tag;  // "": none
};

// One pool of this process.
class NativePool {
 public:
  NativePool(uint64_t budget, uint64_t idle, Seconds timeout) {
    auto options = detail::sized<tenon_pool_options>();
    options.budget_nbytes = budget;
    options.idle_nbytes = idle;
    options.timeout_ns = timeout.nanoseconds();
    pool_ = detail::call_for<tenon_tensor_pool*>(tenon_tensor_pool_create, &options);
    Key key{};
    call(tenon_tensor_pool_key, pool_, key.data());
    mac_ = mac_of(key);
  }
  NativePool(const NativePool&) = delete;
  NativePool& operator=(const NativePool&) = delete;
  ~NativePool() { tenon_tensor_pool_release(pool_); }

  Array empty(nb::object shape, const DTypeLike& dtype, Seconds timeout) const {
    const Dims dims(shape, "shape");
    const DType known = dtype.get();
    const int64_t wait_ns = timeout.nanoseconds();
    owners::drain();  // memory that other threads have released is room
    return Array::steal(detail::call_for<tenon_array*>(tenon_tensor_pool_empty, pool_, known,
                                                       dims.shape().ndim(), dims.shape().data(), wait_ns));
  }

  Array freeze(const Array& array) const {
    return Array::steal(detail::call_for<tenon_array*>(tenon_tensor_pool_freeze, pool_, array.get()));
  }

  int32_t owns(const Array& array) const noexcept { return tenon_tensor_pool_owns(pool_, array.get()); }

  // A message of an object without leaves; None: it has some.
  nb::object dumps_plain(nb::handle value, size_t inline_nbytes, uint32_t opens, double timeout,
                         std::vector<uint32_t> receivers, std::string tag) const {
    const Limits limits{opens, timeout, std::move(receivers), std::move(tag)};
    nb::object message = nb::none();
    encode_if_plain(value, inline_nbytes,
                    [&](std::string_view tree) { message = sent({}, {"", tree, "", "", ""}, limits); });
    return message;
  }

  nb::bytes dumps(const std::vector<Array>& arrays, nb::bytes tree, nb::bytes about, nb::bytes pickled,
                  nb::bytes small, uint32_t opens, double timeout, std::vector<uint32_t> receivers,
                  std::string tag) const {
    const auto view = [](const nb::bytes& bytes) {
      return std::string_view(static_cast<const char*>(bytes.data()), bytes.size());
    };
    return sent(arrays, {"", view(tree), view(about), view(pickled), view(small)},
                {opens, timeout, std::move(receivers), std::move(tag)});
  }

  uint32_t revoke(const std::string& tag) const {
    return detail::call_for<uint32_t>(tenon_tensor_pool_revoke, pool_, tag.c_str());
  }

  nb::dict stats() const {
    auto stats = detail::sized<tenon_pool_stats>();
    call(tenon_tensor_pool_stats, pool_, &stats);
    nb::dict result;
    result["budget"] = stats.budget_nbytes;
    result["used"] = stats.used_nbytes;
    result["idle"] = stats.idle_nbytes;
    result["committed"] = stats.committed_nbytes;
    result["blocks"] = stats.blocks;
    result["messages"] = stats.messages;
    result["waiting"] = stats.waiting;
    return result;
  }

 private:
  nb::bytes sent(const std::vector<Array>& arrays, MessageParts parts, const Limits& limits) const {
    auto options = detail::sized<tenon_message_options>();
    options.opens = limits.opens;
    options.timeout_ns = limit_from(limits.timeout);
    options.n_receivers = static_cast<uint32_t>(limits.receivers.size());
    options.receivers = limits.receivers.empty() ? nullptr : limits.receivers.data();
    options.tag = limits.tag.empty() ? nullptr : limits.tag.c_str();
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
    call(tenon_tensor_pool_send, pool_, raw.data(), n, &options, core, room, &nbytes);
    parts[kCore] = {core, static_cast<size_t>(nbytes)};
    return join_message({parts, n}, mac_);
  }

  tenon_tensor_pool* pool_ = nullptr;
  nb::object mac_;
};

nb::object view_of(std::string_view part) { return nb::bytes(part.data(), part.size()); }

nb::list open_core(const Message& message, bool is_writable) {
  std::vector<tenon_array*> raw(message.n_arrays);
  uint32_t n = 0;
  const std::string_view core = message.parts[kCore];
  call(tenon_message_open, static_cast<const void*>(core.data()), core.size(),
       is_writable ? 0U : uint32_t{TENON_READONLY}, raw.data(), message.n_arrays, &n);
  std::vector<Array> arrays;
  for (uint32_t i = 0; i < n; ++i) arrays.push_back(Array::steal(raw[i]));
  nb::list list;
  for (Array& array : arrays) list.append(nb::cast(std::move(array)));
  return list;
}

void check_message(std::string_view bytes, const Message& message) {
  Key key{};
  const std::string_view core = message.parts[kCore];
  call(tenon_message_key, static_cast<const void*>(core.data()), core.size(), key.data());
  check_code(bytes, mac_of(key));
}

// The object, if it has no leaves, and what unpacks the others.
nb::tuple read_message(nb::handle data, Flag writable, Flag arrays_only) {
  const bool is_writable = writable.get("writable");
  const bool has_arrays_only = arrays_only.get("arrays_only");
  const BytesOf bytes(data);
  const Message message = split_message(bytes.view());
  const MessageParts& parts = message.parts;
  check_message(bytes.view(), message);
  if (has_arrays_only && !parts[kPickle].empty()) {
    raise(PyExc_ValueError, "the message has objects that are pickled, and arrays_only=True refuses them");
  }
  nb::list arrays = open_core(message, is_writable);
  if (parts[kArrays].empty()) return nb::make_tuple(decode_plain(parts[kTree], nb::list()), nb::none());
  return nb::make_tuple(nb::none(), nb::make_tuple(view_of(parts[kTree]), view_of(parts[kArrays]),
                                                   view_of(parts[kPickle]), view_of(parts[kSmall]), arrays));
}

template <class Call>
auto with_core(nb::bytes message, Call use) {
  const std::string_view core =
      split_message({static_cast<const char*>(message.data()), message.size()}).parts[kCore];
  return use(static_cast<const void*>(core.data()), static_cast<uint64_t>(core.size()));
}

}  // namespace

void add_tensor_pool(nb::module_& module) {
  nb::class_<NativePool>(module, "NativePool")
      .def(nb::init<uint64_t, uint64_t, Seconds>(), nb::arg("budget"), nb::arg("idle"),
           nb::arg("timeout").none(),
           nb::sig("def __init__(self, budget: int, idle: int, timeout: float | None) -> None"))
      .def("empty", &NativePool::empty, nb::arg("shape"), nb::arg("dtype"), nb::arg("timeout").none(),
           nb::sig("def empty(self, shape: int | Sequence[int], dtype: DTypeLike, timeout: float | None) -> "
                   "NDArray"))
      .def("freeze", &NativePool::freeze, nb::arg("array"))
      .def("owns", &NativePool::owns, nb::arg("array"))
      .def("dumps_plain", &NativePool::dumps_plain, nb::arg("value").none(), nb::arg("inline_nbytes"),
           nb::arg("opens"), nb::arg("timeout"), nb::arg("receivers"), nb::arg("tag"),
           nb::sig("def dumps_plain(self, value: object, inline_nbytes: int, opens: int, timeout: float, "
                   "receivers: Sequence[int], tag: str) -> bytes | None"))
      .def("dumps", &NativePool::dumps, nb::arg("arrays"), nb::arg("tree"), nb::arg("about"),
           nb::arg("pickled"), nb::arg("small"), nb::arg("opens"), nb::arg("timeout"), nb::arg("receivers"),
           nb::arg("tag"))
      .def("revoke", &NativePool::revoke, nb::arg("tag"))
      .def("stats", &NativePool::stats, nb::sig("def stats(self) -> dict[str, int]"));
  module.def("read_message", read_message, nb::arg("data"), nb::arg("writable"), nb::arg("arrays_only"),
             nb::sig("def read_message(data: object, writable: bool, arrays_only: bool) -> tuple[Any, Any]"));
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
