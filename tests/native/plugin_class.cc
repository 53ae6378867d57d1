// SPDX-License-Identifier: Apache-2.0
//
// A plug-in from a C++ class for the tests: what its configuration and its batches hold can be seen in what
// it writes; CASE makes classes of other forms.
#include "tenon/plugin.hpp"

#include <pthread.h>

#include <atomic>
#include <stdexcept>
#include <string>

using tenon::plugin::Config;
using tenon::plugin::field;
using tenon::plugin::Request;
using tenon::plugin::Schema;
using tenon::plugin::Setup;
using tenon::plugin::View;

namespace {

std::atomic<int64_t> objects{0};

#ifndef CASE
#define CASE 0
#endif

#if CASE == 0
struct Ramp {
  static constexpr bool is_threadsafe = true;

  static Schema schema(const Config& config) {
    const auto rows = config.get<int64_t>("rows", 4);
    return {field<float>("data", {rows, 3, 2}), field<int64_t>("label", {rows}), field<bool>("flag", {rows})};
  }

  explicit Ramp(const Setup& setup)
      : gain_(setup.config.get<float>("gain", 1.0F)),
        name_(setup.config.get<std::string>("name", "nobody")),
        worker_(setup.worker),
        seed_(setup.seed) {
    if (name_ == "worst") throw std::invalid_argument("the name '" + name_ + "' is taken");
    ++objects;
  }
  Ramp(const Ramp&) = delete;
  Ramp& operator=(const Ramp&) = delete;
  ~Ramp() { --objects; }

  void operator()(const Request& request, View<float, 3, true> data, View<int64_t, 1> label,
                  const View<bool, 1>& flag) {
    if (request.index == 3 && name_ == "thrower") throw std::runtime_error("no batch " + name_);
    if (request.index == 2 && name_ == "quitter") pthread_exit(nullptr);
    if (request.index == 4 && name_ == "oddity") throw 42;  // NOLINT: no std::exception
    if (name_ == "stray") data(0, 3, 0) = 1;
    for (int64_t i = 0; i < request.rows; ++i) {
      for (int64_t j = 0; j < data.shape(1); ++j) {
        for (int64_t k = 0; k < data.shape(2); ++k) {
          data(i, j, k) = gain_ * static_cast<float>(100 * request.index + 10 * static_cast<uint64_t>(i)) +
                          static_cast<float>(2 * j + k);
        }
      }
      label(i) = static_cast<int64_t>(name_.size() * 1000 + request.epoch * 10) + worker_ - request.worker;
      flag(i) = seed_ == 9 && request.seed != 9;
    }
  }

 private:
  const float gain_;
  const std::string name_;
  const int32_t worker_;
  const uint64_t seed_;
};
using Chosen = Ramp;
#elif CASE == 1  // no schema of its own, nothing to construct from, a code as its result
struct Plain {
  int32_t operator()(const Request& request, View<double, 2> data) const noexcept {
    for (double& element : data.span()) element = static_cast<double>(request.index);
    data.row(0)[0] = -1;
    return request.index == 5 ? 55 : 0;
  }
};
using Chosen = Plain;
#else            // says other fields than it takes
struct Liar {
  static Schema schema() { return {field<float>("data", {4, 3})}; }
  explicit Liar(const Config&) {}
  void operator()(const Request&, View<double, 2>) {}
};
using Chosen = Liar;
#endif

}  // namespace

TENON_PLUGIN(Chosen)

extern "C" TENON_PLUGIN_EXPORT int64_t count_objects() { return objects; }
