// SPDX-License-Identifier: Apache-2.0
#include "ipc/message_table.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace tenon::impl {

uint32_t begin_message(MessageRecord& record, const MessageFacts& facts) noexcept {
  uint32_t generation = MessageWord::generation(record.word.load(std::memory_order_relaxed)) + 1;
  if (generation == 0) generation = 1;
  store(record.until_ns, facts.until_ns);
  store(record.since_ns, facts.since_ns);
  store(record.nbytes, facts.nbytes);
  store(record.sender, facts.sender);
  store(record.keeper, uint64_t{0});
  store(record.keeper_until_ns, int64_t{0});
  store(record.block, facts.block);
  store(record.flags, facts.flags);
  uint64_t site[kSiteWords] = {};
  if (facts.site != nullptr) {
    // The end of a long path says most.
    const size_t n = std::strlen(facts.site), room = sizeof site - 1;
    std::memcpy(site, facts.site + (n > room ? n - room : 0), std::min(n, room));
  }
  for (size_t i = 0; i < kSiteWords; ++i) store(record.site[i], site[i]);
  publish(record.word, MessageWord::make(generation, facts.opens, MessageStatus::kLive));
  return generation;
}

MessageStatus status_of(const MessageRecord& record, uint32_t generation) noexcept {
  const uint64_t word = look(record.word);
  return MessageWord::generation(word) == generation ? MessageWord::status(word) : MessageStatus::kUnknown;
}

MessageStatus open_message(MessageRecord& record, uint32_t generation, int64_t now_ns,
                           bool* is_last) noexcept {
  *is_last = false;
  uint64_t word = look(record.word);
  while (true) {
    if (MessageWord::generation(word) != generation) return MessageStatus::kUnknown;
    if (MessageWord::status(word) != MessageStatus::kLive) return MessageWord::status(word);
    const uint32_t opens = MessageWord::opens(word);
    const int64_t until_ns = record.until_ns.load(std::memory_order_relaxed);
    uint64_t next = word;
    if (until_ns != 0 && until_ns <= now_ns && look(record.keeper) == 0) {
      next = MessageWord::make(generation, opens, MessageStatus::kExpired);
    } else if (opens == 1) {
      next = MessageWord::make(generation, 0, MessageStatus::kOpened);
    } else if (opens != MessageWord::kNoLimit) {
      next = MessageWord::make(generation, opens - 1, MessageStatus::kLive);
    }
    if (next != word && !exchange(record.word, word, next)) continue;
    *is_last = MessageWord::status(next) != MessageStatus::kLive;
    return MessageWord::status(next) == MessageStatus::kExpired ? MessageStatus::kExpired
                                                                : MessageStatus::kLive;
  }
}

bool end_message(MessageRecord& record, uint32_t generation, MessageStatus why) noexcept {
  uint64_t word = look(record.word);
  while (MessageWord::generation(word) == generation && MessageWord::status(word) == MessageStatus::kLive) {
    if (exchange(record.word, word, MessageWord::make(generation, MessageWord::opens(word), why)))
      return true;
  }
  return false;
}

bool keep_message(MessageRecord& record, uint32_t generation, uint64_t keeper, int64_t until_ns) noexcept {
  uint64_t before = look(record.keeper);
  store(record.keeper_until_ns, until_ns);
  do {
    if (status_of(record, generation) != MessageStatus::kLive) return false;
  } while (!exchange(record.keeper, before, keeper));
  if (status_of(record, generation) == MessageStatus::kLive) return true;
  drop_message(record, keeper);  // the record may have another message now
  return false;
}

void drop_message(MessageRecord& record, uint64_t keeper) noexcept {
  (void)exchange(record.keeper, keeper, uint64_t{0});
}

bool set_opens(MessageRecord& record, uint32_t generation, uint32_t opens) noexcept {
  uint64_t word = look(record.word);
  while (MessageWord::generation(word) == generation && MessageWord::status(word) == MessageStatus::kLive) {
    if (exchange(record.word, word, MessageWord::make(generation, opens, MessageStatus::kLive))) return true;
  }
  return false;
}

bool add_open(MessageRecord& record) noexcept {
  uint64_t word = look(record.word);
  while (MessageWord::status(word) == MessageStatus::kLive &&
         MessageWord::opens(word) + 1 < MessageWord::kNoLimit) {
    const uint64_t next =
        MessageWord::make(MessageWord::generation(word), MessageWord::opens(word) + 1, MessageStatus::kLive);
    if (exchange(record.word, word, next)) return true;
  }
  return false;
}

uint32_t count_of_handles(const MessageRecord& record, uint64_t word) noexcept {
  const bool is_one = (record.flags.load(std::memory_order_relaxed) & kCountedHandle) != 0;
  return is_one ? 1 : MessageWord::opens(word);
}

std::string site_of(const MessageRecord& record) {
  uint64_t site[kSiteWords];
  for (size_t i = 0; i < kSiteWords; ++i) site[i] = record.site[i].load(std::memory_order_relaxed);
  const auto* const text = reinterpret_cast<const char*>(site);
  return readable({text, strnlen(text, sizeof site)});
}

}  // namespace tenon::impl
