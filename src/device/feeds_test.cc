// SPDX-License-Identifier: Apache-2.0
//
// Feeds that deliver on a device. Oracle: each element of a batch follows from epoch and index alone, so that
// a kernel finds each batch that was overwritten, mixed up, or read before its copy. The fake driver copies
// in steps and starts work late.
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "base/repeats_testing.h"
#include "data/feed.h"
#include "device/device.h"
#include "device/device_testing.h"

namespace tenon::impl {
namespace {

using device::Device;
using device::StreamKind;
using HostMemory = DeviceBatches::HostMemory;

constexpr int64_t kRows = 24;
constexpr int64_t kForever = -1;
const std::vector<int64_t> kData{kRows, 10};
const std::vector<int64_t> kLabel{kRows};
constexpr uint64_t kNever = UINT64_MAX;

int32_t element(uint64_t epoch, uint64_t index, int64_t i) {
  return static_cast<int32_t>((epoch << 20) ^ (index << 12) ^ static_cast<uint64_t>(i));
}

Ref<Schema> schema() {
  const tenon_field fields[]{{"data", DType(TENON_INT, 32), 2, kData.data()},
                             {"label", DType(TENON_INT, 32), 1, kLabel.data()}};
  return Schema::make(fields);
}

// Fills with element(); the last batch of an epoch of 5 has fewer rows.
struct Source {
  std::atomic<uint64_t> fail_at{kNever}, end_at{kNever};

  int32_t fill(const tenon_fill_request& request) {
    if (request.index == fail_at) return 7;
    if (request.index == end_at) return TENON_END_OF_EPOCH;
    const int64_t rows = request.index % 5 == 4 ? kRows / 2 : kRows;
    for (int field = 0; field < 2; ++field) {
      request.shapes[field][0] = rows;
      const int64_t n = rows * (field == 0 ? kData[1] : 1);
      auto* const to = static_cast<int32_t*>(request.fields[field]);
      for (int64_t i = 0; i < n; ++i) to[i] = element(request.epoch, request.index, i);
    }
    return 0;
  }
  tenon_generator generator() {
    tenon_generator g{};
    g.struct_size = sizeof g;
    g.flags = TENON_THREADSAFE;
    g.context = this;
    g.fill = [](void* context, const tenon_fill_request* request, char*, size_t) {
      return static_cast<Source*>(context)->fill(*request);
    };
    g.name = "source";
    return g;
  }
};

tenon_feed_options options(int32_t workers, int32_t slots, int64_t batches) {
  tenon_feed_options options{};
  options.struct_size = sizeof options;
  options.workers = workers;
  options.slots = slots;
  options.batches = batches;
  return options;
}

// A feed that delivers on the first device.
struct DeviceFeed : Feed {
  DeviceFeed(Source& source, const tenon_feed_options& options, int32_t device_slots)
      : Feed(source.generator(), schema(), options) {
    use_device(kCuda, device_slots);
  }
};

// A kernel that looks at each element of a field.
struct Look {
  uint64_t address, epoch, index;
  int64_t n;
  std::atomic<int>* wrong;

  static int run(void* argument) {
    const std::unique_ptr<Look> owned(static_cast<Look*>(argument));
    const Look& self = *owned;
    std::vector<int32_t> all(static_cast<size_t>(self.n));
    if (const int error = fake_cuda_read(all.data(), self.address, all.size() * sizeof all[0])) return error;
    int64_t i = 0;
    for (const int32_t value : all) {
      if (value == element(self.epoch, self.index, i++)) continue;
      ++*self.wrong;
      break;
    }
    return 0;
  }
};

class Feeds : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    Device& device = Device::of(kCuda);
    const Device::Current current(device);
    for (void*& stream : streams) ASSERT_EQ(0, device.driver().create_stream(&stream));
  }
  void TearDown() override {
    EXPECT_EQ(TENON_OK, tenon_wait_all(-1, &error)) << error.message;
    EXPECT_TRUE(soon([&] { return statistics().submitted == 0; }));
    EXPECT_EQ(0u, statistics().device_nbytes);
    EXPECT_EQ(0u, statistics().pinned_nbytes);
    EXPECT_EQ(0u, statistics().registered_nbytes);
    EXPECT_EQ(0, wrong);
    DeviceTest::TearDown();
  }

