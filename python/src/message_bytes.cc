// SPDX-License-Identifier: Apache-2.0
#include "message_bytes.h"

#include <cstring>

namespace tenon::python {
namespace {

constexpr size_t kCodeBytes = sizeof(SipCode);

struct Head {
  char mark[8] = {'T', 'N', 'P', 'Y', 'M', 'S', 'G', '1'};
  uint64_t sizes[kParts] = {};
  uint64_t n_arrays = 0;
};
static_assert(sizeof(Head) == 56);

[[noreturn]] void refuse(const char* why) {
  raise(PyExc_ValueError, "the bytes are no message of Tenon: %s", why);
}

}  // namespace

nb::object join_message(const Message& message, const SipKey& key) {
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
  const SipCode code = siphash(key, {begin, total});
  std::memcpy(at, code.data(), kCodeBytes);
  return joined;
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

void check_code(std::string_view bytes, const SipKey& key) {
  const std::string_view before = bytes.substr(0, bytes.size() - kCodeBytes);
  const SipCode expected = siphash(key, before);
  SipCode found;
  std::memcpy(found.data(), bytes.data() + before.size(), kCodeBytes);
  // In a time that does not depend on the bytes.
  if (((expected[0] ^ found[0]) | (expected[1] ^ found[1])) != 0)
    raise(PyExc_ValueError, "the message was changed on its way, or no process of this user has made it");
}

}  // namespace tenon::python
