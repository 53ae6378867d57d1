// SPDX-License-Identifier: Apache-2.0
#include "ipc/message_table.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/text.h"
#include "ipc/participant.h"

namespace tenon::impl {
namespace {

constexpr int64_t kEndingNs = 1'000'000'000;

// Whole characters (UTF-8) of at most so many bytes.
std::string_view beginning(std::string_view text, size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

// The limit of a live message has passed, and ends it.
bool is_over(const MessageRecord& record, uint64_t word, int64_t now_ns) noexcept {
  const int64_t until_ns = record.until_ns.load(std::memory_order_relaxed);
  const bool is_of_pool = record.block.load(std::memory_order_relaxed) == kNoBlock;
  return until_ns != 0 && until_ns <= now_ns &&
         (is_of_pool || MessageWord::keeper(word) == MessageWord::kNoKeeper);
}

// The word, if it is of a live message of this generation; else 0.
uint64_t live_word(const MessageRecord& record, uint32_t generation) noexcept {
  const uint64_t word = look(record.word);
  return MessageWord::generation(word) == generation && MessageWord::is_live(word) ? word : 0;
}

}  // namespace

uint32_t begin_message(MessageRecord& record, const MessageFacts& facts) noexcept {
  uint32_t generation = MessageWord::generation(record.word.load(std::memory_order_relaxed)) + 1;
  if (generation == 0) generation = 1;
  store(record.until_ns, facts.until_ns);
  store(record.since_ns, facts.since_ns);
  store(record.nbytes, facts.nbytes);
  store(record.sender, facts.sender);
  store(record.block, facts.block);
  store(record.flags, facts.flags);
  constexpr size_t kMostOfTag = 23;
  char text[kSiteWords * sizeof(uint64_t)] = {};
  const std::string_view tag = beginning(facts.tag, kMostOfTag);
  const std::string_view line = facts.site != nullptr ? facts.site : "";
  // The end of a long path says most.
  const size_t n = std::min(line.size(), sizeof text - 2 - tag.size());
  line.copy(text, n, line.size() - n);
  tag.copy(text + n + 1, tag.size());
  uint64_t site[kSiteWords];
  std::memcpy(site, text, sizeof site);
  for (size_t i = 0; i < kSiteWords; ++i) store(record.site[i], site[i]);
  publish(record.word, MessageWord::make(generation, facts.opens));
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
    if (!MessageWord::is_live(word)) return MessageWord::status(word);
    const uint32_t opens = MessageWord::opens(word);
    uint64_t next = word;
    if (is_over(record, word, now_ns)) {
      next = MessageWord::with_status(word, MessageStatus::kExpired);
    } else if (opens <= 1) {
      next = MessageWord::with_status(MessageWord::with_opens(word, 0), MessageStatus::kOpened);
    } else if (opens != MessageWord::kNoLimit) {
      next = MessageWord::with_opens(word, opens - 1);
    }
    if (MessageWord::status(next) != MessageStatus::kExpired) next = MessageWord::as_opened(next);
    if (next != word && !exchange(record.word, word, next)) continue;
    *is_last = MessageWord::status(next) != MessageStatus::kLive;
    return MessageWord::status(next) == MessageStatus::kExpired ? MessageStatus::kExpired
                                                                : MessageStatus::kLive;
  }
}

bool end_message(MessageRecord& record, uint32_t generation, MessageStatus why) noexcept {
  while (uint64_t word = live_word(record, generation)) {
    if (exchange(record.word, word, MessageWord::with_status(word, why))) return true;
  }
  return false;
}

bool set_opens(MessageRecord& record, uint32_t generation, uint32_t opens) noexcept {
  while (uint64_t word = live_word(record, generation)) {
    if (exchange(record.word, word, MessageWord::with_opens(word, opens))) return true;
  }
  return false;
}

bool add_open(MessageRecord& record) noexcept {
  uint64_t word = look(record.word);
  while (MessageWord::is_live(word) && MessageWord::opens(word) + 1 < MessageWord::kNoLimit) {
    if (exchange(record.word, word, MessageWord::with_opens(word, MessageWord::opens(word) + 1))) return true;
  }
  return false;
}

uint32_t count_of_handles(const MessageRecord& record, uint64_t word) noexcept {
  const bool is_one = (record.flags.load(std::memory_order_relaxed) & kCountedHandle) != 0;
  return is_one ? 1 : MessageWord::opens(word);
}

namespace {

// The text number 0 or 1 of the site.
std::string text_in_site(const MessageRecord& record, int number) {
  uint64_t site[kSiteWords];
  for (size_t i = 0; i < kSiteWords; ++i) site[i] = record.site[i].load(std::memory_order_relaxed);
  std::string_view rest(reinterpret_cast<const char*>(site), sizeof site);
  for (; number > 0; --number) rest.remove_prefix(std::min(rest.find('\0'), rest.size() - 1) + 1);
  return readable(std::string(rest.substr(0, rest.find('\0'))));
}

}  // namespace

std::string site_of(const MessageRecord& record) { return text_in_site(record, 0); }

std::string tag_of(const MessageRecord& record) { return text_in_site(record, 1); }

// ------------------------------------------------------------------------- with the processes that live

bool lives(const Control& control, uint64_t sender) noexcept {
  const uint32_t participant = Sender::participant(sender);
  if (sender == 0 || !control.has_place(participant)) return false;
  const Place& place = control.place(participant);
  return look(place.state) == PlaceState::kLive &&
         place.generation.load(std::memory_order_relaxed) == Sender::generation(sender) &&
         is_alive(control, participant);
}

bool has_keeper(const Control& control, uint64_t word) noexcept {
  const uint32_t keeper = MessageWord::keeper(word);
  return keeper != MessageWord::kNoKeeper && control.has_place(keeper - 1);
}

bool has_living_keeper(const Control& control, uint64_t word) noexcept {
  return has_keeper(control, word) && is_alive(control, MessageWord::keeper(word) - 1);
}

MessageStatus fate_of(const Control& control, const MessageRecord& record, uint64_t word,
                      uint64_t has_left) noexcept {
  const uint64_t sender = look(record.sender);
  const bool is_sent = sender != has_left && lives(control, sender);
  if (!is_sent && !has_keeper(control, word)) return MessageStatus::kSenderGone;
  return is_over(record, word, now_ns()) ? MessageStatus::kExpired : MessageStatus::kLive;
}

MessageStatus look_at_message(const Control& control, MessageRecord& record, uint32_t generation) noexcept {
  while (uint64_t word = live_word(record, generation)) {
    // Only a reaper ends what a dead process has kept: until then, no other process gets its place.
    if (has_keeper(control, word) && !has_living_keeper(control, word) &&
        reap(control, MessageWord::keeper(word) - 1)) {
      continue;
    }
    const MessageStatus fate = fate_of(control, record, word);
    if (fate == MessageStatus::kLive) return fate;
    if (exchange(record.word, word, MessageWord::with_status(word, fate))) return fate;
  }
  return status_of(record, generation);
}

Kept keep_message(const Control& control, MessageRecord& record, uint32_t generation,
                  uint32_t participant) noexcept {
  while (uint64_t word = live_word(record, generation)) {
    const uint32_t keeper = MessageWord::keeper(word);
    if (keeper == participant + 1) return Kept::kYes;
    if (has_keeper(control, word)) {
      const bool is_ending = is_dead(look(life_word(control.life(keeper - 1))));
      if (reap(control, keeper - 1) || look(record.word) != word) continue;
      return is_ending ? Kept::kLater : Kept::kNo;
    }
    if (exchange(record.word, word, MessageWord::with_keeper(word, participant + 1))) return Kept::kYes;
  }
  return Kept::kNo;
}

bool keep_patiently(const std::function<Kept()>& keep) {
  constexpr timespec kMoment{0, 2'000'000};
  const Deadline deadline(kEndingNs);
  while (true) {
    const Kept answer = keep();
    if (answer != Kept::kLater || deadline.has_passed()) return answer == Kept::kYes;
    nanosleep(&kMoment, nullptr);
  }
}

void drop_message(const Control& control, MessageRecord& record, uint32_t generation, uint32_t participant,
                  MessageStatus why) noexcept {
  while (uint64_t word = live_word(record, generation)) {
    if (MessageWord::keeper(word) != participant + 1) return;
    uint64_t next = MessageWord::with_keeper(word, MessageWord::kNoKeeper);
    if (fate_of(control, record, next) != MessageStatus::kLive) next = MessageWord::with_status(word, why);
    if (exchange(record.word, word, next)) return;
  }
}

void leave_messages(const Control& control, uint32_t participant) noexcept {
  const uint32_t place = control.place(participant).generation.load(std::memory_order_relaxed);
  const uint64_t self = Sender::make(participant, place);
  for (uint32_t i = 0, used = control.used_messages(); i < used; ++i) {
    MessageRecord& record = control.message(i);
    for (uint64_t word = look(record.word); MessageWord::is_live(word); word = look(record.word)) {
      const bool is_keeper = MessageWord::keeper(word) == participant + 1;
      if (!is_keeper && look(record.sender) != self) break;
      uint64_t next = is_keeper ? MessageWord::with_keeper(word, MessageWord::kNoKeeper) : word;
      const MessageStatus fate = fate_of(control, record, next, self);
      if (fate != MessageStatus::kLive) next = MessageWord::with_status(word, fate);
      if (next == word || exchange(record.word, word, next)) break;
    }
  }
}

}  // namespace tenon::impl