  static Ref<Batch> next(Feed& feed, int64_t timeout_ns = kForever) {
    Ref<Batch> batch;
    EXPECT_TRUE(feed.next(timeout_ns, batch));
    return batch;
  }
  static bool is_late(Feed& feed) {
    Ref<Batch> batch;
    return !feed.next(1'000'000, batch);
  }
  // As a framework: takes the field on a stream, submits a kernel that reads it, and drops it.
  void use(const Batch& batch, int32_t field, void* stream) {
    const Ref<Array> array = batch.array(field);
    DLManagedTensorVersioned* tensor = nullptr;
    ASSERT_EQ(TENON_OK, tenon_array_to_dlpack_on(reinterpret_cast<tenon_array*>(array.get()), 0,
                                                 static_cast<int64_t>(reinterpret_cast<intptr_t>(stream)),
                                                 nullptr, &tensor, &error))
        << error.message;
    ASSERT_EQ(kDLCUDA, tensor->dl_tensor.device.device_type);
    EXPECT_EQ(0, on(kCuda, fake_cuda_launch, stream, Look::run,
                    new Look{reinterpret_cast<uint64_t>(tensor->dl_tensor.data), batch.ticket().epoch,
                             batch.ticket().index, array->size(), &wrong}));
    tensor->deleter(tensor);
  }
  void look_on_host(const Batch& batch) {
    for (int32_t field = 0; field < 2; ++field) {
      const Ref<Array> array = batch.array(field);
      const std::vector<int32_t> got = values(reinterpret_cast<tenon_array*>(array.get()));
      ASSERT_EQ(static_cast<int64_t>(got.size()), array->size());
      for (int64_t i = 0; i < array->size(); ++i) {
        ASSERT_EQ(element(batch.ticket().epoch, batch.ticket().index, i), got[static_cast<size_t>(i)])
            << "batch " << batch.ticket().index << ", element " << i;
      }
    }
  }

  std::atomic<int> wrong{0};
  void* streams[2] = {};
  Source source;
};

TEST_F(Feeds, BatchesLieInARingOfDeviceSlotsWithWhatWasFilled) {
  for (const int32_t workers : {0, 1, 3}) {
    DeviceFeed feed(source, options(workers, workers + 2, 12), 3);
    std::set<const void*> addresses;
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      feed.begin();
      uint64_t index = 0;
      while (const Ref<Batch> batch = next(feed)) {
        EXPECT_EQ(index, batch->ticket().index);
        EXPECT_EQ(index % 5 == 4 ? kRows / 2 : kRows, batch->array(1)->size());
        EXPECT_TRUE(batch->array(0)->is_on_device());
        addresses.insert(batch->array(0)->data());
        use(*batch, 0, streams[index % 2]);
        if (index % 3 == 0) look_on_host(*batch);
        ++index;
      }
      EXPECT_EQ(12u, index);
    }
    EXPECT_LE(addresses.size(), 3u);
    const tenon_feed_statistics now = feed.statistics();
    EXPECT_EQ(24u, now.batches);
    EXPECT_EQ(3, now.device_slots);
    EXPECT_EQ(kCuda.type, now.device.type);
    EXPECT_EQ(static_cast<int32_t>(HostMemory::kRegistered), now.host_memory);
  }
}

// Breaks when next() copies nothing ahead.
TEST_F(Feeds, TheNextBatchesAreCopiedWhileTheConsumerWorksOnThisOne) {
  DeviceFeed feed(source, options(1, 6, 8), 3);
  feed.begin();
  ASSERT_TRUE(soon([&] { return feed.statistics().slots_ready >= 4; }));
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, streams[0]));  // a step that takes long
  const Ref<Batch> batch = next(feed);
  use(*batch, 0, streams[0]);
  EXPECT_TRUE(soon([] { return fake_cuda_count("copies.h2d") == 6; }));  // two fields of three batches
  EXPECT_EQ(0u, batch->ticket().index);
  EXPECT_TRUE(soon([&] { return feed.statistics().slots_held == 0; }));
  EXPECT_EQ(std::pair(uint64_t{0}, uint64_t{1}), feed.position());  // not those that were copied ahead
  on(kCuda, fake_cuda_resume, streams[0]);
}

