// SPDX-License-Identifier: Apache-2.0
//
// An object is a tag and what follows it. A count or a number is a varint: seven bits a byte, the lowest
// first. Objects that can be met twice are numbered from 0: mutable containers, texts and bytes where they
// begin, tuples and frozensets where they end.
//
//   N T F          None, True, False         l t e z  n, then n objects: list, tuple, set, frozenset
//   i  zigzag      int of 64 bits            d        n, then n keys and values
//   I  n, n bytes  int, two's complement     r        the number of an object before
//   f  8 bytes     float                     x        the number of a leaf
//   c  16 bytes    complex
//   s S b B  n, n bytes: str in UTF-8, str with lone surrogates, bytes, bytearray
//   y  the number of an array that the caller carries
//   A  NumPy's number of the type, number of axes, shape, elements: an array of NumPy
//   a  NumPy's number of the type, the element: a scalar of NumPy
#include "message_format.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "numpy_inline.h"

namespace tenon::python {
namespace {

constexpr int kMostLevels = 1000;

// ----------------------------------------------------------------------------------------- writing

// Bytes that grow. Small ones need no memory of their own.
class Bytes {
 public:
  Bytes() noexcept : data_(small_) {}
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() {
    if (data_ != small_) PyMem_Free(data_);
  }

  char* more(size_t n) {
    if (capacity_ - size_ < n) grow(n);
    char* const begin = data_ + size_;
    size_ += n;
    return begin;
  }
  void put(char tag) { *more(1) = tag; }
  void put(const void* data, size_t n) { std::memcpy(more(n), data, n); }
  void put_number(uint64_t value) {
    while (value >= 0x80) {
      put(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    put(static_cast<char>(value));
  }
  std::string_view view() const noexcept { return {data_, size_}; }
  nb::bytes to_python() const { return nb::bytes(data_, size_); }

 private:
  void grow(size_t n) {
    const size_t wanted = std::max(2 * capacity_, size_ + n);
    const bool is_small = data_ == small_;
    void* const memory = PyMem_Realloc(is_small ? nullptr : data_, wanted);
    if (memory == nullptr) throw std::bad_alloc();
    if (is_small) std::memcpy(memory, small_, size_);
    data_ = static_cast<char*>(memory);
    capacity_ = wanted;
  }

  char small_[512];
  char* data_;
  size_t size_ = 0;
  size_t capacity_ = 512;
};

// The numbers of objects, by address. Keeps the objects, so that no other one gets the address.
class Numbers {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kOpen = UINT32_MAX - 1;  // a tuple or frozenset whose items are being written

  Numbers() noexcept : slots_(small_.data()) {}
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  ~Numbers() {
    for (size_t i = 0; i <= mask_; ++i) Py_XDECREF(slots_[i].object);
  }

  uint32_t find(PyObject* object) const noexcept {
    const Slot& found = slot(object);
    return found.object == nullptr ? kNone : found.number;
  }
  void set(PyObject* object, uint32_t number) {
    Slot* found = &slot(object);
    if (found->object == nullptr) {
      if (2 * ++n_ > mask_) {
        grow();
        found = &slot(object);
      }
      found->object = Py_NewRef(object);
    }
    found->number = number;
  }

 private:
  struct Slot {
    PyObject* object = nullptr;
    uint32_t number = 0;
  };

  Slot& slot(PyObject* object) const noexcept {
    const auto address = reinterpret_cast<uintptr_t>(object);
    size_t at = (address >> 4) * 0x9E3779B97F4A7C15U >> 20;
    while (true) {
      Slot& one = slots_[at & mask_];
      if (one.object == nullptr || one.object == object) return one;
      ++at;
    }
  }
  void grow() {
    std::vector<Slot> fresh(4 * (mask_ + 1));
    Slot* const old = slots_;
    const size_t n_old = mask_ + 1;
    slots_ = fresh.data();
    mask_ = fresh.size() - 1;
    for (size_t i = 0; i < n_old; ++i) {
      if (old[i].object != nullptr) slot(old[i].object) = old[i];
    }
    large_.swap(fresh);
  }

  std::array<Slot, 32> small_;
  std::vector<Slot> large_;
  Slot* slots_;
  size_t mask_ = 31;
  size_t n_ = 0;
};

class Encoder {
 public:
  explicit Encoder(size_t most_inline, const TakeArray* take = nullptr) noexcept
      : most_inline_(most_inline), take_(take) {}

  // False: a cycle goes through a tuple or a frozenset.
  bool write(PyObject* object, int level = 0);
  void write_leaf(PyObject* object);
  PlainObject result() {
    return {bytes_.to_python(), leaves_.is_valid() ? std::move(leaves_) : nb::object(nb::list())};
  }
  std::string_view bytes() const noexcept { return bytes_.view(); }
  bool has_leaves() const noexcept { return leaves_.is_valid(); }

 private:
  void write_int(PyObject* value);
  void write_text(PyObject* text);
  void write_bytes(char tag, PyObject* object, const char* data, Py_ssize_t n) {
    begin(tag, object, n);
    bytes_.put(data, static_cast<size_t>(n));
  }
  bool write_array(PyObject* object);
  bool write_taken(PyObject* object);
  bool write_list(PyObject* list, int level);
  bool write_dict(PyObject* dict, int level);
  bool write_tuple(PyObject* tuple, int level);
  bool write_set(PyObject* set, int level);
  void begin(char tag, PyObject* object, Py_ssize_t n) {
    numbers_.set(object, n_objects_++);
    bytes_.put(tag);
    bytes_.put_number(static_cast<uint64_t>(n));
  }
  // True: the object was written before, or must not be met now.
  bool is_known(PyObject* object, bool* is_cycle) {
    const uint32_t number = numbers_.find(object);
    if (number == Numbers::kNone) return false;
    *is_cycle = number == Numbers::kOpen;
    bytes_.put('r');
    bytes_.put_number(number);
    return true;
  }

  const size_t most_inline_;
  const TakeArray* const take_;
  Bytes bytes_;
  Numbers numbers_;
  nb::object leaves_;  // a list; null: there are none
  std::unique_ptr<Numbers> leaf_numbers_;
  uint32_t n_objects_ = 0;
};

[[noreturn]] void raise_changed() {
  raise(PyExc_RuntimeError, "an object changed its size while a message was made of it");
}

void Encoder::write_leaf(PyObject* object) {
  if (!leaves_.is_valid()) {
    leaves_ = nb::list();
    leaf_numbers_ = std::make_unique<Numbers>();
  }
  uint32_t number = leaf_numbers_->find(object);
  if (number == Numbers::kNone) {
    number = static_cast<uint32_t>(PyList_Size(leaves_.ptr()));
    leaf_numbers_->set(object, number);
    check_python(PyList_Append(leaves_.ptr(), object));
  }
  bytes_.put('x');
  bytes_.put_number(number);
}

bool Encoder::write_array(PyObject* object) {
  InlineArray array;
  if (most_inline_ == 0 || !describe_inline(object, most_inline_, &array)) return false;
  bool is_cycle = false;
  if (is_known(object, &is_cycle)) return true;
  numbers_.set(object, n_objects_++);
  bytes_.put(array.is_scalar ? 'a' : 'A');
  bytes_.put_number(static_cast<uint64_t>(array.type));
  if (!array.is_scalar) bytes_.put_number(static_cast<uint64_t>(array.ndim));
  for (int i = 0; i < array.ndim; ++i) bytes_.put_number(static_cast<uint64_t>(array.shape[i]));
  bytes_.put(array.data, array.nbytes);
  return true;
}

bool Encoder::write_taken(PyObject* object) {
  if (take_ == nullptr) return false;
  bool is_cycle = false;
  if (is_known(object, &is_cycle)) return true;
  const int64_t number = (*take_)(object);
  if (number < 0) return false;
  numbers_.set(object, n_objects_++);
  bytes_.put('y');
  bytes_.put_number(static_cast<uint64_t>(number));
  return true;
}

void Encoder::write_int(PyObject* value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow == 0) {
    bytes_.put('i');
    bytes_.put_number(static_cast<uint64_t>(number) << 1 ^ static_cast<uint64_t>(number >> 63));
    return;
  }
  const nb::handle integer(value);
  const auto n_bits = nb::cast<size_t>(integer.attr("bit_length")());
  const size_t n = n_bits / 8 + 1;
  const nb::object text = integer.attr("to_bytes")(n, "little", nb::arg("signed") = true);
  bytes_.put('I');
  bytes_.put_number(n);
  bytes_.put(PyBytes_AsString(text.ptr()), n);
}

void Encoder::write_text(PyObject* text) {
  Py_ssize_t n = 0;
  if (const char* const data = PyUnicode_AsUTF8AndSize(text, &n); data != nullptr) {
    return write_bytes('s', text, data, n);
  }
  if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) nb::raise_python_error();
  PyErr_Clear();
  const nb::object data = owned(PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"));
  write_bytes('S', text, PyBytes_AsString(data.ptr()), PyBytes_Size(data.ptr()));
}

bool Encoder::write_list(PyObject* list, int level) {
  const Py_ssize_t n = PyList_Size(list);
  begin('l', list, n);
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (i >= PyList_Size(list)) raise_changed();
    const nb::object item = nb::borrow(PyList_GetItem(list, i));
    if (!write(item.ptr(), level + 1)) return false;
  }
  if (PyList_Size(list) != n) raise_changed();
  return true;
}

bool Encoder::write_dict(PyObject* dict, int level) {
  Py_ssize_t n = PyDict_Size(dict);
  begin('d', dict, n);
  Py_ssize_t position = 0;
  PyObject* borrowed_key = nullptr;
  PyObject* borrowed_value = nullptr;
  while (PyDict_Next(dict, &position, &borrowed_key, &borrowed_value) != 0) {
    if (--n < 0) raise_changed();
    const nb::object key = nb::borrow(borrowed_key);
    const nb::object value = nb::borrow(borrowed_value);
    if (!write(key.ptr(), level + 1) || !write(value.ptr(), level + 1)) return false;
  }
  if (n != 0) raise_changed();
  return true;
}

bool Encoder::write_tuple(PyObject* tuple, int level) {
  const Py_ssize_t n = PyTuple_Size(tuple);
  if (n != 0) numbers_.set(tuple, Numbers::kOpen);
  bytes_.put('t');
  bytes_.put_number(static_cast<uint64_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!write(PyTuple_GetItem(tuple, i), level + 1)) return false;
  }
  if (n != 0) numbers_.set(tuple, n_objects_++);
  return true;
}

bool Encoder::write_set(PyObject* set, int level) {
  const bool is_frozen = Py_TYPE(set) == &PyFrozenSet_Type;
  Py_ssize_t n = PySet_Size(set);
  if (is_frozen) {
    numbers_.set(set, Numbers::kOpen);
    bytes_.put('z');
    bytes_.put_number(static_cast<uint64_t>(n));
  } else {
    begin('e', set, n);
  }
  const nb::object iterator = owned(PyObject_GetIter(set));
  while (PyObject* const next = PyIter_Next(iterator.ptr())) {
    const nb::object item = nb::steal(next);
    if (--n < 0) raise_changed();
    if (!write(item.ptr(), level + 1)) return false;
  }
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  if (n != 0) raise_changed();
  if (is_frozen) numbers_.set(set, n_objects_++);
  return true;
}

bool Encoder::write(PyObject* object, int level) {
  PyTypeObject* const type = Py_TYPE(object);
  if (object == Py_None) return bytes_.put('N'), true;
  if (object == Py_True) return bytes_.put('T'), true;
  if (object == Py_False) return bytes_.put('F'), true;
  if (type == &PyLong_Type) return write_int(object), true;
  if (type == &PyFloat_Type) {
    const double value = PyFloat_AsDouble(object);
    bytes_.put('f');
    return bytes_.put(&value, sizeof value), true;
  }
  bool is_cycle = false;
  if (type == &PyUnicode_Type) {
    if (!is_known(object, &is_cycle)) write_text(object);
    return true;
  }
  if (level > kMostLevels) {
    raise(PyExc_RecursionError, "the object is nested deeper than the %d levels that a message can have",
          kMostLevels);
  }
  const bool is_list = type == &PyList_Type;
  const bool is_dict = type == &PyDict_Type;
  const bool is_tuple = type == &PyTuple_Type;
  const bool is_bytes = type == &PyBytes_Type;
  const bool is_bytearray = type == &PyByteArray_Type;
  if (is_list || is_dict || is_tuple || is_bytes || is_bytearray || type == &PySet_Type ||
      type == &PyFrozenSet_Type) {
    if (is_known(object, &is_cycle)) return !is_cycle;
    if (is_list) return write_list(object, level);
    if (is_dict) return write_dict(object, level);
    if (is_tuple) return write_tuple(object, level);
    if (is_bytes) return write_bytes('b', object, PyBytes_AsString(object), PyBytes_Size(object)), true;
    if (is_bytearray)
      return write_bytes('B', object, PyByteArray_AsString(object), PyByteArray_Size(object)), true;
    return write_set(object, level);
  }
  if (type == &PyComplex_Type) {
    const std::array<double, 2> parts = {PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object)};
    bytes_.put('c');
    return bytes_.put(parts.data(), sizeof parts), true;
  }
  if (!write_array(object) && !write_taken(object)) write_leaf(object);
  return true;
}

