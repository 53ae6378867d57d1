// SPDX-License-Identifier: Apache-2.0
//
// Histories of channels: the test steers processes step by step through random loans, receives, items that
// are put back, closes and kills. Oracle: a sequential model of the channel gives the answer of each step and
// the statistics. A failure prints the seed; TENON_SEED=n repeats it, TENON_SOAK=1 takes more steps.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>

#include "ipc/channel_testing.h"  // last
#include "ipc/handle.h"
#include "ipc/segment.h"

namespace tenon::impl {

// Does what each line says, and answers with a line.
void be_steered(Lines& lines, const std::string& name) {
  std::optional<api::Channel> channel = join(name);
  std::deque<api::Item> loans, received;
  lines.say("here");
  for (std::string line; lines.hear(&line);) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    std::string answer = "ok";
    try {
      if (verb == "loan") {
        loans.push_back(channel->loan(0s));
        fill(loans.back(), kTorn);
      } else if (verb == "send") {
        int64_t value = 0;
        words >> value;
        fill(loans.front(), value);
        loans.front().send();
        answer = concat("ok ", loans.front().sequence());
        loans.pop_front();
      } else if (verb == "drop") {
        loans.pop_front();
      } else if (verb == "receive") {
        std::optional<api::Item> item = channel->receive(0s);
        if (item) received.push_back(std::move(*item));
        answer = item ? concat("ok ", received.back().sequence(), ' ', value_of(received.back())) : "closed";
      } else if (verb == "look") {
        for (const api::Item& item : received) answer += concat(' ', value_of(item));
      } else if (verb == "give") {
        received.pop_front();
      } else if (verb == "unread") {
        received.back().put_back();
        received.pop_back();
      } else if (verb == "join") {
        channel->join();
      } else if (verb == "reopen") {
        channel->close();
        channel = join(name);
      } else if (verb == "patiently") {  // waits for an item
        std::optional<api::Item> item = channel->receive(kPatience);
        answer = item ? concat("ok ", value_of(*item)) : "closed";
      }
    } catch (const api::Error& e) {
      answer = error_of(e.code(), e.op_code());
    }
    lines.say(answer);
  }
  _exit(0);  // without closing: as if it were killed
}

namespace {

// -------------------------------------------------------------------------------------------- the histories

// What an opening of the channel has reported.
struct Opening {
  size_t deaths = 0;
  uint64_t closings = 0;
};

// The sequential model of a channel.
class Model {
 public:
  Model(size_t slots, ChannelMode mode, WhenFull when_full)
      : slots_(slots), mode_(mode), when_full_(when_full) {}

