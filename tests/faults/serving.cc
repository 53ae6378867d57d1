// SPDX-License-Identifier: Apache-2.0
#include "serving.h"

#include <unistd.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "faults.h"
#include "tenon/feed.hpp"
#include "tenon/pool.hpp"

namespace tenon::faults {
namespace {

namespace api = tenon::api0;

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kBatches = 4;

int fill(double* x, uint64_t index) {
  x[0] = static_cast<double>(index);
  return 0;
}

void expect(bool is_true, const char* what) {
  if (!is_true) throw std::logic_error(what);
}

void wait_for(tenon_feed* feed, int32_t what) {
  tenon_serve_report report{};
  report.struct_size = sizeof report;
  for (int i = 0; i < 10 && report.what == TENON_SERVE_NOTHING; ++i)
    api::call(tenon_feed_serve_wait, feed, kSecond, &report);
  expect(report.what == what, "the serving goes on");
}

api::Batch next(tenon_attached* attached, const api::Schema& schema) {
  tenon_batch* batch = nullptr;
  api::call(tenon_attached_next, attached, 10 * kSecond, &batch);
  return {batch, schema};
}

}  // namespace

void serve_feed() {
  // A descriptor that fstat() has not told about is not closed, as it may be another one by then. So it keeps
  // the name.
  const char* const failed = failed_call();
  const bool keeps_name = failed != nullptr && std::strcmp(failed, "fstat") == 0;
  const std::string name = "faults-" + std::to_string(getpid()) + (keeps_name ? "-again" : "");
  const api::Schema schema{api::field<double>("x", {10})};
  const api::Function function =
      api::Function::from_address(reinterpret_cast<void*>(fill), "int fill(double *x, uint64_t index)", true);
  api::Feed feed(
      function.bind(schema, {}), schema,
      {.workers = 2, .slots = 5, .batches = kBatches, .has_shared_slots = true, .shared_name = name});
  for (const int32_t consumers : {1, 1}) {  // served anew
    tenon_serve_options options{};
    options.struct_size = sizeof options;
    options.mode = TENON_SERVE_BROADCAST;
    options.consumers = consumers;
    api::call(tenon_feed_serve, feed.get(), &options);
    tenon_attached* made = nullptr;
    api::call(tenon_attach_feed, name.c_str(), &made);
    const std::unique_ptr<tenon_attached, decltype(&tenon_attached_release)> attached(made,
                                                                                      tenon_attached_release);
    api::call(tenon_attached_begin, made);
    wait_for(feed.get(), TENON_SERVE_GATHERED);
    api::call(tenon_feed_serve_next, feed.get());
    std::vector<api::Batch> kept;
    for (uint64_t n = 0; n < kBatches; ++n) {
      kept.push_back(next(made, schema));
      expect(kept.back().get() != nullptr, "every batch comes");
      expect(kept.back()["x"].as<const double, 1>()(0) == static_cast<double>(kept.back().index()),
             "each batch holds its own number");
      if (kept.size() == 2) kept.erase(kept.begin());
    }
    expect(next(made, schema).get() == nullptr, "the epoch ends");
    wait_for(feed.get(), TENON_SERVE_EPOCH_ENDED);
    tenon_feed_serve_end(feed.get());
  }
}

void serve_pool() {
  const std::string path = "/tmp/tenon-test-" + std::to_string(getpid()) + ".socket";
  const api::TensorPool pool = api::TensorPool::create(1 << 20);
  {
    const api::PoolServer server = pool.serve(path);
    const api::PoolLink link = api::PoolLink::attach(path);
    link.offer(pool);
  }
  (void)unlink(path.c_str());  // if the server could not: the next one would replace it
}

}  // namespace tenon::faults
