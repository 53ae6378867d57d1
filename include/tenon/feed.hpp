// SPDX-License-Identifier: Apache-2.0
//
// feed.hpp - the part of tenon.hpp for native functions, schemas and feeds:
//
//     tenon::Schema schema{tenon::field<float>("data", {64, 784}), tenon::field<int64_t>("label", {64})};
//     auto fill = tenon::Function::load("./libgen.so", "int fill(float *data, int64_t *label, size_t n)");
//     tenon::Feed feed(fill.bind(schema), schema, {.workers = 1, .slots = 5, .batches = 100});
//     for (tenon::Batch batch : feed.epoch()) train(batch["data"], batch["label"]);
//
// Functions throw tenon::Error. Copying a handle copies a reference.
#ifndef TENON_FEED_HPP_
#define TENON_FEED_HPP_

#include <array>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tenon/field.hpp"
#include "tenon/tenon.h"
#include "tenon/tenon.hpp"

namespace tenon {
inline namespace api0 {

// ------------------------------------------------------------------------------------- schema

class Schema {
 public:
  Schema(std::initializer_list<Field> fields) : Schema(std::span(fields.begin(), fields.size())) {}
  explicit Schema(std::span<const Field> fields) {
    const std::vector<tenon_field> described = detail::describe(fields);
    handle_ = decltype(handle_)(detail::call_for<tenon_schema*>(
        tenon_schema_create, static_cast<int32_t>(described.size()), described.data()));
  }

  // Takes over a reference that the caller owns.
  static Schema steal(tenon_schema* owned) noexcept { return Schema(owned); }

  tenon_schema* get() const noexcept { return handle_.get(); }
  int32_t size() const noexcept { return tenon_schema_field_count(get()); }
  // Name and shape are valid as long as the schema.
  tenon_field operator[](int32_t i) const noexcept { return tenon_schema_field(get(), i); }
  // The position of a field. Fails with NOT_FOUND.
  int32_t find(std::string_view name) const {
    for (int32_t i = 0; i < size(); ++i) {
      if (name == (*this)[i].name) return i;
    }
    throw Error(TENON_ERR_NOT_FOUND, "the schema has no field '" + std::string(name) + "'");
  }
  int64_t rows() const noexcept { return tenon_schema_rows(get()); }
  // The payload bytes of a batch.
  uint64_t nbytes() const noexcept { return tenon_schema_nbytes(get()); }

 private:
  explicit Schema(tenon_schema* owned) noexcept : handle_(owned) {}

  detail::Handle<tenon_schema, tenon_schema_retain, tenon_schema_release> handle_;
};

// --------------------------------------------------------------------------------- generators

// The request to a generator written in C++. Valid only during the call.
class FillRequest {
 public:
  FillRequest(const tenon_fill_request& request, const Schema& schema) noexcept
      : request_(request), schema_(schema) {}

  uint64_t index() const noexcept { return request_.index; }
  uint64_t epoch() const noexcept { return request_.epoch; }
  // Depends only on the feed's seed, epoch and index.
  uint64_t seed() const noexcept { return request_.seed; }
  int32_t worker() const noexcept { return request_.worker; }
  int64_t rows() const noexcept { return request_.rows; }

  // The elements of a field, for writing. Fails with NOT_FOUND (name), TYPE (dtype).
  template <class T>
  std::span<T> field(std::string_view name) const {
    const int32_t i = schema_.find(name);
    const tenon_field f = schema_[i];
    if (DType(f.dtype) != dtype_of<T>()) {
      throw Error(TENON_ERR_TYPE, "field '" + std::string(name) + "' is " + DType(f.dtype).name() + ", not " +
                                      dtype_of<T>().name());
    }
    size_t size = 1;
    for (int32_t axis = 0; axis < f.ndim; ++axis) size *= static_cast<size_t>(f.shape[axis]);
    return {static_cast<T*>(request_.fields[i]), size};
  }

 private:
  const tenon_fill_request& request_;
  const Schema& schema_;
};

// Owns a tenon_generator until a feed takes ownership. Can be moved, but not copied.
class Generator {
 public:
  explicit Generator(const tenon_generator& owned) noexcept : value_(owned) {}

  // A callable void(const FillRequest&) or int(const FillRequest&). A result that is not 0, or an exception
  // (with its text and the code -1), is the failure of the batch. With is_threadsafe several workers call it
  // at the same time.
  template <class Fill>
    requires std::invocable<Fill&, const FillRequest&>
  Generator(Fill fill, Schema schema, bool is_threadsafe = false, const char* name = "generator") {
    auto context = std::make_unique<Context<Fill>>(std::move(fill), std::move(schema), name);
    value_.struct_size = sizeof value_;
    value_.flags = is_threadsafe ? uint32_t{TENON_THREADSAFE} : 0;
    value_.fill = Context<Fill>::run;
    value_.drop = [](void* dropped) { delete static_cast<Context<Fill>*>(dropped); };
    value_.name = context->name.c_str();
    value_.context = context.release();
  }

  Generator(Generator&& other) noexcept : value_(std::exchange(other.value_, {})) {}
  Generator& operator=(Generator&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Generator() {
    if (value_.drop != nullptr) value_.drop(value_.context);
  }

  const tenon_generator& get() const noexcept { return value_; }
  // The feed has taken ownership.
  void release() noexcept { value_ = {}; }

 private:
  template <class Fill>
  struct Context {
    Context(Fill f, Schema s, const char* n) : fill(std::move(f)), schema(std::move(s)), name(n) {}

    static int32_t run(void* context, const tenon_fill_request* request, char* message,
                       size_t message_size) noexcept {
      auto& self = *static_cast<Context*>(context);
      try {
        const FillRequest wrapped(*request, self.schema);
        if constexpr (std::is_void_v<std::invoke_result_t<Fill&, const FillRequest&>>) {
          self.fill(wrapped);
          return 0;
        } else {
          return self.fill(wrapped);
        }
      } catch (const std::exception& e) {
        std::snprintf(message, message_size, "%s", e.what());
      } catch (...) {
        std::snprintf(message, message_size, "unknown exception");
      }
      return -1;
    }

    Fill fill;
    Schema schema;
    std::string name;
  };

  tenon_generator value_{};
};

// ---------------------------------------------------------------------------------- functions

// A parameter with the same value in every call: an array for a pointer, else a number.
class Constant {
 public:
  Constant(std::string name, Array array) : name_(std::move(name)), value_(std::move(array)) {}
  // The value already has the kind of the parameter.
  Constant(std::string name, tenon_value value) : name_(std::move(name)), value_(value) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  Constant(std::string name, T number) : name_(std::move(name)) {
    if constexpr (std::is_floating_point_v<T>) {
      value_ = static_cast<double>(number);
    } else {
      value_ = static_cast<int64_t>(number);
    }
  }

 private:
  friend class Function;
  std::string name_;
  std::variant<Array, tenon_value, int64_t, double> value_;
};

class Function {
 public:
  // path: a library; nullptr: a symbol of the process. Without is_threadsafe one call runs at a time.
  static Function load(const char* path, const char* prototype, bool is_threadsafe = false) {
    return Function(
        detail::call_for<tenon_function*>(tenon_function_load, path, prototype, flags(is_threadsafe)));
  }
  static Function from_address(void* address, const char* prototype, bool is_threadsafe = false) {
    return Function(
        detail::call_for<tenon_function*>(tenon_function_create, address, prototype, flags(is_threadsafe)));
  }

  tenon_function* get() const noexcept { return handle_.get(); }
  const char* name() const noexcept { return tenon_function_name(get()); }
  const char* prototype() const noexcept { return tenon_function_prototype(get()); }
  int32_t parameter_count() const noexcept { return tenon_function_parameter_count(get()); }
  // The name is valid as long as the function.
  tenon_parameter parameter(int32_t i) const noexcept { return tenon_function_parameter(get(), i); }
  tenon_parameter result() const noexcept { return tenon_function_parameter(get(), -1); }

  // Calls the function in this thread, with arguments of the parameters' kinds. Fails with OP (a status
  // result is not 0), VALUE (number of arguments).
  tenon_value call_with(std::span<const tenon_value> arguments) const {
    return detail::call_for<tenon_value>(tenon_function_call, get(), static_cast<int32_t>(arguments.size()),
                                         arguments.data());
  }
  // The same. Numbers are converted to the type of the parameter. Fails with TYPE (a pointer for a number or
  // the reverse).
  template <class... Arguments>
    requires((std::is_arithmetic_v<Arguments> || std::is_pointer_v<Arguments> ||
              std::is_null_pointer_v<Arguments>) &&
             ...)
  tenon_value operator()(Arguments... arguments) const {
    int32_t i = 0;
    const std::array<tenon_value, sizeof...(Arguments)> values{value_for(i++, arguments)...};
    return call_with(values);
  }

  // A generator that calls the function; see tenon_function_bind.
  Generator bind(const Schema& schema, std::span<const Constant> constants = {}) const {
    std::vector<tenon_constant> described;
    for (const Constant& constant : constants) described.push_back(described_constant(constant));
    return Generator(detail::call_for<tenon_generator>(
        tenon_function_bind, get(), schema.get(), static_cast<int32_t>(described.size()), described.data()));
  }
  Generator bind(const Schema& schema, std::initializer_list<Constant> constants) const {
    return bind(schema, std::span(constants.begin(), constants.size()));
  }

 private:
  explicit Function(tenon_function* owned) noexcept : handle_(owned) {}

  static uint32_t flags(bool is_threadsafe) noexcept {
    return is_threadsafe ? uint32_t{TENON_THREADSAFE} : 0;
  }

  static bool is_floating(const tenon_parameter& p) noexcept {
    return p.is_pointer == 0 && p.dtype.code == TENON_FLOAT;
  }

  template <class T>
  tenon_value value_for(int32_t i, T argument) const {
    tenon_value value{};
    if (i >= parameter_count()) return value;  // the call reports the wrong count
    const tenon_parameter p = parameter(i);
    constexpr bool is_pointer = std::is_pointer_v<T> || std::is_null_pointer_v<T>;
    if (is_pointer != (p.is_pointer != 0)) {
      throw Error(TENON_ERR_TYPE, "argument " + std::to_string(i) + " of '" + name() + "' is a " +
                                      (is_pointer ? "pointer, not a number" : "number, not a pointer"));
    }
    if constexpr (std::is_null_pointer_v<T>) {
      value.p = nullptr;
    } else if constexpr (std::is_pointer_v<T>) {
      value.p = const_cast<void*>(static_cast<const void*>(argument));
    } else if (is_floating(p)) {
      value.f = static_cast<double>(argument);
    } else {
      value.i = static_cast<int64_t>(argument);
    }
    return value;
  }

  tenon_constant described_constant(const Constant& constant) const {
    tenon_constant described{constant.name_.c_str(), nullptr, {}};
    if (const auto* array = std::get_if<Array>(&constant.value_)) described.array = array->get();
    if (const auto* value = std::get_if<tenon_value>(&constant.value_)) described.value = *value;
    for (int32_t i = 0; i < parameter_count(); ++i) {
      const tenon_parameter p = parameter(i);
      if (constant.name_ != p.name) continue;
      if (const auto* whole = std::get_if<int64_t>(&constant.value_)) described.value = value_for(i, *whole);
      if (const auto* number = std::get_if<double>(&constant.value_)) {
        if (!is_floating(p)) {
          throw Error(TENON_ERR_TYPE, "constant '" + constant.name_ + "' of '" + name() +
                                          "' is a floating-point number, its parameter is not");
        }
        described.value.f = *number;
      }
    }
    return described;
  }

  detail::Handle<tenon_function, tenon_function_retain, tenon_function_release> handle_;
};

// ----------------------------------------------------------------------------------- plug-ins

// A generator from a library with the table of tenon/plugin.h, and the schema of its batches:
//     auto [generator, schema] = tenon::Plugin::open("./libdigits.so", R"({"rows": 64})");
//     tenon::Feed feed(std::move(generator), schema, {.workers = 2});
struct Plugin {
  Generator generator;
  Schema schema;

  // seed: the seed of the feed. wanted: the schema, for a plug-in that does not describe its fields. Fails as
  // tenon_plugin_open.
  static Plugin open(const char* path, const char* config = "{}", uint64_t seed = 0,
                     const Schema* wanted = nullptr) {
    const tenon_plugin_options options{sizeof(tenon_plugin_options), 0, seed, config};
    tenon_schema* described = nullptr;
    return {Generator(detail::call_for<tenon_generator>(
                tenon_plugin_open, path, &options, wanted != nullptr ? wanted->get() : nullptr, &described)),
            Schema::steal(described)};
  }
};

// -------------------------------------------------------------------------------------- feeds

// A delivered batch. The batch, its arrays and their views keep the slot. Copies share it.
class Batch {
 public:
  // Takes over a reference that the caller owns.
  Batch(tenon_batch* owned, Schema schema) noexcept : handle_(owned), schema_(std::move(schema)) {}

  tenon_batch* get() const noexcept { return handle_.get(); }
  uint64_t index() const noexcept { return tenon_batch_index(get()); }
  uint64_t epoch() const noexcept { return tenon_batch_epoch(get()); }
  const Schema& schema() const noexcept { return schema_; }
  Array operator[](int32_t i) const noexcept { return Array::steal(tenon_batch_array(get(), i)); }
  // Fails with NOT_FOUND.
  Array operator[](std::string_view name) const { return (*this)[schema_.find(name)]; }
  // The bytes that the generator attached; valid as long as the batch.
  std::span<const std::byte> attachment() const noexcept {
    uint64_t nbytes = 0;
    const void* const bytes = tenon_batch_attachment(get(), &nbytes);
    return {static_cast<const std::byte*>(bytes), static_cast<size_t>(nbytes)};
  }

 private:
  detail::Handle<tenon_batch, tenon_batch_retain, tenon_batch_release> handle_;
  Schema schema_;
};

// See feed.h.
enum class OnError : int32_t {
  kRaise = TENON_ON_ERROR_RAISE,
  kSkip = TENON_ON_ERROR_SKIP,
  kRetry = TENON_ON_ERROR_RETRY
};
enum class OnStarved : int32_t {
  kWait = TENON_ON_STARVED_WAIT,
  kCopy = TENON_ON_STARVED_COPY,
  kGrow = TENON_ON_STARVED_GROW,
  kRaise = TENON_ON_STARVED_RAISE
};

struct FeedOptions {
  int32_t workers = 1;
  int32_t slots = 0;     // 0: workers + 4
  int64_t batches = -1;  // per epoch; -1: no end
  uint64_t seed = 0;
  bool has_processes = false;   // workers are processes
  bool is_round_robin = false;  // worker i modulo workers fills batch i
  OnError on_error = OnError::kRaise;
  int32_t retries = 2;
  OnStarved on_starved = OnStarved::kWait;
  std::chrono::nanoseconds fill_timeout{0};  // for one batch; 0: no limit
  uint64_t attachment_nbytes = 0;            // capacity for bytes that are passed with a batch
  bool has_shared_slots = false;             // slots lie in a memory file, also for threads
  bool has_sparse_slots = false;             // slots take memory where they are written
  bool is_shuffled = false;                  // each epoch has the batches in another order
  // Of world_size feeds, this one delivers the batches at the places rank, rank + world_size, ... of an
  // epoch.
  int32_t rank = 0;
  int32_t world_size = 1;
  uint64_t state_nbytes = 0;  // capacity for the state of a worker; 0: 64 KiB
  std::string shared_name{};  // with has_shared_slots: by which it can be served; "": it cannot
};

// Can be moved, but not copied. The destructor closes it, and waits at most one second for the generator.
class Feed {
 public:
  class Epoch;

  Feed(Generator generator, Schema schema, FeedOptions options = {}) : schema_(std::move(schema)) {
    auto described = detail::sized<tenon_feed_options>();
    described.workers = options.workers;
    described.slots = options.slots != 0 ? options.slots : options.workers + 4;
    described.batches = options.batches;
    described.seed = options.seed;
    described.flags = (options.has_processes ? uint32_t{TENON_PROCESSES} : 0) |
                      (options.is_round_robin ? uint32_t{TENON_ROUND_ROBIN} : 0) |
                      (options.has_shared_slots ? uint32_t{TENON_SHARED_SLOTS} : 0) |
                      (options.has_sparse_slots ? uint32_t{TENON_SPARSE_SLOTS} : 0) |
                      (options.is_shuffled ? uint32_t{TENON_SHUFFLE} : 0);
    described.on_error = static_cast<int32_t>(options.on_error);
    described.retries = options.retries;
    described.on_starved = static_cast<int32_t>(options.on_starved);
    described.fill_timeout_ns = options.fill_timeout.count();
    described.attachment_nbytes = options.attachment_nbytes;
    described.rank = options.rank;
    described.world_size = options.world_size;
    described.state_nbytes = options.state_nbytes;
    if (!options.shared_name.empty()) described.shared_name = options.shared_name.c_str();
    tenon_feed* made = nullptr;
    call(tenon_feed_create, &generator.get(), schema_.get(), &described, &made);
    generator.release();
    handle_.reset(made);
  }

  // Begins the next epoch: for (Batch batch : feed.epoch()). The destructor of the range ends the epoch.
  Epoch epoch();

  // Later batches lie on the device, in a ring of so many device slots; see tenon_feed_use_device.
  void use_device(tenon_device device, int32_t slots = 3) {
    call(tenon_feed_use_device, handle_.get(), device, slots);
  }
  void begin() { call(tenon_feed_begin, handle_.get()); }
  void end() noexcept { tenon_feed_end(handle_.get()); }
  // Sets the epoch and the place in it at which the next epoch begins.
  void seek(uint64_t epoch, uint64_t place) noexcept { tenon_feed_seek(handle_.get(), epoch, place); }
  // Epoch and place of the batch that next() would return, or with which begin() would begin. The place is
  // the index, unless the feed is shuffled.
  std::pair<uint64_t, uint64_t> position() const noexcept {
    std::pair<uint64_t, uint64_t> at;
    tenon_feed_position(handle_.get(), &at.first, &at.second);
    return at;
  }
  // The details of the last OP failure of next().
  tenon_feed_failure failure() const noexcept {
    auto failure = detail::sized<tenon_feed_failure>();
    tenon_feed_failure_get(handle_.get(), &failure);
    return failure;
  }
  // Empty at the end of the epoch. Fails with TIMEOUT, OP (at the position of the batch), CLOSED.
  std::optional<Batch> next(std::chrono::nanoseconds timeout = forever) {
    tenon_batch* batch = nullptr;
    call(tenon_feed_next, handle_.get(), detail::timeout_ns(timeout), &batch);
    if (batch == nullptr) return std::nullopt;
    return Batch(batch, schema_);
  }
  void close(std::chrono::nanoseconds timeout = forever) { close(detail::timeout_ns(timeout)); }
  void close(int64_t timeout_ns) { call(tenon_feed_close, handle_.get(), timeout_ns); }

  const Schema& schema() const noexcept { return schema_; }
  tenon_feed* get() const noexcept { return handle_.get(); }
  tenon_feed_statistics statistics() const noexcept {
    auto statistics = detail::sized<tenon_feed_statistics>();
    tenon_feed_statistics_get(handle_.get(), &statistics);
    return statistics;
  }

 private:
  struct Releaser {
    void operator()(tenon_feed* feed) const noexcept { tenon_feed_release(feed); }
  };

  Schema schema_;
  std::unique_ptr<tenon_feed, Releaser> handle_;
};

// The batches of one epoch as an input range; it can be iterated once.
class Feed::Epoch {
 public:
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Iterator() noexcept = default;
    explicit Iterator(Feed& feed) : feed_(&feed), batch_(feed.next()) {}
    // Moves the batch out, so the slot is free again after the body of the loop.
    Batch operator*() const { return std::move(*batch_); }
    Iterator& operator++() {
      batch_.reset();
      batch_ = feed_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) noexcept { return !it.batch_; }

   private:
    Feed* feed_ = nullptr;
    mutable std::optional<Batch> batch_;
  };

  explicit Epoch(Feed& feed) : feed_(feed) { feed.begin(); }
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;
  ~Epoch() { feed_.end(); }
  Iterator begin() { return Iterator(feed_); }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  Feed& feed_;
};

inline Feed::Epoch Feed::epoch() { return Epoch(*this); }

}  // namespace api0
}  // namespace tenon

#endif  // TENON_FEED_HPP_