  std::string loan(int who) {
    take_role(who, &End::is_producer);
    if (const auto i = slot_to_loan()) {
      slots_[*i] = Slot();
      slots_[*i].holders.insert(who);
      loans_[who].push_back(*i);
      return "ok";
    }
    return error_of(when_full_ == WhenFull::kRaise ? TENON_ERR_LEASE_CONFLICT : TENON_ERR_TIMEOUT);
  }
  std::string send(int who, int64_t value) {
    if (closed_loans_[who] > 0) return error_of(TENON_ERR_CLOSED);
    Slot& slot = slots_[pop(&loans_[who])];
    slot.holders.clear();
    slot.sequence = slot.number = ++last_;
    slot.value = value;
    return concat("ok ", last_);
  }
  std::string drop(int who) {
    slots_[pop(&loans_[who])].holders.clear();
    if (closed_loans_[who] > 0) --closed_loans_[who];
    return "ok";
  }
  std::string receive(int who, Opening* opening) {
    End& end = take_role(who, &End::is_consumer);
    if (const auto i = slot_to_receive(end)) {
      Slot& slot = slots_[*i];
      if (end.put_back.erase(slot.sequence) == 0) end.cursor = slot.sequence;
      ++end.n_received;
      last_received_ = std::max(last_received_, slot.sequence);
      slot.holders.insert(who);
      in_hand_[who].push_back(*i);
      ++received_;
      const std::string answer = concat("ok ", slot.sequence, ' ', slot.value);
      if (mode_ == ChannelMode::kQueue) slot.sequence = 0;
      return answer;
    }
    if (opening->deaths < deaths_.size()) {
      return error_of(TENON_ERR_OWNER_DIED, deaths_[opening->deaths++]);
    }
    if (count(&End::is_producer) == 0 && closings_ > opening->closings) {
      opening->closings = closings_;
      return "closed";
    }
    return error_of(TENON_ERR_TIMEOUT);
  }
  std::string give(int who) {
    Slot& slot = slots_[pop(&in_hand_[who])];
    slot.holders.erase(slot.holders.find(who));
    ends_[who].n_received = std::min(ends_[who].n_received, in_hand_[who].size());
    return "ok";
  }
  // Puts the item back that was received last.
  std::string unread(int who) {
    Slot& slot = slots_[in_hand_[who].back()];
    in_hand_[who].pop_back();
    slot.holders.erase(slot.holders.find(who));
    --received_;
    End& end = ends_[who];
    --end.n_received;
    if (mode_ == ChannelMode::kQueue) slot.sequence = slot.number;
    if (mode_ == ChannelMode::kLatest && end.cursor == slot.number) --end.cursor;
    if (mode_ != ChannelMode::kBroadcast) return "ok";
    end.put_back.insert(slot.number);
    const bool has_other = std::ranges::any_of(ends_, [&](const auto& e) {
      return e.second.is_consumer && e.second.received_up_to() >= slot.number;
    });
    if (!has_other && last_received_ == slot.number) --last_received_;
    return "ok";
  }
  void close(int who) {
    End& end = ends_[who];
    closed_loans_[who] = loans_[who].size();
    end.is_consumer = false;
    end.put_back.clear();
    end.n_received = 0;
    if (std::exchange(end.is_producer, false) && count(&End::is_producer) == 0) ++closings_;
  }
  void kill(int who, pid_t pid) {
    for (Slot& slot : slots_) slot.holders.erase(who);
    loans_.erase(who);
    closed_loans_.erase(who);
    in_hand_.erase(who);
    const bool was_producer = ends_[who].is_producer;
    ends_.erase(who);
    if (!was_producer) return;
    deaths_.push_back(pid);
    if (count(&End::is_producer) == 0) ++closings_;
  }
  Opening new_opening() const { return {deaths_.size(), 0}; }
  uint64_t deaths() const { return deaths_.size(); }
  bool has_loan(int who) { return !loans_[who].empty(); }
  bool has_in_hand(int who) { return !in_hand_[who].empty(); }
  bool has_received(int who) { return ends_.contains(who) && ends_[who].n_received > 0; }
  std::string values_in_hand(int who) {
    std::string text = "ok";
    for (const size_t i : in_hand_[who]) text += concat(' ', slots_[i].value);
    return text;
  }
  std::string statistics() const {
    const auto n = [](auto m) { return static_cast<uint64_t>(m); };
    uint64_t ready = 0, in_use = 0;
    for (const Slot& slot : slots_) {
      ready += slot.sequence > (mode_ == ChannelMode::kBroadcast ? received_by_all() : 0) ? 1 : 0;
      in_use += slot.holders.empty() ? 0 : 1;
    }
    if (mode_ == ChannelMode::kLatest) ready = std::min<uint64_t>(ready, 1);
    return text_of(last_, received_, dropped_, deaths_.size(), ready, in_use, n(count(&End::is_producer)),
                   n(count(&End::is_consumer)));
  }
  static std::string text_of(uint64_t sent, uint64_t received, uint64_t dropped, uint64_t deaths,
                             uint64_t ready, uint64_t in_use, uint64_t producers, uint64_t consumers) {
    return concat("sent ", sent, ", received ", received, ", dropped ", dropped, ", deaths ", deaths,
                  ", ready ", ready, ", in use ", in_use, ", producers ", producers, ", consumers ",
                  consumers);
  }

