// SPDX-License-Identifier: Apache-2.0
//
// The ends of items: an item is sent once, and nothing uses it afterwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "ipc/channel_testing.h"

namespace tenon::impl {
namespace {

TEST(ChannelItem, AnItemIsSentOnce) {
  const api::Channel channel = make(2);
  api::Item item = channel.loan(0s);
  fill(item, 1);
  item.send();
  EXPECT_EQ(code_of([&] { item.send(); }), TENON_ERR_VALUE);
  std::optional<api::Item> received = channel.receive(0s);
  EXPECT_EQ(code_of([&] { received->send(); }), TENON_ERR_VALUE) << "it is no loan";
}

TEST(ChannelItem, IsSentOnceByTwoThreads) {
  const api::Channel channel = make(2);
  for (uint64_t n = 1; n <= 1000; ++n) {
    api::Item item = channel.loan(0s);
    fill(item, 1);
    std::atomic<int> n_ready{0}, n_sent{0};
    const auto send = [&] {
      for (++n_ready; n_ready < 2;) std::this_thread::yield();
      n_sent += code_of([&] { item.send(); }) == TENON_OK ? 1 : 0;
    };
    std::thread other(send);
    send();
    other.join();
    ASSERT_EQ(n_sent, 1);
    ASSERT_EQ(channel.receive(0s)->sequence(), n);
  }
}

// Their bytes are of an item that another process may have sent.
TEST(ChannelItem, AFieldOfWhichNoArrayWasMadeIsSentWithZeros) {
  const api::Channel channel = make(1);
  for (const int32_t k : {7, 8}) {
    put(channel, k);
    (void)take(channel);
    api::Item item = channel.loan(0s);
    *static_cast<int32_t*>(item.array(1).data()) = k;
    item.send();
    const std::optional<api::Item> received = channel.receive(0s);
    EXPECT_EQ(value_of(*received), 0);
    EXPECT_EQ(*static_cast<int32_t*>(received->array(1).data()), k);
  }
}

// Oracle: an array of the field was made before the item was sent, or the field has zeros.
TEST(ChannelItem, AFieldIsSentWithZerosAlsoIfItIsAskedForWhileTheItemIsSent) {
  const api::Channel channel = make(1);
  put(channel, 7);
  (void)take(channel);
  std::atomic<int64_t> begun{0}, ended{0};
  const api::Item* asked = nullptr;
  bool has_array = false, is_over = false;
  std::thread other([&] {
    for (int64_t n = 1;; ++n) {
      while (begun < n) std::this_thread::yield();
      if (is_over) return;
      has_array = code_of([&] { (void)asked->array(0); }) == TENON_OK;
      ended = n;
    }
  });
  int64_t refused = 0, n = 1;
  for (; n <= repeats(500'000, 20'000, 5'000); ++n) {
    api::Item item = channel.loan(0s);
    *static_cast<int32_t*>(item.array(1).data()) = 8;
    asked = &item;
    begun = n;
    for (volatile int64_t delay = n % 256; delay > 0;) delay = delay - 1;
    item.send();
    while (ended < n) std::this_thread::yield();
    const std::optional<api::Item> received = channel.receive(0s);
    refused += has_array ? 0 : 1;
    if (!has_array) {
      EXPECT_EQ(value_of(*received), 0) << "item " << n;
    }
    fill(*received, 7);
    if (HasFailure()) break;
  }
  is_over = true;
  begun = n + 1;
  other.join();
  EXPECT_GT(refused, 0);
}

TEST(ChannelItem, AnItemThatIsPutBackIsReceivedAgain) {
  for (const ChannelMode mode : {ChannelMode::kQueue, ChannelMode::kBroadcast, ChannelMode::kLatest}) {
    const bool is_latest = mode == ChannelMode::kLatest;
    const api::Channel channel = make(3, mode, WhenFull::kKeep);
    for (const int64_t value : {1, 2}) put(channel, value);
    const int64_t first = is_latest ? 2 : 1;
    std::optional<api::Item> item = channel.receive(0s);
    {
      const api::Array array = item->array(0);
      EXPECT_EQ(code_of([&] { item->put_back(); }), TENON_ERR_VALUE) << "there is an array of it";
    }
    item->put_back();
    EXPECT_EQ(code_of([&] { item->put_back(); }), TENON_ERR_VALUE) << "once";
    EXPECT_EQ(code_of([&] { (void)item->array(0); }), TENON_ERR_LEASE_CONFLICT);
    EXPECT_EQ(channel.statistics().in_use, 0);
    item.reset();
    EXPECT_EQ(take(channel), first);
    if (!is_latest) {
      EXPECT_EQ(take(channel), 2);
    }
    EXPECT_EQ(try_receive(channel), TENON_ERR_TIMEOUT);
    api::Item loan = channel.loan(0s);
    EXPECT_EQ(code_of([&] { loan.put_back(); }), TENON_ERR_VALUE) << "it was not received";
  }
}

// Another thread of the consumer has received a later item in between.
TEST(ChannelItem, AnItemOfABroadcastThatIsPutBackLateIsReceivedOnceMore) {
  const api::Channel channel = make(2, ChannelMode::kBroadcast, WhenFull::kRaise);
  (void)try_receive(channel);
  for (const int64_t value : {1, 2}) put(channel, value);
  std::optional<api::Item> first = channel.receive(0s);
  EXPECT_EQ(take(channel), 2);
  first->put_back();
  first.reset();
  EXPECT_EQ(channel.statistics().ready, 2) << "the items from it on are kept";
  EXPECT_EQ(take(channel), 1);
  EXPECT_EQ(try_receive(channel), TENON_ERR_TIMEOUT);
  EXPECT_EQ(channel.statistics().ready, 0);
}

TEST(ChannelItem, AnItemOfWhichAViewLivesOnIsDroppedAndSaysSo) {
  const api::Channel channel = make(1);
  {
    api::Item item = channel.loan(0s);
    const api::Array array = item.array(0);
    const api::HostView view(array, api::Access::kWrite);
    EXPECT_EQ(code_of([&] { item.send(); }), TENON_ERR_LEASE_ESCAPED);
    EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT) << "the view is in the way";
  }
  EXPECT_EQ(channel.statistics().sent, 0U);
  EXPECT_EQ(try_loan(channel), TENON_OK);
}

TEST(ChannelItem, TheArraysOfAnItemAreRefusedAfterItWasSent) {
  const std::string name = new_name();
  const api::Channel channel = make(2, ChannelMode::kQueue, WhenFull::kWait, name);
  Peer consumer({"steered", name});
  std::string line;
  ASSERT_TRUE(consumer.hear(&line));
  EXPECT_EQ(consumer.ask("receive"), error_of(TENON_ERR_TIMEOUT));
  api::Item item = channel.loan(0s);
  const api::Array array = item.array(0);
  fill(item, 1);
  item.send();
  const auto expect_refused = [&] {
    std::string message;
    EXPECT_EQ(code_of([&] { const api::HostView view(array, api::Access::kWrite); }),
              TENON_ERR_LEASE_CONFLICT);
    EXPECT_EQ(code_of([&] { const api::Lease lease(array, api::Access::kWrite, 0, 0s); }, &message),
              TENON_ERR_LEASE_CONFLICT);
    EXPECT_NE(message.find("sent or dropped"), std::string::npos) << message;
    EXPECT_NE(
        code_of([&] { api::push([](api::View<int64_t, 1> x) { x(0) = 2; }, api::write(array)).wait(); }),
        TENON_OK);
    EXPECT_EQ(code_of([&] { (void)array.unchecked(); }), TENON_ERR_LEASE_CONFLICT);
  };
  expect_refused();
  EXPECT_EQ(consumer.ask("receive"), "ok 1 1");
  expect_refused();
  EXPECT_EQ(consumer.ask("look"), "ok 1");
}

// Also while this process has the next item in the slot.
TEST(ChannelItem, TheArraysOfASentItemCannotUseTheNextItemOfItsSlot) {
  const api::Channel channel = make(1);
  api::Item item = channel.loan(0s);
  const api::Array array = item.array(0);
  fill(item, 1);
  item.send();
  EXPECT_EQ(code_of([&] { (void)item.array(0); }), TENON_ERR_LEASE_CONFLICT);
  const auto expect_refused = [&] {
    EXPECT_EQ(code_of([&] { const api::HostView view(array, api::Access::kRead); }),
              TENON_ERR_LEASE_CONFLICT);
    EXPECT_EQ(code_of([&] { const api::Lease lease(array, api::Access::kRead, 0, 0s); }),
              TENON_ERR_LEASE_CONFLICT);
    EXPECT_EQ(code_of([&] { api::push([](api::View<int64_t, 1> x) { x(0) = 9; }, api::write(array)); }),
              TENON_ERR_LEASE_CONFLICT);
    EXPECT_EQ(code_of([&] { (void)array.copy(); }), TENON_ERR_LEASE_CONFLICT);
  };
  expect_refused();
  {
    const std::optional<api::Item> received = channel.receive(0s);
    expect_refused();
    EXPECT_EQ(value_of(*received), 1);
  }
  const api::Item next = channel.loan(0s);
  expect_refused();
}

// Such memory has no reference to the item, but its uses are in the same queue.
TEST(ChannelItem, AViewOfMemoryThatWasImportedByItsAddressIsInTheWay) {
  const api::Channel channel = make(1);
  api::Item item = channel.loan(0s);
  const api::Array imported = api::Array::borrow(static_cast<int64_t*>(item.array(0).data()), {kCount});
  const api::HostView view(imported, api::Access::kWrite);
  EXPECT_EQ(code_of([&] { item.send(); }), TENON_ERR_LEASE_ESCAPED);
  EXPECT_EQ(channel.statistics().sent, 0U);
}

TEST(ChannelItem, AnArrayThatIsTakenBesideASendCannotUseTheItem) {
  const api::Channel channel = make(2);
  for (int n = 1; n <= 2000 && !HasFailure(); ++n) {
    api::Item item = channel.loan(0s);
    fill(item, n);
    std::optional<api::Array> taken;
    std::atomic<int> n_ready{0};
    const auto meet = [&] {
      for (++n_ready; n_ready < 2;) std::this_thread::yield();
    };
    std::thread other([&] {
      meet();
      (void)code_of([&] { taken = item.array(0); });
    });
    meet();
    EXPECT_EQ(code_of([&] { item.send(); }), TENON_OK);
    other.join();
    const std::optional<api::Item> received = channel.receive(0s);
    if (taken) {
      EXPECT_EQ(code_of([&] { const api::HostView view(*taken, api::Access::kRead); }),
                TENON_ERR_LEASE_CONFLICT);
    }
    EXPECT_EQ(value_of(*received), n);
  }
}

// Bytes that an op must not see before a lease has ended, and the other way round.
TEST(ChannelItem, LeasesAndOpsOfItsArraysTakeTurns) {
  const api::Channel channel = make(2);
  const auto take_turns = [](const api::Array& array) {
    std::optional<api::Lease> lease;
    lease.emplace(array, api::Access::kWrite);
    const api::Op op = api::push([](api::View<int64_t, 1> x) { x(0) += 1; }, api::write(array));
    EXPECT_FALSE(op.is_done());
    {
      const api::HostView view(array, api::Access::kWrite);
      static_cast<int64_t*>(array.data())[0] = 40;
    }
    lease.reset();
    op.wait();
    EXPECT_EQ(code_of([&] { const api::Lease after(array, api::Access::kRead, 0, 0s); }), TENON_OK);
  };
  api::Item item = channel.loan(0s);
  fill(item, 0);
  take_turns(item.array(0));
  item.send();
  std::optional<api::Item> received = channel.receive(0s);
  EXPECT_EQ(static_cast<const int64_t*>(received->array(0).data())[0], 41);
  take_turns(received->array(0));
  EXPECT_EQ(static_cast<const int64_t*>(received->array(0).data())[0], 41);
}

TEST(ChannelItem, AnOpKeepsTheSlotUntilItIsDone) {
  const api::Channel channel = make(1);
  put(channel, 5);
  std::optional<api::Item> received = channel.receive(0s);
  std::atomic<bool> may_end{false};
  int64_t seen = 0;
  const api::Op op = api::push(
      [&](api::View<const int64_t, 1> x) {
        while (!may_end) std::this_thread::yield();
        seen = x(0);
      },
      api::read(received->array(0)));
  received.reset();
  EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT);
  may_end = true;
  op.wait();
  EXPECT_EQ(code_of([&] { (void)channel.loan(kPatience); }), TENON_OK);
  EXPECT_EQ(seen, 5);
}

TEST(ChannelItem, AnItemOfWhichALeaseOrAnOpLivesOnIsDroppedAndSaysSo) {
  const api::Channel channel = make(1);
  std::atomic<bool> may_end{false};
  {
    api::Item item = channel.loan(0s);
    const api::Op op = api::push(
        [&](api::View<int64_t, 1>) {
          while (!may_end) std::this_thread::yield();
        },
        api::write(item.array(0)));
    EXPECT_EQ(code_of([&] { item.send(); }), TENON_ERR_LEASE_ESCAPED);
    EXPECT_EQ(code_of([&] { item.send(); }), TENON_ERR_VALUE) << "it was dropped";
    may_end = true;
    op.wait();
  }
  {
    api::Item item = channel.loan(kPatience);
    const api::Array array = item.array(0);
    const api::Lease lease(array, api::Access::kRead);
    EXPECT_EQ(code_of([&] { item.send(); }), TENON_ERR_LEASE_ESCAPED);
  }
  EXPECT_EQ(channel.statistics().sent, 0U);
  EXPECT_EQ(try_loan(channel), TENON_OK);
}

TEST(ChannelItem, AnItemThatAnOpFailedToWriteIsDroppedAndSaysWhy) {
  const api::Channel channel = make(1);
  const auto fail = [](const api::Item& item) {
    const api::Op op = api::push([](api::View<int64_t, 1>) { throw std::runtime_error("no data"); },
                                 api::write(item.array(0)));
    EXPECT_EQ(code_of([&] { op.wait(); }), TENON_ERR_OP);
  };
  {
    api::Item item = channel.loan(0s);
    fail(item);
    EXPECT_EQ(code_of([&] { const api::Lease lease(item.array(0), api::Access::kRead); }), TENON_ERR_OP);
    std::string message;
    EXPECT_EQ(code_of([&] { item.send(); }, &message), TENON_ERR_OP);
    EXPECT_NE(message.find("no data"), std::string::npos) << message;
    EXPECT_EQ(code_of([&] { item.send(); }), TENON_ERR_VALUE) << "it was dropped";
  }
  EXPECT_EQ(channel.statistics().sent, 0U);
  fail(channel.loan(0s));
  put(channel, 3);  // in the same slot
  EXPECT_EQ(value_of(*channel.receive(0s)), 3);
}

// Memory that was imported by its address does not keep the item.
TEST(ChannelItem, AnOpThatFailsAfterItsItemDoesNotSpoilTheNextItem) {
  const api::Channel channel = make(1);
  std::optional<api::Item> item = channel.loan(0s);
  // One element more than the field, so that no array of the item can lend it.
  auto* const at = static_cast<int64_t*>(item->array(0).data());
  const api::Array imported = api::Array::borrow(at, {kCount + 1});
  std::atomic<bool> may_fail{false};
  const api::Op op = api::push(
      [&](api::View<int64_t, 1>) {
        while (!may_fail) std::this_thread::yield();
        throw std::runtime_error("no data");
      },
      api::write(imported));
  item.reset();
  may_fail = true;
  EXPECT_EQ(code_of([&] { op.wait(); }), TENON_ERR_OP);
  put(channel, 3);
  EXPECT_EQ(value_of(*channel.receive(0s)), 3);
}

TEST(ChannelItem, AnOpThatIsGrantedAfterItsItemIsRefusedAndSaysWhy) {
  const api::Channel channel = make(1);
  std::optional<api::Item> item = channel.loan(0s);
  const api::Array imported = api::Array::borrow(static_cast<int64_t*>(item->array(0).data()), {kCount + 1});
  std::optional<api::Lease> lease;
  lease.emplace(imported, api::Access::kWrite);
  std::atomic<bool> has_run{false};
  const api::Op op = api::push([&](api::View<int64_t, 1>) { has_run = true; }, api::write(imported));
  item.reset();
  lease.reset();
  std::string message;
  EXPECT_EQ(code_of([&] { op.wait(); }, &message), TENON_ERR_OP);
  EXPECT_NE(message.find("sent or dropped"), std::string::npos) << message;
  EXPECT_FALSE(has_run);
}

TEST(ChannelItem, AnOpThatFailsBesideASendIsSeen) {
  const api::Channel channel = make(2);
  int n_sent = 0;
  for (int n = 0; n < 2000; ++n) {
    api::Item item = channel.loan(0s);
    fill(item, n);
    const api::Op op = api::push([](api::View<int64_t, 1>) { throw std::runtime_error("no data"); },
                                 api::write(item.array(0)));
    if (code_of([&] { item.send(); }) == TENON_OK) {
      ++n_sent;
      (void)channel.receive(0s);
    }
    EXPECT_EQ(code_of([&] { op.wait(); }), TENON_ERR_OP);
  }
  EXPECT_EQ(n_sent, 0);
}

// The import bridges the slots, so that they have one queue.
TEST(ChannelItem, AnOpOnTwoItemsNeedsNoSlotBetweenThem) {
  const api::Channel channel = make(3);
  std::optional<api::Item> first = channel.loan(0s), between = channel.loan(0s), last = channel.loan(0s);
  auto* const begin = static_cast<int64_t*>(first->array(0).data());
  auto* const end = static_cast<int64_t*>(last->array(0).data()) + kCount;
  ASSERT_LT(begin, end);
  {
    const api::Array bridge = api::Array::borrow(begin, {end - begin});
  }
  fill(*between, 1);
  between->send();
  api::push([](api::View<const int64_t, 1> from, api::View<int64_t, 1> to) { to(0) = from(0); },
            api::read(first->array(0)), api::write(last->array(0)))
      .wait();
}

// The number of grants that all ops may have at a time is limited. The order of the memories decides which of
// them takes the grants back.
TEST(ChannelItem, OpsOnItemsAndSharedArraysEndWithoutAGrant) {
  std::vector<api::Channel> channels;
  std::vector<api::Item> items;
  std::vector<api::Array> shared;
  for (int i = 0; i < 3; ++i) {
    shared.push_back(api::zeros_shared({4}));
    channels.push_back(make(1));
    items.push_back(channels.back().loan(0s));
  }
  for (const api::Item& item : items) {
    for (const api::Array& other : shared) {
      for (int i = 0; i < 60; ++i) {
        api::push([](const api::Array&, const api::Array&) {}, api::write(item.array(0)), api::write(other))
            .wait(kPatience);
      }
    }
  }
}

TEST(ChannelItem, TheVersionOfItsArraysChangesWithEachWrite) {
  const api::Channel channel = make(1);
  const api::Item item = channel.loan(0s);
  const api::Array array = item.array(0);
  uint64_t last = tenon_array_version(array.get());
  const auto expect_change = [&](const char* what) {
    const uint64_t now = tenon_array_version(array.get());
    EXPECT_NE(now, last) << what;
    last = now;
  };
  {
    const api::Lease lease(array, api::Access::kWrite);
  }
  expect_change("a lease");
  api::push([](api::View<int64_t, 1> x) { x(0) = 1; }, api::write(array)).wait();
  expect_change("an op");
  {
    const api::HostView view(array, api::Access::kWrite);
  }
  expect_change("a view");
  EXPECT_EQ(tenon_array_version(array.get()), last);
}

TEST(ChannelItem, LeasesAndOpsReadAnItemThatSeveralConsumersRead) {
  const api::Channel channel = make(3, ChannelMode::kLatest);
  put(channel, 7);
  const std::optional<api::Item> received = channel.receive(0s);
  const api::Array array = received->array(0);
  const api::Lease lease(array, api::Access::kRead);
  int64_t seen = 0;
  api::push([&seen](api::View<const int64_t, 1> x) { seen = x(0); }, api::read(array)).wait();
  EXPECT_EQ(seen, 7);
}

// Not even through memory that was imported by its address, whose array is not read-only.
TEST(ChannelItem, AnItemThatSeveralConsumersReadCannotBeWritten) {
  const api::Channel channel = make(3, ChannelMode::kBroadcast);
  {
    const api::Item loan = channel.loan(0s);
    const api::Array array = loan.array(0);
    EXPECT_EQ(code_of([&] { const api::Lease lease(array, api::Access::kWrite); }), TENON_OK);
  }
  (void)code_of([&] { (void)channel.receive(0s); });  // it is a consumer from now on
  put(channel, 7);
  const std::optional<api::Item> received = channel.receive(0s);
  const api::Array array = received->array(0);
  EXPECT_EQ(code_of([&] { const api::Lease lease(array, api::Access::kWrite); }), TENON_ERR_BUFFER);
  const api::Array imported = api::Array::borrow(static_cast<int64_t*>(array.data()), {kCount});
  EXPECT_EQ(code_of([&] { const api::Lease lease(imported, api::Access::kWrite); }),
            TENON_ERR_LEASE_CONFLICT);
  EXPECT_EQ(code_of([&] { const api::HostView view(imported, api::Access::kWrite); }),
            TENON_ERR_LEASE_CONFLICT);
  EXPECT_EQ(code_of([&] { api::push([](api::View<int64_t, 1> x) { x(0) = 9; }, api::write(imported)); }),
            TENON_ERR_LEASE_CONFLICT);
  EXPECT_EQ(code_of([&] { const api::Lease lease(imported, api::Access::kRead); }), TENON_OK);
  EXPECT_EQ(value_of(*received), 7);
}

// The way to use an array that is refused in a forked child; null: none.
const char* find_use(const api::Array& array) {
  // ThreadSanitizer's forked children cannot start threads.
  if (tenon_engine_set("inline", 0, nullptr) != TENON_OK) return "the executor";
  const auto is_refused = [](auto use) {
    std::string message;
    return code_of(use, &message) == TENON_ERR_LEASE_CONFLICT && message.find("forked") != std::string::npos;
  };
  for (const api::Access access : {api::Access::kRead, api::Access::kWrite}) {
    if (!is_refused([&] { const api::Lease lease(array, access, 0, 0s); })) return "a lease";
    if (!is_refused([&] { const api::HostView view(array, access); })) return "a view";
  }
  if (!is_refused([&] { (void)array.copy(); })) return "a call";
  const auto push = [&] { api::push([](api::View<int64_t, 1> x) { x(0) = 9; }, api::write(array)); };
  return is_refused(push) ? nullptr : "an op";
}

// 0: the child cannot use the arrays.
int use_in_child(std::initializer_list<const api::Array*> arrays) {
  for (const api::Array* const array : arrays) {
    const char* const use = find_use(*array);
    if (use == nullptr) continue;
    std::fprintf(stderr, "the forked child can use it: %s\n", use);
    return 1;
  }
  return 0;
}

TEST(ChannelItem, AForkedChildHasNoneOfTheItemsOfItsParent) {
  const api::Channel channel = make(2);
  put(channel, 7);
  const std::optional<api::Item> received = channel.receive(0s);
  const api::Item loan = channel.loan(0s);
  const api::Array of_received = received->array(0), of_loan = loan.array(0);
  const auto child = [&] {
    if (code_of([&] { (void)loan.array(0); }) != TENON_ERR_LEASE_CONFLICT) return 2;
    return use_in_child({&of_received, &of_loan});
  };
  EXPECT_EQ(status_of_forked([] {}, child), 0);
  EXPECT_EQ(value_of(*received), 7);
}

// Its arrays would be those of the child's item.
TEST(ChannelItem, TheArraysThatAForkedChildInheritsCannotUseItsItemOfTheSameSlot) {
  const api::Channel channel = make(1);
  put(channel, 7);
  std::optional<api::Item> received = channel.receive(0s);
  std::optional<api::Array> inherited = received->array(0);
  const auto before = [&] {
    inherited.reset();
    received.reset();
  };
  const auto child = [&] {
    const api::Item own = channel.loan(kPatience);
    if (code_of([&] { const api::Lease lease(own.array(0), api::Access::kWrite); }) != TENON_OK) return 2;
    if (code_of([&] { (void)received->array(0); }) != TENON_ERR_LEASE_CONFLICT) return 3;
    return use_in_child({&*inherited});
  };
  EXPECT_EQ(status_of_forked(before, child), 0);
}

TEST(ChannelItem, AForkedChildUsesTheSlotsOfWhichItHasNoView) {
  const api::Channel channel = make(2);
  put(channel, 7);
  std::optional<api::Item> received = channel.receive(0s);
  std::optional<api::HostView> inherited(std::in_place, received->array(0), api::Access::kRead);
  const auto before = [&] {
    inherited.reset();
    received.reset();
  };
  const auto child = [&] {
    std::optional<api::Item> own = channel.loan(kPatience);
    if (code_of([&] { (void)channel.loan(0s); }) != TENON_ERR_LEASE_CONFLICT) return 2;
    fill(*own, 8);
    own->send();
    own.reset();
    return take(channel) == 8 ? 0 : 3;
  };
  EXPECT_EQ(status_of_forked(before, child), 0);
}

TEST(ChannelItem, AnItemThatWasMovedFromHasNoArrays) {
  std::optional<api::Channel> channel = make(2);
  api::Item item = channel->loan(0s);
  {
    const api::Item moved = std::move(item);
  }
  channel.reset();
  EXPECT_EQ(code_of([&] { (void)item.array("x"); }), TENON_ERR_VALUE);
}

// The memory of an item belongs to the channel.
TEST(ChannelItem, TheArrayOfAnItemCannotBeMovedOut) {
  const api::Channel channel = make(2);
  const api::Item item = channel.loan(0s);
  const api::Array array = item.array(0);
  tenon_memory moved{};
  moved.struct_size = sizeof moved;
  tenon_error error = TENON_ERROR_INIT;
  EXPECT_EQ(tenon_array_move_out(array.get(), nullptr, &moved, &error), TENON_ERR_LEASE_CONFLICT);
}

}  // namespace
}  // namespace tenon::impl