// Breaks when the device slot is free at the end of the tensor, and not at that of the work; and when
// on_starved does not wait for that work.
TEST_F(Feeds, ADeviceSlotIsFreeWhenTheWorkOnItIsDone) {
  for (const int32_t on_starved : {TENON_ON_STARVED_WAIT, TENON_ON_STARVED_COPY, TENON_ON_STARVED_RAISE}) {
    tenon_feed_options given = options(1, 6, 8);
    given.on_starved = on_starved;
    DeviceFeed feed(source, given, 2);
    feed.begin();
    ASSERT_EQ(0, on(kCuda, fake_cuda_hold, streams[0]));
    for (int i = 0; i < 2; ++i) use(*next(feed), 0, streams[0]);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(is_late(feed));
    EXPECT_NE(feed.waiting_text().find("all 2 device slots on cuda:0"), std::string::npos);
    on(kCuda, fake_cuda_resume, streams[0]);
    EXPECT_EQ(2u, next(feed)->ticket().index);
    EXPECT_EQ(0u, feed.statistics().copied);
  }
}

// Breaks when on_starved waits for work that uses no device slot.
TEST_F(Feeds, OnStarvedDoesNotWaitForOtherWork) {
  const Held source_of_other = counting({4});
  const Held other = make(kOther, {4});
  Hold hold(StreamKind::kToDevice, kOther);
  tenon_op* op = nullptr;
  ASSERT_EQ(TENON_OK, tenon_push_copy(source_of_other, other, nullptr, &op, &error)) << error.message;
  ASSERT_TRUE(soon([&] { return statistics().submitted != 0; }));
  tenon_feed_options given = options(1, 6, 8);
  given.on_starved = TENON_ON_STARVED_RAISE;
  DeviceFeed feed(source, given, 2);
  feed.begin();
  const Ref<Batch> held[] = {next(feed), next(feed)};
  constexpr int64_t kWatchdog = 60'000'000'000;
  Ref<Batch> third;
  try {
    EXPECT_TRUE(feed.next(kWatchdog, third));
    ADD_FAILURE() << "the consumer holds both device slots";
  } catch (const Error& e) {
    EXPECT_EQ(Code::kLeaseConflict, e.code()) << e.what();
  }
  hold.release();
  EXPECT_EQ(TENON_OK, tenon_op_wait(op, -1, &error)) << error.message;
  tenon_op_release(op);
}

// Breaks when the slot is given back when the copy is submitted.
TEST_F(Feeds, ASlotOfTheHostIsFreeAtTheEventOfItsCopy) {
  DeviceFeed feed(source, options(1, 4, 8), 2);
  Hold hold(StreamKind::kToDevice);
  feed.begin();
  const Ref<Batch> batch = next(feed);  // does not wait for the copy
  EXPECT_TRUE(soon([&] { return statistics().submitted >= 2; }));
  EXPECT_GE(feed.statistics().slots_held, 1);
  hold.release();
  EXPECT_TRUE(soon([&] { return feed.statistics().slots_held == 0; }));
  look_on_host(*batch);
}

TEST_F(Feeds, AFailureIsRaisedAtItsBatchAlsoIfItWasFoundAhead) {
  source.fail_at = 2;
  DeviceFeed feed(source, options(1, 6, 8), 4);
  feed.begin();
  ASSERT_TRUE(soon([&] { return feed.statistics().slots_ready >= 2; }));
  look_on_host(*next(feed));
  EXPECT_EQ(std::pair(uint64_t{0}, uint64_t{1}), feed.position());
  look_on_host(*next(feed));
  Ref<Batch> batch;
  try {
    (void)feed.next(kForever, batch);
    FAIL() << "batch 2 has failed";
  } catch (const Error& e) {
    EXPECT_EQ(Code::kOp, e.code());
    EXPECT_NE(std::string(e.what()).find("returned 7 at batch 2 of epoch 0"), std::string::npos) << e.what();
  }
  source.fail_at = kNever;
  feed.begin();
  EXPECT_EQ(1u, next(feed)->ticket().epoch);
}