 private:
  struct Slot {
    uint64_t sequence = 0;
    uint64_t number = 0;  // also of an item of a queue that was received
    int64_t value = 0;
    std::multiset<int> holders;
  };
  struct End {
    bool is_producer = false, is_consumer = false;
    uint64_t cursor = 0;
    std::set<uint64_t> put_back;
    size_t n_received = 0;  // of the items in hand, by the present opening
    uint64_t received_up_to() const { return put_back.empty() ? cursor : *put_back.begin() - 1; }
  };

  static size_t pop(std::deque<size_t>* slots) {
    const size_t i = slots->front();
    slots->pop_front();
    return i;
  }
  int count(bool End::* role) const {
    int n = 0;
    for (const auto& [who, end] : ends_) n += end.*role ? 1 : 0;
    return n;
  }
  End& take_role(int who, bool End::* role) {
    if (!(ends_[who].*role) && role == &End::is_consumer)
      ends_[who].cursor = mode_ == ChannelMode::kBroadcast ? last_received_ : 0;
    ends_[who].*role = true;
    return ends_[who];
  }
  uint64_t received_by_all() const {
    uint64_t least = last_received_;
    for (const auto& [who, end] : ends_)
      least = end.is_consumer ? std::min(least, end.received_up_to()) : least;
    return least;
  }
  std::optional<size_t> slot_to_loan() {
    const uint64_t seen = received_by_all();
    uint64_t newest = 0;
    for (const Slot& slot : slots_) newest = std::max(newest, slot.sequence);
    for (size_t i = 0; i < slots_.size(); ++i) {
      const uint64_t sequence = slots_[i].sequence;
      const bool is_spare = sequence == 0 || (mode_ == ChannelMode::kLatest && sequence != newest) ||
                            (mode_ == ChannelMode::kBroadcast && sequence <= seen);
      if (is_spare && slots_[i].holders.empty()) return i;
    }
    const bool may_drop =
        mode_ != ChannelMode::kLatest && (when_full_ == WhenFull::kDropOldest ||
                                          (mode_ == ChannelMode::kBroadcast &&
                                           when_full_ != WhenFull::kKeep && count(&End::is_consumer) == 0));
    std::optional<size_t> oldest;
    for (size_t i = 0; may_drop && i < slots_.size(); ++i) {
      if (slots_[i].sequence == 0 || !slots_[i].holders.empty()) continue;
      if (!oldest || slots_[i].sequence < slots_[*oldest].sequence) oldest = i;
    }
    dropped_ += oldest ? 1 : 0;
    return oldest;
  }
  std::optional<size_t> slot_to_receive(End& end) const {
    for (; !end.put_back.empty(); end.put_back.erase(end.put_back.begin())) {
      for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].sequence == *end.put_back.begin()) return i;
      }
    }
    std::optional<size_t> found;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const uint64_t sequence = slots_[i].sequence;
      if (sequence == 0 || (mode_ != ChannelMode::kQueue && sequence <= end.cursor)) continue;
      const bool is_newest = mode_ == ChannelMode::kLatest;
      if (!found || (sequence > slots_[*found].sequence) == is_newest) found = i;
    }
    return found;
  }

  std::vector<Slot> slots_;
  const ChannelMode mode_;
  const WhenFull when_full_;
  std::map<int, End> ends_;
  std::map<int, std::deque<size_t>> loans_, in_hand_;
  std::map<int, size_t> closed_loans_;  // the first of the loans, whose opening was closed
  std::vector<pid_t> deaths_;
  uint64_t last_ = 0, last_received_ = 0, received_ = 0, dropped_ = 0, closings_ = 0;
};

class Histories : public testing::TestWithParam<Case> {};

