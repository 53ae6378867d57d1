// SPDX-License-Identifier: Apache-2.0
#include "message_bytes.h"

#include <cstring>
#include <string>
#include <unordered_map>

namespace tenon::python {
namespace {

constexpr size_t kCodeBytes = 32;

struct Head {
  char mark[8] = {'T', 'N', 'P', 'Y', 'M', 'S', 'G', '1'};
  uint64_t sizes[kParts] = {};
  uint64_t n_arrays = 0;
};
static_assert(sizeof(Head) == 56);

// The code of bytes.
nb::object code_of(std::string_view bytes, nb::handle mac) {
  static Name copy("copy"), update("update"), digest("digest");
  const nb::object hash = owned(PyObject_CallMethodObjArgs(mac.ptr(), copy.get(), nullptr));
  const nb::object view = owned(PyMemoryView_FromMemory(const_cast<char*>(bytes.data()),
                                                        static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ));
  (void)owned(PyObject_CallMethodObjArgs(hash.ptr(), update.get(), view.ptr(), nullptr));
  return owned(PyObject_CallMethodObjArgs(hash.ptr(), digest.get(), nullptr));
}

[[noreturn]] void refuse(const char* why) {
  raise(PyExc_ValueError, "the bytes are no message of Tenon: %s", why);
}

}  // namespace

nb::object keyed_mac(std::string_view key) {
  constexpr size_t kMost = 1000;
  static std::unordered_map<std::string, PyObject*>* const known =
      new std::unordered_map<std::string, PyObject*>;  // under the GIL
  const std::string text(key);
  if (const auto found = known->find(text); found != known->end()) return nb::borrow(found->second);
  nb::object mac = nb::module_::import_("hashlib").attr("blake2b")(
      nb::arg("key") = nb::bytes(key.data(), key.size()), nb::arg("digest_size") = kCodeBytes);
  if (known->size() >= kMost) {
    for (const auto& [name, object] : *known) Py_DECREF(object);
    known->clear();
  }
  known->emplace(text, nb::object(mac).release().ptr());
  return mac;
}

nb::bytes join_message(const Message& message, nb::handle mac) {
  Head head;
  head.n_arrays = message.n_arrays;
  size_t total = sizeof head;
  for (size_t i = 0; i < kParts; ++i) {
    head.sizes[i] = message.parts[i].size();
    total += message.parts[i].size();
  }
  nb::object joined = owned(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(total + kCodeBytes)));
  char* const begin = PyBytes_AsString(joined.ptr());
  std::memcpy(begin, &head, sizeof head);
  char* at = begin + sizeof head;
  for (const std::string_view part : message.parts) at += part.copy(at, part.size());
  const nb::object code = code_of({begin, total}, mac);
  std::memcpy(at, PyBytes_AsString(code.ptr()), kCodeBytes);
  return nb::borrow<nb::bytes>(joined);
}

Message split_message(std::string_view bytes) {
  Head head;
  if (bytes.size() < sizeof head + kCodeBytes) refuse("there are too few of them");
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.mark, Head().mark, sizeof head.mark) != 0) refuse("they begin differently");
  Message message;
  size_t at = sizeof head;
  size_t left = bytes.size() - sizeof head - kCodeBytes;
  for (size_t i = 0; i < kParts; ++i) {
    if (head.sizes[i] > left) refuse("they end early");
    const auto size = static_cast<size_t>(head.sizes[i]);
    message.parts[i] = bytes.substr(at, size);
    at += size;
    left -= size;
  }
  if (left != 0) refuse("bytes follow its end");
  if (head.n_arrays > bytes.size()) refuse("it has too many arrays");
  message.n_arrays = static_cast<uint32_t>(head.n_arrays);
  return message;
}

void check_code(std::string_view bytes, nb::handle mac) {
  const std::string_view before = bytes.substr(0, bytes.size() - kCodeBytes);
  const nb::object code = code_of(before, mac);
  const char* const expected = PyBytes_AsString(code.ptr());
  unsigned char difference = 0;  // in a time that does not depend on the bytes
  for (size_t i = 0; i < kCodeBytes; ++i)
    difference |= static_cast<unsigned char>(expected[i] ^ bytes[before.size() + i]);
  if (difference != 0)
    raise(PyExc_ValueError, "the message was changed on its way, or no process of this user has made it");
}

}  // namespace tenon::python