// ----------------------------------------------------------------------------------------- reading

class Decoder {
 public:
  Decoder(std::string_view data, nb::handle leaves, nb::handle arrays, bool is_writable) noexcept
      : at_(data.data()),
        end_(data.data() + data.size()),
        leaves_(leaves),
        arrays_(arrays),
        is_writable_(is_writable) {}

  nb::object read_all() {
    nb::object object = read(0);
    if (at_ != end_) fail("bytes follow its end");
    return object;
  }

 private:
  [[noreturn]] static void fail(const char* why) {
    raise(PyExc_ValueError, "the bytes are no message of Tenon: %s", why);
  }
  size_t left() const noexcept { return static_cast<size_t>(end_ - at_); }
  const char* take(size_t n) {
    if (n > left()) fail("they end early");
    const char* const begin = at_;
    at_ += n;
    return begin;
  }
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(*take(1));
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number is too large");
  }
  // Of things that take at least so many bytes each.
  size_t count(size_t nbytes_each = 1) {
    const uint64_t n = number();
    if (n > left() / nbytes_each) fail("they end early");
    return static_cast<size_t>(n);
  }
  template <class T>
  T value() {
    T result;
    std::memcpy(&result, take(sizeof result), sizeof result);
    return result;
  }
  nb::object known(nb::object object) {
    known_.push_back(object);
    return object;
  }
  // A function of the C API that fails for what the bytes say.
  static void must(int result) {
    if (result < 0) fail_python();
  }
  static nb::object must(PyObject* object) {
    if (object == nullptr) fail_python();
    return nb::steal(object);
  }
  [[noreturn]] static void fail_python() {
    nb::python_error error;
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError)) throw error;
    fail(error.what());
  }

  nb::object read(int level);
  nb::object read_int();
  nb::object read_text(const char* errors);
  nb::object read_array();
  nb::object read_scalar();
  nb::object read_carried(nb::handle list);
  nb::object read_items(char tag, int level);

  const char* at_;
  const char* end_;
  nb::handle leaves_;
  nb::handle arrays_;
  const bool is_writable_;
  std::vector<nb::object> known_;
};