// A second participant of this process, which reaps when it is told to.
class Reaper {
 public:
  explicit Reaper(const api::Channel& channel) {
    tenon_handle handle{};
    api::call(tenon_shared_send, channel.memory().get(), &handle);
    const int fd = ArrayHandle::decode(std::as_bytes(std::span(handle.data, handle.nbytes))).fd;
    const std::string path = concat("/proc/self/fd/", fd);
    segment_ = Segment::open(os::File(::open(path.c_str(), O_RDWR | O_CLOEXEC)), true, mutex_owner_);
  }
  void reap() { reap_all(segment_->control()); }

 private:
  MutexOwner mutex_owner_;
  std::unique_ptr<Segment> segment_;
};

TEST_P(Histories, AnswerAsTheModelDoes) {
  const int steps = repeats(50'000, 2000, 500);
  const uint64_t seed = new_seed();
  SCOPED_TRACE(concat("TENON_SEED=", seed));
  std::mt19937_64 random(seed);
  const std::string name = new_name();
  const size_t slots = 3 + random() % 3;
  const api::Channel channel = make(static_cast<int>(slots), GetParam().mode, GetParam().when_full, name);
  Model model(slots, GetParam().mode, GetParam().when_full);
  constexpr int kPeers = 4;
  std::unique_ptr<Peer> peers[kPeers];
  Opening openings[kPeers];
  std::string log, line;
  Reaper reaper(channel);
  // The dead process is reaped before the next one comes, which is told nothing of it then.
  const auto start = [&](int who) {
    if (peers[who]) model.kill(who, peers[who]->pid());
    peers[who].reset();
    ASSERT_TRUE(comes_true([&] {  // another process may be reaping it
      reaper.reap();
      return channel.statistics().deaths == model.deaths();
    }));
    peers[who] = std::make_unique<Peer>(std::vector<std::string>{"steered", name});
    ASSERT_TRUE(peers[who]->hear(&line));
    openings[who] = model.new_opening();
  };
  for (int who = 0; who < kPeers; ++who) start(who);
  for (int step = 0; step < steps && !HasFailure(); ++step) {
    const int who = static_cast<int>(random() % kPeers);
    const uint64_t dice = random() % 100;
    std::string told, wanted;
    if (dice < 25) {
      told = "loan", wanted = model.loan(who);
    } else if (dice < 45) {
      if (!model.has_loan(who)) continue;
      told = concat("send ", step), wanted = model.send(who, step);
    } else if (dice < 50) {
      if (!model.has_loan(who)) continue;
      told = "drop", wanted = model.drop(who);
    } else if (dice < 75) {
      told = "receive", wanted = model.receive(who, &openings[who]);
    } else if (dice < 80) {
      if (!model.has_received(who)) continue;
      told = "unread", wanted = model.unread(who);
    } else if (dice < 93) {
      if (!model.has_in_hand(who)) continue;
      told = "give", wanted = model.give(who);
    } else if (dice < 95) {
      told = "look", wanted = model.values_in_hand(who);
    } else if (dice < 98) {
      model.close(who);
      openings[who] = model.new_opening();
      told = "reopen", wanted = "ok";
    } else {
      start(who);
      told = "look", wanted = "ok";
      log += concat("\n  ", who, " is killed");
    }
    const std::string answer = peers[who]->ask(told);
    log += concat("\n  ", who, ' ', told, ": ", answer);
    if (log.size() > 2000) log.erase(0, log.find('\n', 500));
    ASSERT_EQ(answer, wanted) << "step " << step << " of " << slots << " slots:" << log;
    const tenon_channel_statistics now = channel.statistics();
    const auto n = [](int32_t m) { return static_cast<uint64_t>(m); };
    ASSERT_EQ(Model::text_of(now.sent, now.received, now.dropped, now.deaths, n(now.ready), n(now.in_use),
                             n(now.producers), n(now.consumers)),
              model.statistics())
        << "step " << step << log;
  }
}

INSTANTIATE_TEST_SUITE_P(Channel, Histories, testing::ValuesIn(all_cases()), name_of);

}  // namespace
}  // namespace tenon::impl
