// SPDX-License-Identifier: Apache-2.0
//
// plugin.hpp - generators as C++20 classes in a separate shared library; no linking is needed. The macro
// makes the table of plugin.h from the class and converts exceptions to error texts:
//
//     struct Noise {
//       static constexpr bool is_threadsafe = true;
//       static tenon::plugin::Schema schema(const tenon::plugin::Config& config) {
//         const auto rows = config.get<int64_t>("rows", 64);
//         return {tenon::plugin::field<float>("data", {rows, 28, 28}),
//                 tenon::plugin::field<int64_t>("label", {rows})};
//       }
//       explicit Noise(const tenon::plugin::Config& config) : gain_(config.get<float>("gain")) {}
//       void operator()(const tenon::plugin::Request& request, tenon::plugin::View<float, 3> data,
//                       tenon::plugin::View<int64_t, 1> label);
//     };
//     TENON_PLUGIN(Noise)
//
// Each worker has its own object, which is made before its first batch and used by one thread at a time. The
// class may have
//   - static Schema schema() or schema(const Config&): the fields; without it the user must give a schema;
//   - a constructor that takes const Setup&, const Config& or nothing;
//   - is_threadsafe = true: several objects may run at the same time. Otherwise there is one worker.
//   - is_indexed = true: a batch depends only on its index, seed and epoch, and not on the batches before it;
//   - std::string save() const and void restore(std::string_view): the state after the last batch, with
//     which a feed continues, maybe in another process.
// Its operator() takes the request and a view for each field, in order. Dtypes and numbers of axes are
// checked when the object is made. It returns void, or an int32_t: see tenon_fill_function.
#ifndef TENON_PLUGIN_HPP_
#define TENON_PLUGIN_HPP_

#include <array>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tenon/plugin.h"

// Element access is checked unless NDEBUG is defined.
#ifdef NDEBUG
#define TENON_CHECKED_VIEWS false
#else
#define TENON_CHECKED_VIEWS true
#endif

