// SPDX-License-Identifier: Apache-2.0
#include "ipc/message.h"

#include <cstring>

#include "base/error.h"

namespace tenon::impl {
namespace {

[[noreturn]] void throw_damaged(size_t nbytes) {
  throw_error(Code::kValue, "these ", nbytes, " bytes are not a message of a tensor pool");
}

}  // namespace

void throw_gone(MessageStatus why, const char* what, uint32_t sender) {
  const auto text = [&]() -> std::string {
    switch (why) {
      case MessageStatus::kOpened: return "as many processes have opened it as may (opens=)";
      case MessageStatus::kExpired: return "its time limit has passed";
      case MessageStatus::kRevoked: return "its sender has revoked it";
      case MessageStatus::kReceiversGone: return "the processes for which it was have ended";
      case MessageStatus::kSenderGone:
        return concat("process ", sender, ", which sent it, has ended, or has closed its memory");
      default: return "it has ended so long ago that it is not known why";
    }
  };
  const MessageStatus reason = why == MessageStatus::kNone ? MessageStatus::kUnknown : why;
  throw Error(Code::kGone, concat("the ", what, " cannot be opened: ", text()), static_cast<int32_t>(reason));
}

MessageHead ReadMessage::head_of(std::span<const std::byte> bytes) {
  MessageHead head;
  if (bytes.size() < sizeof head) throw_damaged(bytes.size());
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.mark, MessageHead{}.mark, sizeof head.mark) != 0) throw_damaged(bytes.size());
  return head;
}

ReadMessage ReadMessage::read(std::span<const std::byte> bytes) {
  ReadMessage message;
  static_cast<MessageHead&>(message) = head_of(bytes);
  std::span<const std::byte> rest = bytes.subspan(sizeof(MessageHead));
  const auto take = [&](void* to, size_t nbytes) {
    if (rest.size() < nbytes) throw_damaged(bytes.size());
    if (nbytes != 0) std::memcpy(to, rest.data(), nbytes);
    rest = rest.subspan(nbytes);
  };
  // No list is larger than the bytes.
  if (message.segments > rest.size() / sizeof(MessageSegment)) throw_damaged(bytes.size());
  message.list.resize(message.segments);
  take(message.list.data(), message.segments * sizeof(MessageSegment));
  if (message.arrays > rest.size() / sizeof(MessageArray)) throw_damaged(bytes.size());
  message.all.resize(message.arrays);
  message.numbers.resize(rest.size() / sizeof(int64_t));
  int64_t* next = message.numbers.data();
  for (ReadArray& array : message.all) {
    take(static_cast<MessageArray*>(&array), sizeof(MessageArray));
    if (array.ndim < 0 || array.ndim > static_cast<int32_t>(kMostAxes) || array.segment > message.segments)
      throw_damaged(bytes.size());
    const auto n = static_cast<size_t>(array.ndim);
    take(next, 2 * n * sizeof(int64_t));
    array.shape = {next, n};
    array.strides = {next + n, n};
    next += 2 * n;
  }
  if (!rest.empty()) throw_damaged(bytes.size());
  return message;
}

}  // namespace tenon::impl
