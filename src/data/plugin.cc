// SPDX-License-Identifier: Apache-2.0
#include "data/plugin.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fork_mark.h"
#include "base/json.h"
#include "base/text.h"
#include "data/generator_call.h"
#include "data/library.h"
#include "sync/actor.h"

namespace tenon::impl {
namespace {

// The size of the buffer for error texts.
constexpr size_t kPluginMessageSize = 512;
// A description with more fields than this is a mistake.
constexpr int32_t kMostFields = 1024;

// Copies the whole characters that fit.
void put(std::string_view text, char* out, size_t size) {
  size_t n = std::min(text.size(), size - 1);
  while (n < text.size() && n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  *std::copy_n(text.data(), n, out) = '\0';
}

// A buffer for the error text of a plug-in.
class Message {
 public:
  char* data() noexcept { return text_; }
  static constexpr size_t size() noexcept { return kPluginMessageSize; }
  std::string text() const { return readable(text_); }

 private:
  char text_[kPluginMessageSize] = "";
};

// What fill of a plug-in of version 1 gets.
struct RequestOfVersion1 {
  uint32_t struct_size;
  int32_t worker;
  uint64_t index;
  uint64_t epoch;
  uint64_t seed;
  int64_t rows;
  void* const* fields;
  int32_t n_fields;
  int32_t reserved;
};
using FillOfVersion1 = int32_t (*)(void* state, const RequestOfVersion1* request, char* message,
                                   size_t message_size);

// The fields of a schema as plug-ins see them. Valid as long as the schema.
class PluginFields {
 public:
  explicit PluginFields(const Schema& schema) {
    for (const SchemaField& field : schema.fields()) dtypes_.push_back(field.dtype.name());
    for (size_t i = 0; i < dtypes_.size(); ++i) {
      const SchemaField& field = schema.fields()[i];
      fields_.push_back({field.name.c_str(), dtypes_[i].c_str(), static_cast<int32_t>(field.shape.size()),
                         field.shape.data()});
    }
  }
  const std::vector<tenon_plugin_field>& get() const noexcept { return fields_; }

 private:
  std::vector<std::string> dtypes_;
  std::vector<tenon_plugin_field> fields_;
};

std::string field_text(const SchemaField& field) {
  return concat(field.name, " ", field.dtype.name(), " ", shape_text(field.shape));
}

std::string fields_text(const Schema& schema) {
  std::string text;
  for (const SchemaField& field : schema.fields()) text += (text.empty() ? "" : ", ") + field_text(field);
  return text;
}

bool are_equal(const Schema& a, const Schema& b) {
  return std::ranges::equal(a.fields(), b.fields(), [](const SchemaField& x, const SchemaField& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape;
  });
}

// One open state of a plug-in. One thread at a time uses it, between try_take() and give().
class PluginState {
 public:
  // fields: null if the schema is not known yet. All arguments must outlive the state. Fails with kOp.
  PluginState(const PluginTable& table, int32_t worker, uint64_t seed, const char* config,
              const PluginFields* fields)
      : table_(table) {
    setup_.struct_size = sizeof setup_;
    setup_.worker = worker;
    setup_.seed = seed;
    setup_.config = config;
    if (fields != nullptr) {
      setup_.fields = fields->get().data();
      setup_.n_fields = static_cast<int32_t>(fields->get().size());
    }
    Message message;
    const int32_t code =
        call_entry(message, [&] { return table_->open(&setup_, &state_, message.data(), Message::size()); });
    if (code != 0) fail("open", code, message);
  }
  PluginState(const PluginState&) = delete;
  PluginState& operator=(const PluginState&) = delete;
  ~PluginState() {
    // In a forked child the state belongs to the parent: its files, threads and locks must not be used.
    if (process_.is_child()) return;
    Message message;
    (void)call_entry(message, [this] { return table_->close(state_), 0; });
  }

  int32_t worker() const noexcept { return setup_.worker; }
  bool is_of_parent() const noexcept { return process_.is_child(); }

  // Fails with kOp, and with kValue and kType for fields that a batch cannot have.
  Ref<Schema> describe() {
    const tenon_plugin_field* fields = nullptr;
    int32_t n = 0;
    Message message;
    const int32_t code = call_entry(
        message, [&] { return table_->describe(state_, &fields, &n, message.data(), Message::size()); });
    if (code != 0) fail("describe", code, message);
    if (n < 1 || n > kMostFields || fields == nullptr) {
      throw_error(Code::kValue, "plug-in '", table_.name(), "' describes ", n, " fields",
                  fields == nullptr ? " in no list" : "");
    }
    std::vector<tenon_field> described;
    try {
      for (const tenon_plugin_field& field : std::span(fields, static_cast<size_t>(n))) {
        if (field.name == nullptr || field.dtype == nullptr || field.shape == nullptr) {
          throw_error(Code::kValue, "field ", described.size(), " has no ",
                      field.name == nullptr    ? "name"
                      : field.dtype == nullptr ? "dtype"
                                               : "shape");
        }
        described.push_back({field.name, dtype_from_name(field.dtype), field.ndim, field.shape});
      }
      return Schema::make(described);
    } catch (const Error& e) {
      throw_error(e.code(), "plug-in '", table_.name(), "' describes an invalid batch: ", readable(e.what()));
    }
  }

  int32_t fill(const tenon_fill_request& request, char* text, size_t text_size) {
    if (!table_.has_state()) return call_fill(request, text, text_size);
    if (!first_) {
      std::vector<std::byte> first(request.state_size);
      first.resize(save(first.data(), first.size()));
      first_ = std::move(first);
    }
    if ((request.flags & TENON_RESTORE_START) != 0) restore(first_->data(), first_->size());
    if ((request.flags & TENON_RESTORE_STATE) != 0) restore(request.state, request.restore_nbytes);
    const int32_t code = call_fill(request, text, text_size);
    try {
      *request.state_nbytes = save(request.state, request.state_size);
    } catch (const Error&) {
      if (code == 0) throw;  // else the failure of fill tells more
    }
    return code;
  }

  // False: a call uses it.
  bool try_take() noexcept {
    // pairs with: PluginState::give, "a state that no call uses"
    return !is_taken_.exchange(true, std::memory_order_acquire);
  }
  void give() noexcept {
    // pairs with: PluginState::try_take, "a state that no call uses"
    is_taken_.store(false, std::memory_order_release);
  }

  PluginState* next = nullptr;  // constant once the state is in a list

 private:
  int32_t call_fill(const tenon_fill_request& request, char* text, size_t text_size) {
    Message message;
    const int32_t code = call_entry(message, [&] {
      if (table_->abi != 1) return table_->fill(state_, &request, message.data(), Message::size());
      const RequestOfVersion1 old{sizeof old,     request.worker,  request.index,
                                  request.epoch,  request.seed,    request.rows,
                                  request.fields, setup_.n_fields, 0};
      const auto fill = reinterpret_cast<FillOfVersion1>(table_->fill);
      return fill(state_, &old, message.data(), Message::size());
    });
    if (code != 0) put(message.text(), text, text_size);
    return code;
  }

  // The size of the state.
  uint64_t save(void* bytes, uint64_t size) {
    uint64_t nbytes = 0;
    Message message;
    const int32_t code = call_entry(
        message, [&] { return table_->save(state_, bytes, size, &nbytes, message.data(), Message::size()); });
    if (code != 0) fail("save", code, message);
    if (nbytes > size) {
      throw_error(Code::kValue, "the state of plug-in '", table_.name(), "' has ", nbytes,
                  " bytes where there is room for ", size, ": make the feed with state_nbytes=", nbytes);
    }
    return nbytes;
  }

  void restore(const void* bytes, uint64_t nbytes) {
    Message message;
    const int32_t code = call_entry(
        message, [&] { return table_->restore(state_, bytes, nbytes, message.data(), Message::size()); });
    if (code != 0) fail("restore", code, message);
  }

  // Calls a function of the table.
  template <class Call>
  int32_t call_entry(Message& message, Call call) {
    return call_checked(message.data(), Message::size(), call, [this] {
      if (!this_thread.may_end) end_process("plug-in", table_.name().c_str());
    });
  }

  [[noreturn]] void fail(const char* entry, int32_t code, const Message& message) const {
    throw Error(
        Code::kOp,
        concat(entry, " of plug-in '", table_.name(), "'",
               setup_.worker >= 0 ? concat(" for worker ", setup_.worker) : std::string(), " ",
               failed_text(code, message.text().c_str()), message.text().empty() ? "" : ": ", message.text()),
        code);
  }

  const PluginTable& table_;
  const ForkMark process_;
  tenon_plugin_setup setup_{};
  void* state_ = nullptr;
  std::optional<std::vector<std::byte>> first_;  // what save has written before the first fill
  std::atomic<bool> is_taken_{true};             // by the thread that opens it
};

struct StateTurn {
  PluginState& state;
  ~StateTurn() { state.give(); }
};

// The context of the generator. Threads: workers share it. A worker's number is used by one thread at a time,
// and by others whose call hangs: each of them has a state.
class PluginGenerator {
 public:
  PluginGenerator(PluginTable table, const char* config, uint64_t seed, Ref<Schema> schema)
      : table_(std::move(table)),
        config_(config),
        seed_(seed),
        schema_(std::move(schema)),
        fields_(*schema_) {}
  PluginGenerator(const PluginGenerator&) = delete;
  PluginGenerator& operator=(const PluginGenerator&) = delete;
  ~PluginGenerator() {
    // pairs with: PluginGenerator::take_state, "a state is open"
    for (PluginState* state = states_.load(std::memory_order_acquire); state != nullptr;) {
      delete std::exchange(state, state->next);
    }
  }

  const char* name() const noexcept { return table_.name().c_str(); }

  int32_t fill(const tenon_fill_request& request, char* message, size_t message_size) {
    int32_t code = -1;
    try {
      const StateTurn turn{take_state(request.worker)};
      return turn.state.fill(request, message, message_size);
    } catch (const Error& e) {
      if (e.op_code() != 0) code = e.op_code();
      put(e.what(), message, message_size);
    } catch (const std::exception& e) {
      put(e.what(), message, message_size);
    }
    return code;
  }

 private:
  PluginState& take_state(int32_t worker) {
    // pairs with: PluginGenerator::take_state, "a state is open"
    for (PluginState* s = states_.load(std::memory_order_acquire); s != nullptr; s = s->next) {
      if (s->worker() == worker && !s->is_of_parent() && s->try_take()) return *s;
    }
    auto state = std::make_unique<PluginState>(table_, worker, seed_, config_.c_str(), &fields_);
    if (table_->describe != nullptr) {
      if (const Ref<Schema> now = state->describe(); !are_equal(*now, *schema_)) {
        throw_error(Code::kValue, "plug-in '", table_.name(), "' describes itself for worker ", worker,
                    " as ", fields_text(*now), ", but the feed was made for ", fields_text(*schema_));
      }
    }
    state->next = states_.load(std::memory_order_relaxed);
    // pairs with: PluginGenerator::take_state, "a state is open"
    while (!states_.compare_exchange_weak(state->next, state.get(), std::memory_order_release,
                                          std::memory_order_relaxed)) {
    }
    return *state.release();
  }

  // Constant after construction.
  const PluginTable table_;
  const std::string config_;
  const uint64_t seed_;
  const Ref<Schema> schema_;
  const PluginFields fields_;

  std::atomic<PluginState*> states_{nullptr};  // shared: a list that only grows, so that no fill waits
};

std::string file_name(std::string_view path) { return std::string(path.substr(path.rfind('/') + 1)); }

}  // namespace

PluginTable PluginTable::load(const char* path) {
  void* const symbol = find_symbol(open_library(path), path, "tenon_plugin_table");
  const tenon_plugin* const table = reinterpret_cast<decltype(tenon_plugin_table)*>(symbol)();
  const auto refuse = [path](const auto&... reason) {
    throw_error(Code::kValue, "plug-in '", path, "': ", reason...);
  };
  if (table == nullptr) refuse("tenon_plugin_table() returned NULL");
  if (table->abi < 1 || table->abi > TENON_PLUGIN_ABI) {
    refuse("its ABI is ", table->abi, ", this library's is ", TENON_PLUGIN_ABI,
           ": compile it with the tenon/plugin.h of this version");
  }
  const size_t least = table->abi < 3 ? offsetof(tenon_plugin, save) : sizeof(tenon_plugin);
  if (table->struct_size < least) {
    refuse("struct_size of its table is ", table->struct_size, ", at least ", least, " is needed");
  }
  const uint32_t flags = TENON_PLUGIN_THREADSAFE | (table->abi < 3 ? 0 : TENON_PLUGIN_IS_INDEXED);
  if ((table->flags & ~flags) != 0) refuse("its table has unknown flags: ", table->flags);
  for (const auto& [entry, is_there] :
       {std::pair("open", table->open != nullptr), std::pair("fill", table->fill != nullptr),
        std::pair("close", table->close != nullptr)}) {
    if (!is_there) refuse(entry, " is NULL in its table");
  }
  tenon_plugin known{};
  std::memcpy(&known, table, least);
  if ((known.save == nullptr) != (known.restore == nullptr)) {
    refuse("its table has ", known.save != nullptr ? "save without restore" : "restore without save");
  }
  return {known, table->name != nullptr ? readable(table->name) : file_name(path)};
}

OpenedPlugin open_plugin(const PluginTable& table, const char* config, uint64_t seed, Ref<Schema> schema) {
  if (config == nullptr) config = "{}";
  if (!is_json_object(config)) {
    throw_error(Code::kValue, "plug-in '", table.name(),
                "': the configuration is not a JSON object: ", config);
  }
  if (table->describe == nullptr && !schema) {
    throw_error(Code::kValue, "plug-in '", table.name(), "' does not describe its fields: give a schema");
  }
  if (table->describe != nullptr) {
    const auto fields = schema ? std::make_unique<PluginFields>(*schema) : nullptr;
    PluginState state(table, -1, seed, config, fields.get());
    Ref<Schema> described = state.describe();
    if (schema && !are_equal(*schema, *described)) {
      throw_error(Code::kValue, "plug-in '", table.name(), "' fills ", fields_text(*described),
                  ", but the schema is ", fields_text(*schema));
    }
    schema = std::move(described);
  }
  auto context = std::make_unique<PluginGenerator>(table, config, seed, schema);
  tenon_generator generator{};
  generator.struct_size = sizeof generator;
  generator.flags = table.flags();
  generator.fill = [](void* self, const tenon_fill_request* request, char* message, size_t message_size) {
    return static_cast<PluginGenerator*>(self)->fill(*request, message, message_size);
  };
  generator.drop = [](void* self) { delete static_cast<PluginGenerator*>(self); };
  generator.leave = [](void* self, int32_t) { delete static_cast<PluginGenerator*>(self); };
  generator.name = context->name();
  generator.context = context.release();
  return {std::move(schema), generator};
}

}  // namespace tenon::impl