namespace tenon {
inline namespace api0 {
namespace plugin {

// ------------------------------------------------------------------------------ configuration

// The configuration that the user gave. Members throw std::runtime_error with the name of the key.
class Config {
 public:
  explicit Config(std::string text) : text_(std::move(text)) {}

  // The text of the JSON object, for a JSON library.
  const std::string& text() const noexcept { return text_; }
  bool has(const std::string& key) const noexcept { return at(key) != nullptr; }

  // T: an integer, float, double, bool or std::string.
  template <class T>
  std::optional<T> find(const std::string& key) const {
    T value{};
    const int found = read(key, value);
    if (found < 0) {
      const char* const begin = at(key);
      throw std::runtime_error("configuration: '" + key + "' is " +
                               std::string(begin, tenon_plugin_past_value(begin)) + ", not " + kind<T>());
    }
    if (found == 0) return std::nullopt;
    return value;
  }
  template <class T>
  T get(const std::string& key) const {
    if (std::optional<T> value = find<T>(key)) return *std::move(value);
    throw std::runtime_error("configuration: '" + key + "' is missing");
  }
  template <class T>
  T get(const std::string& key, T otherwise) const {
    return find<T>(key).value_or(std::move(otherwise));
  }

 private:
  const char* at(const std::string& key) const noexcept {
    return tenon_plugin_find(text_.c_str(), key.c_str());
  }

  template <class T>
  static std::string kind() {
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    if constexpr (std::is_same_v<T, std::string>) return "a string";
    if constexpr (std::is_floating_point_v<T>) return "a number";
    if constexpr (std::is_integral_v<T>) {
      return "an integer from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
             std::to_string(std::numeric_limits<T>::max());
    }
  }

  int read(const std::string& key, std::string& value) const {
    value.resize(text_.size() + 1);  // no string of the text is longer than the text
    const int found = tenon_plugin_string(text_.c_str(), key.c_str(), value.data(), value.size());
    value.resize(found == 1 ? std::string_view(value.c_str()).size() : 0);
    return found;
  }
  int read(const std::string& key, bool& value) const {
    int number = 0;
    const int found = tenon_plugin_boolean(text_.c_str(), key.c_str(), &number);
    value = number != 0;
    return found;
  }
  template <std::floating_point T>
  int read(const std::string& key, T& value) const {
    double number = 0;
    const int found = tenon_plugin_number(text_.c_str(), key.c_str(), &number);
    value = static_cast<T>(number);
    return found;
  }
  template <std::integral T>
  int read(const std::string& key, T& value) const {
    int64_t number = 0;
    const int found = tenon_plugin_integer(text_.c_str(), key.c_str(), &number);
    if (found == 1 && !std::in_range<T>(number)) return -1;
    value = static_cast<T>(number);
    return found;
  }

  std::string text_;
};

// ------------------------------------------------------------------------------------- fields

namespace detail {

template <class T>
constexpr const char* integer_name() {
  constexpr std::array names{"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"};
  constexpr size_t place = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return names[place + (std::is_unsigned_v<T> ? 4 : 0)];
}

}  // namespace detail

// The dtype of a C++ type. Specialize it for your own 16-bit float.
template <class T>
struct DTypeName;
template <std::integral T>
struct DTypeName<T> {
  static constexpr const char* value = detail::integer_name<T>();
};
template <>
struct DTypeName<bool> {
  static constexpr const char* value = "bool";
};
template <>
struct DTypeName<float> {
  static constexpr const char* value = "float32";
};
template <>
struct DTypeName<double> {
  static constexpr const char* value = "float64";
};
template <>
struct DTypeName<std::complex<float>> {
  static constexpr const char* value = "complex64";
};
template <>
struct DTypeName<std::complex<double>> {
  static constexpr const char* value = "complex128";
};

struct Field {
  std::string name;
  std::string dtype;           // long name: "float32", "bfloat16", ...
  std::vector<int64_t> shape;  // axis 0 counts the rows of the batch
};

using Schema = std::vector<Field>;

template <class T>
Field field(std::string name, std::vector<int64_t> shape) {
  return {std::move(name), DTypeName<T>::value, std::move(shape)};
}

// The elements of a field, in C order, for writing. With Checked, an index out of range throws
// std::out_of_range. Valid only during the call.
template <class T, size_t N, bool Checked = TENON_CHECKED_VIEWS>
class View {
 public:
  static_assert(N >= 1 && !std::is_const_v<T>, "fields have axes and are written");
  using value_type = T;
  static constexpr size_t ndim = N;

  View(void* data, const int64_t* shape) noexcept : data_(static_cast<T*>(data)) {
    for (size_t i = N; i-- > 0;) {
      shape_[i] = shape[i];
      strides_[i] = i + 1 == N ? 1 : strides_[i + 1] * shape_[i + 1];
    }
  }

  template <class... I>
    requires(sizeof...(I) == N && (std::is_convertible_v<I, int64_t> && ...))
  T& operator()(I... indices) const noexcept(!Checked) {
    const std::array<int64_t, N> at{static_cast<int64_t>(indices)...};
    int64_t offset = 0;
    for (size_t i = 0; i < N; ++i) {
      if constexpr (Checked) check_index(i, at[i]);
      offset += at[i] * strides_[i];
    }
    return data_[offset];
  }

  const std::array<int64_t, N>& shape() const noexcept { return shape_; }
  int64_t shape(size_t axis) const { return shape_.at(axis); }
  int64_t size() const noexcept { return shape_[0] * strides_[0]; }
  T* data() const noexcept { return data_; }
  std::span<T> span() const noexcept { return {data_, static_cast<size_t>(size())}; }
  // One row of the batch.
  std::span<T> row(int64_t i) const noexcept(!Checked) {
    if constexpr (Checked) check_index(0, i);
    return {data_ + i * strides_[0], static_cast<size_t>(strides_[0])};
  }

 private:
  void check_index(size_t axis, int64_t at) const {
    if (at >= 0 && at < shape_[axis]) return;
    throw std::out_of_range("index " + std::to_string(at) + " is outside of axis " + std::to_string(axis) +
                            " of " + std::to_string(shape_[axis]) + " elements");
  }

  T* data_;
  std::array<int64_t, N> shape_{};
  std::array<int64_t, N> strides_{};  // in elements
};

// --------------------------------------------------------------------------------- generators

// The argument of a constructor. Valid as long as the object.
struct Setup {
  const Config& config;
  int32_t worker;  // counts from 0
  uint64_t seed;   // of the feed
  std::span<const tenon_plugin_field> fields;
};

using Request = tenon_fill_request;  // see tenon/request.h

namespace detail {

template <class Method>
struct Signature;
template <class Result, class Generator, class... Views>
struct Signature<Result (Generator::*)(const Request&, Views...)> {
  using Tuple = std::tuple<std::remove_cvref_t<Views>...>;
};
template <class Result, class Generator, class... Views>
struct Signature<Result (Generator::*)(const Request&, Views...) const>
    : Signature<Result (Generator::*)(const Request&, Views...)> {};
template <class Result, class Generator, class... Views>
struct Signature<Result (Generator::*)(const Request&, Views...) noexcept>
    : Signature<Result (Generator::*)(const Request&, Views...)> {};
template <class Result, class Generator, class... Views>
struct Signature<Result (Generator::*)(const Request&, Views...) const noexcept>
    : Signature<Result (Generator::*)(const Request&, Views...)> {};

template <class Generator>
concept DescribesItself = requires { Generator::schema(); };
template <class Generator>
concept DescribesItsConfig = requires(const Config& config) { Generator::schema(config); };
template <class Generator>
inline constexpr bool describes = DescribesItself<Generator> || DescribesItsConfig<Generator>;

template <class Generator>
constexpr bool is_threadsafe() {
  if constexpr (requires { Generator::is_threadsafe; }) return Generator::is_threadsafe;
  return false;
}

template <class Generator>
constexpr bool is_indexed() {
  if constexpr (requires { Generator::is_indexed; }) return Generator::is_indexed;
  return false;
}

template <class Generator>
inline constexpr bool has_state =
    requires(Generator& generator, const Generator& saved, std::string_view bytes) {
      { saved.save() } -> std::convertible_to<std::string>;
      generator.restore(bytes);
    };

// Runs body and converts an exception to a code and a text. It throws nothing, but passes the unwinding of
// pthread_exit on, which has no exception object: a handler that stops it would end the process.
template <class Body>
int32_t guarded(char* message, size_t message_size, Body&& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    std::snprintf(message, message_size, "%s", e.what());
  } catch (...) {
    if (std::current_exception() == nullptr) throw;
    std::snprintf(message, message_size, "unknown exception");
  }
  return -1;
}

inline std::string field_text(const tenon_plugin_field& field) {
  std::string text = "field '" + std::string(field.name) + "' is " + field.dtype + " (";
  for (int32_t i = 0; i < field.ndim; ++i) text += (i > 0 ? ", " : "") + std::to_string(field.shape[i]);
  return text + (field.ndim == 1 ? ",)" : ")");
}

// One state of the plug-in: the object and the data from which it was made. A state that is only described
// has no object.
template <class Generator>
class State {
  using Views = typename Signature<decltype(&Generator::operator())>::Tuple;
  static constexpr size_t kViews = std::tuple_size_v<Views>;

 public:
  explicit State(const tenon_plugin_setup& setup)
      : config_(setup.config), setup_{config_, setup.worker, setup.seed, {}} {
    if constexpr (DescribesItsConfig<Generator>) {
      schema_ = Generator::schema(std::as_const(config_));
    } else if constexpr (DescribesItself<Generator>) {
      schema_ = Generator::schema();
    }
    for (const Field& f : schema_) {
      described_.push_back(
          {f.name.c_str(), f.dtype.c_str(), static_cast<int32_t>(f.shape.size()), f.shape.data()});
    }
    setup_.fields = setup.fields != nullptr ? std::span(setup.fields, static_cast<size_t>(setup.n_fields))
                                            : std::span<const tenon_plugin_field>(described_);
    check_fields(std::make_index_sequence<kViews>());
    if (setup.worker >= 0) make();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::span<const tenon_plugin_field> described() const noexcept { return described_; }

  int32_t fill(const Request& request) { return fill(request, std::make_index_sequence<kViews>()); }
  Generator& generator() noexcept { return *generator_; }

 private:
  template <size_t... I>
  void check_fields(std::index_sequence<I...>) const {
    if (setup_.fields.size() != kViews) {
      throw std::runtime_error("operator() takes " + std::to_string(kViews) + " views, but the batch has " +
                               std::to_string(setup_.fields.size()) + " fields");
    }
    (check_field<std::tuple_element_t<I, Views>>(setup_.fields[I]), ...);
  }

  template <class View>
  void check_field(const tenon_plugin_field& given) const {
    const char* const dtype = DTypeName<typename View::value_type>::value;
    if (given.ndim == static_cast<int32_t>(View::ndim) && given.dtype == std::string_view(dtype)) return;
    throw std::runtime_error(field_text(given) + ", but operator() takes a view of " + dtype + " with " +
                             std::to_string(View::ndim) + (View::ndim == 1 ? " axis" : " axes"));
  }

  void make() {
    if constexpr (std::is_constructible_v<Generator, const Setup&>) {
      generator_.emplace(std::as_const(setup_));
    } else if constexpr (std::is_constructible_v<Generator, const Config&>) {
      generator_.emplace(std::as_const(config_));
    } else {
      static_assert(std::is_default_constructible_v<Generator>,
                    "the class needs a constructor that takes a Setup, a Config or nothing");
      generator_.emplace();
    }
  }

  template <size_t... I>
  int32_t fill(const Request& request, std::index_sequence<I...>) {
    const auto run = [&] {
      return (*generator_)(request,
                           std::tuple_element_t<I, Views>(request.fields[I], setup_.fields[I].shape)...);
    };
    if constexpr (std::is_void_v<decltype(run())>) {
      run();
      return 0;
    } else {
      return run();
    }
  }

  const Config config_;
  Schema schema_;
  std::vector<tenon_plugin_field> described_;
  Setup setup_;
  std::optional<Generator> generator_;
};

template <class Generator>
int32_t open(const tenon_plugin_setup* setup, void** state, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    *state = std::make_unique<State<Generator>>(*setup).release();
    return 0;
  });
}

template <class Generator>
int32_t describe(void* state, const tenon_plugin_field** fields, int32_t* n_fields, char*, size_t) {
  const auto described = static_cast<State<Generator>*>(state)->described();
  *fields = described.data();
  *n_fields = static_cast<int32_t>(described.size());
  return 0;
}

template <class Generator>
int32_t fill(void* state, const Request* request, char* message, size_t message_size) {
  return guarded(message, message_size,
                 [&] { return static_cast<State<Generator>*>(state)->fill(*request); });
}

template <class Generator>
int32_t save(void* state, void* bytes, uint64_t size, uint64_t* nbytes, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const std::string saved = std::as_const(static_cast<State<Generator>*>(state)->generator()).save();
    *nbytes = saved.size();
    if (saved.size() <= size) saved.copy(static_cast<char*>(bytes), saved.size());
    return 0;
  });
}