TEST_F(Feeds, ACopyThatFailsIsRaisedAtItsBatchWithItsCause) {
  DeviceFeed feed(source, options(1, 6, 8), 2);
  feed.begin();
  ASSERT_TRUE(soon([&] { return feed.statistics().slots_ready >= 4; }));
  Ref<Batch> batch = next(feed);  // batch 1 is copied, too
  look_on_host(*batch);
  EXPECT_TRUE(soon([] { return tenon_engine_unfinished() == 0; }));
  fake_cuda_fail("cuMemcpyAsync", 0, 719);
  batch = {};
  batch = next(feed);  // batch 2 takes the device slot of batch 0
  EXPECT_TRUE(soon([] { return tenon_engine_unfinished() == 0; }));
  fake_cuda_fail(nullptr, 0, 0);
  look_on_host(*batch);
  try {
    (void)feed.next(kForever, batch);
    FAIL() << "the copy of batch 2 has failed";
  } catch (const Error& e) {
    EXPECT_EQ(Code::kOp, e.code());
    const std::string text = e.what();
    EXPECT_NE(text.find("cannot deliver batch 2 of epoch 0: op 'copy to cuda:0' failed"), std::string::npos)
        << text;
    EXPECT_NE(text.find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << text;
  }
  EXPECT_EQ(TENON_NOT_COPIED, feed.failure().kind);
  EXPECT_EQ(2u, feed.failure().index);
  EXPECT_EQ(nullptr, next(feed).get());  // the epoch has ended
  EXPECT_EQ(std::pair(uint64_t{1}, uint64_t{0}), feed.position());
  batch = {};
  feed.begin();
  look_on_host(*next(feed));
}

TEST_F(Feeds, WithoutRegisteredMemoryBatchesGoThroughPinnedSlots) {
  fake_cuda_fail("cuMemHostRegister_v2", 0, 801);
  for (const bool has_pinned : {true, false}) {
    if (!has_pinned) fake_cuda_fail("cuMemHostAlloc", 0, 2);
    DeviceFeed feed(source, options(2, 4, 12), 3);
    EXPECT_EQ(static_cast<int32_t>(has_pinned ? HostMemory::kStaged : HostMemory::kPageable),
              feed.statistics().host_memory);
    EXPECT_EQ(has_pinned, statistics().pinned_nbytes != 0);
    feed.begin();
    while (const Ref<Batch> batch = next(feed)) use(*batch, 0, streams[0]);
    EXPECT_EQ(TENON_OK, tenon_wait_all(-1, &error));
    EXPECT_EQ(!has_pinned, fake_cuda_count("copies.pageable") != 0);
  }
}

// Breaks when a consumer gets pinned slots: what it submits from them may read them after it drops them.
TEST_F(Feeds, SlotsArePinnedOnlyWhileNoConsumerGetsThem) {
  Feed feed(source.generator(), schema(), options(1, 6, 8));
  const auto has_pinned = [&] { return statistics().registered_nbytes != 0; };
  feed.use_device(kCuda, 3);
  EXPECT_TRUE(has_pinned());
  feed.begin();
  Ref<Batch> batch = next(feed);
  feed.use_device(kCpu, 0);
  EXPECT_FALSE(has_pinned());
  feed.begin();
  batch = next(feed);
  feed.use_device(kCuda, 3);
  EXPECT_FALSE(has_pinned());
  EXPECT_EQ(static_cast<int32_t>(HostMemory::kStaged), feed.statistics().host_memory);
  feed.begin();
  look_on_host(*next(feed));
  batch = {};
  EXPECT_TRUE(soon([&] { return feed.statistics().slots_held == 0; }));  // of the copies of other batches
  feed.use_device(kOther, 3);
  EXPECT_TRUE(has_pinned());
}

TEST_F(Feeds, AConsumerThatKeepsAllDeviceSlotsGetsWhatOnStarvedSays) {
  for (const int32_t on_starved : {TENON_ON_STARVED_WAIT, TENON_ON_STARVED_COPY, TENON_ON_STARVED_RAISE}) {
    tenon_feed_options given = options(1, 4, 8);
    given.on_starved = on_starved;
    DeviceFeed feed(source, given, 2);
    feed.begin();
    std::vector<Ref<Batch>> kept{next(feed), next(feed)};
    EXPECT_TRUE(soon([&] { return statistics().submitted == 0; }));
    switch (on_starved) {
      case TENON_ON_STARVED_COPY:
        while (Ref<Batch> batch = next(feed)) kept.push_back(std::move(batch));
        EXPECT_EQ(8u, kept.size());
        EXPECT_EQ(6u, feed.statistics().copied);
        break;
      case TENON_ON_STARVED_RAISE: {
        Ref<Batch> batch;
        try {
          (void)feed.next(kForever, batch);
          FAIL() << "both device slots are held";
        } catch (const Error& e) {
          EXPECT_EQ(Code::kLeaseConflict, e.code()) << e.what();
        }
        kept.erase(kept.begin());
        kept.push_back(next(feed));
        break;
      }
      default:
        EXPECT_TRUE(is_late(feed));
        feed.seek(5, 6);  // two batches before the end, which needs no device slot
        feed.begin();
        kept.clear();
        while (Ref<Batch> batch = next(feed)) kept.push_back(std::move(batch));
        EXPECT_EQ(2u, kept.size());
    }
    for (const Ref<Batch>& batch : kept) look_on_host(*batch);
  }
}

TEST_F(Feeds, BatchesOutliveTheFeed) {
  std::vector<Ref<Batch>> kept;
  {
    DeviceFeed feed(source, options(2, 6, 8), 4);
    feed.begin();
    for (int i = 0; i < 2; ++i) kept.push_back(next(feed));
    feed.close(kForever);
    Ref<Batch> batch;
    for (const auto& call :
         std::vector<std::function<void()>>{[&] { (void)feed.next(0, batch); }, [&] { feed.begin(); },
                                            [&] { feed.use_device(kOther, 3); }}) {
      try {
        call();
        ADD_FAILURE() << "the feed is closed";
      } catch (const Error& e) {
        EXPECT_EQ(Code::kClosed, e.code()) << e.what();
      }
    }
  }
  for (const Ref<Batch>& batch : kept) look_on_host(*batch);
}

// Breaks when the end of a feed unpins its slots, or frees its device slots, under copies.
TEST_F(Feeds, TheEndOfAFeedWaitsForItsCopies) {
  Hold hold(StreamKind::kToDevice);
  std::atomic<bool> has_ended{false};
  auto feed = std::make_unique<DeviceFeed>(source, options(1, 4, 8), 3);
  feed->begin();
  EXPECT_NE(nullptr, next(*feed).get());
  EXPECT_TRUE(soon([&] { return statistics().submitted >= 2; }));
  std::thread end([&] {
    feed.reset();
    has_ended = true;
  });
  moment(20);
  EXPECT_FALSE(has_ended);
  EXPECT_NE(0u, statistics().registered_nbytes);
  EXPECT_NE(0u, statistics().device_nbytes);
  hold.release();
  end.join();
}

// A program that does not end its feed does not hang at its end, whatever the device does.
TEST_F(Feeds, TheEndOfAFeedDoesNotWaitLongForADevice) {
  Hold hold(StreamKind::kToDevice);
  {
    DeviceFeed feed(source, options(1, 4, 8), 3);
    feed.begin();
    (void)next(feed);
  }
  EXPECT_NE(0u, statistics().registered_nbytes);  // until the copies are done
}

TEST_F(Feeds, PositionsAreThoseOfAFeedOnTheHost) {
  using Position = std::pair<uint64_t, uint64_t>;
  std::vector<std::vector<Position>> all;
  for (const tenon_device device : {kCpu, kCuda}) {
    for (const int64_t batches : {int64_t{3}, int64_t{-1}}) {
      source.end_at = batches < 0 ? 3 : kNever;
      Feed feed(source.generator(), schema(), options(1, 4, batches));
      feed.use_device(device, 4);
      std::vector<Position> seen;
      for (int epoch = 0; epoch < 3; ++epoch) {
        feed.begin();
        seen.push_back(feed.position());
        for (int i = 0; i < 3; ++i) {
          EXPECT_NE(nullptr, next(feed).get());
          moment(2);
          seen.push_back(feed.position());
        }
        if (epoch == 1) feed.seek(7, 1);
        if (epoch == 1) seen.push_back(feed.position());
        if (epoch != 2) {
          EXPECT_EQ(nullptr, next(feed).get());
        }
        seen.push_back(feed.position());
        feed.end();
        seen.push_back(feed.position());
        if (epoch == 1) feed.seek(8, 0);
      }
      all.push_back(std::move(seen));
    }
  }
  source.end_at = kNever;
  EXPECT_EQ(all[0], all[2]);
  EXPECT_EQ(all[1], all[3]);
}

// The n-th call of a function fails once. What arrives is what was filled, and the next epoch is whole.
TEST_F(Feeds, AFailureOfTheDriverLosesNoSlotAndNoOrder) {
  constexpr int kNoMemory = 2;
  constexpr int kUnknown = 999;
  for (const char* const call : {"cuMemHostRegister_v2", "cuMemAllocAsync", "cuMemcpyAsync", "cuEventCreate",
                                 "cuEventRecord", "cuStreamWaitEvent"}) {
    for (uint64_t n = 1; n <= 10; ++n) {
      SCOPED_TRACE(concat("call ", n, " of ", call));
      Feed feed(source.generator(), schema(), options(1, 4, 6));
      ASSERT_EQ(0, fake_cuda_fail(call, n, n % 2 == 0 ? kNoMemory : kUnknown));
      std::vector<Ref<Batch>> got;
      try {
        feed.use_device(kCuda, 6);
        feed.begin();
        Ref<Batch> batch;
        while (feed.next(kForever, batch) && batch) got.push_back(std::move(batch));
      } catch (const Error&) {
        // The failure.
      }
      const auto holds_value = [&](const Ref<Array>& array) {
        return tenon_array_wait(reinterpret_cast<tenon_array*>(array.get()), TENON_READ, -1, &error) ==
               TENON_OK;
      };
      uint64_t place = 0;
      for (const Ref<Batch>& batch : got) {
        EXPECT_EQ(place++, batch->ticket().index);
        if (!holds_value(batch->array(0)) || !holds_value(batch->array(1))) continue;
        fake_cuda_fail(nullptr, 0, 0);
        look_on_host(*batch);
      }
      fake_cuda_fail(nullptr, 0, 0);
      got.clear();
      feed.use_device(kCuda, 2);
      feed.begin();
      for (uint64_t index = 0; index < 6; ++index) {
        const Ref<Batch> batch = next(feed);
        ASSERT_NE(nullptr, batch.get());
        EXPECT_EQ(index, batch->ticket().index);
        look_on_host(*batch);
      }
      (void)tenon_wait_all(-1, &error);
      while (tenon_failure* const failure = tenon_failures_take()) tenon_failure_release(failure);
    }
  }
}

TEST_F(Feeds, TheDeviceCanChangeBetweenEpochs) {
  Feed feed(source.generator(), schema(), options(1, 6, 8));
  for (const tenon_device wrong : {kPinned, tenon_device{TENON_CUDA, 77}}) {
    EXPECT_THROW(feed.use_device(wrong, 3), Error);
  }
  EXPECT_THROW(feed.use_device(kCuda, 1), Error);
  uint64_t epoch = 0;
  for (const tenon_device device : {kCpu, kCuda, kOther, kCpu, kCuda}) {
    feed.use_device(device, 3);
    feed.begin();
    for (int i = 0; i < 3; ++i) {
      const Ref<Batch> batch = next(feed);
      EXPECT_EQ(epoch, batch->ticket().epoch);
      EXPECT_EQ(device.type, batch->array(0)->desc().device.type);
      EXPECT_EQ(device.id, batch->array(0)->desc().device.id);
      look_on_host(*batch);
    }
    ++epoch;
  }
  feed.seek(9, 4);
  feed.begin();
  EXPECT_EQ(4u, next(feed)->ticket().index);
  EXPECT_EQ(std::pair(uint64_t{9}, uint64_t{5}), feed.position());
}

TEST_F(Feeds, AnEpochThatEndsEarlyDropsWhatWasCopiedAhead) {
  DeviceFeed feed(source, options(2, 8, 8), 4);
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    feed.begin();
    for (uint64_t index = 0; index < epoch % 4; ++index) {
      const Ref<Batch> batch = next(feed);
      EXPECT_EQ(epoch, batch->ticket().epoch);
      EXPECT_EQ(index, batch->ticket().index);
      use(*batch, 0, streams[epoch % 2]);
    }
    if (epoch % 3 != 0) feed.end();
    EXPECT_EQ(epoch % 3 != 0 ? epoch + 1 : epoch, feed.position().first);
  }
}

