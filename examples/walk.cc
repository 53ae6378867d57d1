// SPDX-License-Identifier: Apache-2.0
// walk.cc - c++ -std=c++20 -O3 -shared -fPIC $(tenon config --includes) walk.cc -o libwalk.so
#include <random>

#include "tenon/plugin.hpp"

using namespace tenon::plugin;

// Random walks, and whether each ends to the right of where it began. Each worker has a Walk of its own.
struct Walk {
  static constexpr bool is_threadsafe = true;

  static Schema schema(const Config& config) {
    const auto rows = config.get<int64_t>("rows", 64);
    return {field<float>("data", {rows, config.get<int64_t>("steps")}), field<int64_t>("label", {rows})};
  }

  explicit Walk(const Config& config) : step_(0, config.get<float>("sigma", 1)) {}

  void operator()(const Request& request, View<float, 2> data, View<int64_t, 1> label) {
    std::mt19937_64 random(request.seed);  // so that a batch is the same whatever worker fills it
    step_.reset();
    for (int64_t i = 0; i < request.rows; ++i) {
      float place = 0;
      for (float& element : data.row(i)) element = place += step_(random);
      label(i) = place > 0;
    }
  }

 private:
  std::normal_distribution<float> step_;
};

TENON_PLUGIN(Walk)