nb::object Decoder::read_int() {
  const size_t n = count();
  const char* const data = take(n);
  const nb::handle type(reinterpret_cast<PyObject*>(&PyLong_Type));
  return type.attr("from_bytes")(nb::bytes(data, n), "little", nb::arg("signed") = true);
}

nb::object Decoder::read_text(const char* errors) {
  const size_t n = count();
  const char* const data = take(n);
  return known(must(PyUnicode_DecodeUTF8(data, static_cast<Py_ssize_t>(n), errors)));
}

nb::object Decoder::read_array() {
  constexpr uint64_t kMostAxes = 32;
  std::array<int64_t, kMostAxes> shape{};
  const uint64_t type = number();
  const uint64_t ndim = number();
  if (type > kMostAxes || ndim > kMostAxes) fail("an array has no such dtype or shape");
  for (uint64_t i = 0; i < ndim; ++i) shape[static_cast<size_t>(i)] = static_cast<int64_t>(number());
  InlineArray array;
  array.type = static_cast<int>(type);
  array.ndim = static_cast<int>(ndim);
  array.shape = shape.data();
  array.nbytes = inline_nbytes(array.type, array.ndim, array.shape);
  array.data = take(array.nbytes);
  return known(make_inline(array, is_writable_));
}

nb::object Decoder::read_scalar() {
  const uint64_t type = number();
  const size_t nbytes = type < INT_MAX ? inline_nbytes(static_cast<int>(type), 0, nullptr) : SIZE_MAX;
  return known(make_inline_scalar(static_cast<int>(type), take(nbytes)));
}