// Many schedules, each of an epoch: the seed draws sizes, what the consumer does with each batch, and the
// order of the streams. Work starts late by calls of the driver, so that no schedule waits for a clock.
// Breaks with each of these, tried one by one: no wait of the consumer's stream for the copy; a device slot
// that is free at the end of an export instead of at its event; a slot of the host that is free when its copy
// is submitted; an op that ends then; a copy that does not wait for the birth of the ring.
TEST_F(Feeds, NoScheduleReusesMemoryEarlyOrMissesAWait) {
  const uint64_t seed = new_seed();
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t n) { return random() % n; };
  const uint64_t schedules = repeats(uint64_t{100'000}, 1000, 200);
  uint64_t done = 0;
  const auto run_feed = [&] {
    const auto workers = static_cast<int32_t>(draw(3));
    const auto device_slots = static_cast<int32_t>(2 + draw(3));
    tenon_feed_options given = options(workers, workers + 1 + static_cast<int32_t>(draw(4)), 3 + draw(5));
    given.on_starved = draw(2) == 0 ? TENON_ON_STARVED_WAIT : TENON_ON_STARVED_COPY;
    DeviceFeed feed(source, given, device_slots);
    std::deque<Ref<Batch>> kept;
    for (uint64_t epoch = 0; epoch < 20 && wrong == 0 && !HasFailure(); ++epoch, ++done) {
      feed.begin();
      const uint64_t last = draw(3) == 0 ? draw(5) : kNever;
      for (uint64_t index = 0; index != last; ++index) {
        // At most one batch less than the ring has is kept, so that the feed can go on.
        while (kept.size() >= static_cast<size_t>(device_slots)) kept.pop_front();
        Ref<Batch> batch = next(feed);
        if (!batch) break;
        ASSERT_EQ(index, batch->ticket().index);
        ASSERT_EQ(epoch, batch->ticket().epoch);
        for (int32_t field = 0; field < 2; ++field) {
          if (draw(3) != 0) use(*batch, field, streams[draw(2)]);
        }
        if (draw(16) == 0) look_on_host(*batch);
        kept.push_back(std::move(batch));
        if (draw(3) != 0 && draw(2) == 0) use(*kept[draw(kept.size())], 0, streams[draw(2)]);
        while (kept.size() > draw(static_cast<uint64_t>(device_slots)))
          kept.erase(kept.begin() + static_cast<int64_t>(draw(kept.size())));
      }
      if (draw(2) == 0) feed.end();
    }
  };
  while (done < schedules && wrong == 0 && !HasFailure()) {
    fake_cuda_configure(concat("seed=", random(), ",delay_us=0,delay_calls=", draw(3) * 20).c_str());
    if (draw(4) == 0) fake_cuda_fail("cuMemHostRegister_v2", 0, 801);
    try {
      run_feed();
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
    fake_cuda_fail(nullptr, 0, 0);
  }
  EXPECT_TRUE(soon([&] { return statistics().submitted == 0; }));
  if (wrong != 0 || HasFailure()) ADD_FAILURE() << "in schedule " << done << " of TENON_SEED=" << seed;
  fake_cuda_configure("delay_us=50,delay_calls=0");
}

}  // namespace
}  // namespace tenon::impl