template <class Generator>
int32_t restore(void* state, const void* bytes, uint64_t nbytes, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    static_cast<State<Generator>*>(state)->generator().restore(
        std::string_view(static_cast<const char*>(bytes), nbytes));
    return 0;
  });
}

template <class Generator>
void close(void* state) {
  delete static_cast<State<Generator>*>(state);
}

template <class Generator>
constexpr tenon_plugin table(const char* name) {
  tenon_plugin made{sizeof(tenon_plugin),
                    TENON_PLUGIN_ABI,
                    (is_threadsafe<Generator>() ? uint32_t{TENON_PLUGIN_THREADSAFE} : 0) |
                        (is_indexed<Generator>() ? uint32_t{TENON_PLUGIN_IS_INDEXED} : 0),
                    0,
                    name,
                    open<Generator>,
                    describes<Generator> ? describe<Generator> : nullptr,
                    fill<Generator>,
                    close<Generator>,
                    nullptr,
                    nullptr};
  if constexpr (has_state<Generator>) {
    made.save = save<Generator>;
    made.restore = restore<Generator>;
  }
  return made;
}

}  // namespace detail
}  // namespace plugin
}  // namespace api0
}  // namespace tenon

// Makes this library a plug-in that runs the class. Use it once, outside of all namespaces.
#define TENON_PLUGIN(Generator)                                                                  \
  extern "C" TENON_PLUGIN_EXPORT const tenon_plugin* tenon_plugin_table(void) {                  \
    static constexpr tenon_plugin table = ::tenon::plugin::detail::table<Generator>(#Generator); \
    return &table;                                                                               \
  }

#endif  // TENON_PLUGIN_HPP_