nb::object Decoder::read_carried(nb::handle list) {
  const uint64_t n = number();
  if (!list.is_valid() || n >= nb::len(list)) fail("they refer to a leaf or array that they do not have");
  return nb::borrow(PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(n)));
}

nb::object Decoder::read_items(char tag, int level) {
  const size_t n = count(tag == 'd' ? 2 : 1);
  if (tag == 'l') {
    nb::object list = known(owned(PyList_New(0)));
    for (size_t i = 0; i < n; ++i) check_python(PyList_Append(list.ptr(), read(level).ptr()));
    return list;
  }
  if (tag == 'd') {
    nb::object dict = known(owned(PyDict_New()));
    for (size_t i = 0; i < n; ++i) {
      const nb::object key = read(level);
      must(PyDict_SetItem(dict.ptr(), key.ptr(), read(level).ptr()));
    }
    return dict;
  }
  if (tag == 't') {
    nb::object tuple = owned(PyTuple_New(static_cast<Py_ssize_t>(n)));
    for (size_t i = 0; i < n; ++i)
      check_python(PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), read(level).release().ptr()));
    return n == 0 ? tuple : known(tuple);
  }
  nb::object set = owned(tag == 'e' ? PySet_New(nullptr) : PyFrozenSet_New(nullptr));
  if (tag == 'e') known(set);
  for (size_t i = 0; i < n; ++i) must(PySet_Add(set.ptr(), read(level).ptr()));
  return tag == 'e' ? set : known(set);
}

nb::object Decoder::read(int level) {
  if (level > kMostLevels + 1) fail("they are nested too deeply");
  const char tag = *take(1);
  switch (tag) {
    case 'N': return nb::none();
    case 'T': return nb::borrow(Py_True);
    case 'F': return nb::borrow(Py_False);
    case 'i': {
      const uint64_t zigzag = number();
      return owned(PyLong_FromLongLong(static_cast<int64_t>(zigzag >> 1 ^ (~(zigzag & 1) + 1))));
    }
    case 'I': return read_int();
    case 'f': return owned(PyFloat_FromDouble(value<double>()));
    case 'c': {
      const auto parts = value<std::array<double, 2>>();
      return owned(PyComplex_FromDoubles(parts[0], parts[1]));
    }
    case 's': return read_text("strict");
    case 'S': return read_text("surrogatepass");
    case 'b':
    case 'B': {
      const size_t n = count();
      const char* const data = take(n);
      const auto size = static_cast<Py_ssize_t>(n);
      return known(owned(tag == 'b' ? PyBytes_FromStringAndSize(data, size)
                                    : PyByteArray_FromStringAndSize(data, size)));
    }
    case 'l':
    case 't':
    case 'd':
    case 'e':
    case 'z': return read_items(tag, level + 1);
    case 'r': {
      const uint64_t n = number();
      if (n >= known_.size()) fail("they refer to an object that they do not have");
      return known_[static_cast<size_t>(n)];
    }
    case 'x': return read_carried(leaves_);
    case 'y': return known(read_carried(arrays_));
    case 'A': return read_array();
    case 'a': return read_scalar();
    default: fail("a tag is unknown");
  }
}

}  // namespace

PlainObject encode_plain(nb::handle object, size_t most_inline) {
  Encoder encoder(most_inline);
  if (encoder.write(object.ptr())) return encoder.result();
  Encoder whole(0);
  whole.write_leaf(object.ptr());
  return whole.result();
}

bool encode_if_plain(nb::handle object, size_t most_inline, const TakeArray& take,
                     const std::function<void(std::string_view)>& use) {
  Encoder encoder(most_inline, &take);
  if (!encoder.write(object.ptr()) || encoder.has_leaves()) return false;
  use(encoder.bytes());
  return true;
}

nb::object decode_plain(std::string_view data, nb::handle leaves, nb::handle arrays, bool is_writable) {
  return Decoder(data, leaves, arrays, is_writable).read_all();
}

void add_message_format(nb::module_& module) {
  module.def(
      "encode_plain",
      [](nb::handle value, size_t inline_nbytes) {
        const PlainObject plain = encode_plain(value, inline_nbytes);
        return nb::make_tuple(plain.bytes, plain.leaves);
      },
      nb::arg("value").none(), nb::arg("inline_nbytes") = 0,
      nb::sig("def encode_plain(value: object, inline_nbytes: int = 0) -> tuple[bytes, list[Any]]"));
  module.def(
      "decode_plain",
      [](nb::handle data, nb::list leaves) {
        const BytesOf bytes(data);
        return decode_plain(bytes.view(), leaves);
      },
      nb::arg("data"), nb::arg("leaves"),
      nb::sig("def decode_plain(data: object, leaves: list[Any]) -> Any"));
}

}  // namespace tenon::python
