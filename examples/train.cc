// SPDX-License-Identifier: Apache-2.0
// train.cc - c++ -std=c++20 -O3 train.cc -ltenon -o train
//
// A model in C++ that trains on a feed: does a random walk end to the right of where it began? The plug-in of
// walk.cc generates the walks in two threads, ahead of the model, which reads them where they were filled.
//
//     ./train ./libwalk.so
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <tenon/feed.hpp>
#include <vector>

using tenon::View;

// Logistic regression, trained by gradient descent.
class Model {
 public:
  explicit Model(int64_t inputs) : weights_(static_cast<size_t>(inputs)), steps_(weights_.size()) {}

  // How many of the rows it would have labelled right, before it learns from them.
  int64_t train(const View<const float, 2>& data, const View<const int64_t, 1>& label, float rate) {
    std::fill(steps_.begin(), steps_.end(), 0.0f);
    int64_t right = 0;
    for (int64_t i = 0; i < data.shape(0); ++i) {
      const float* const walk = &data(i, 0);
      const float error = static_cast<float>(label(i)) - probability(walk);
      right += std::abs(error) < 0.5f;
      for (size_t k = 0; k < weights_.size(); ++k) steps_[k] += error * walk[k];
    }
    const float scale = rate / static_cast<float>(data.shape(0));
    for (size_t k = 0; k < weights_.size(); ++k) weights_[k] += scale * steps_[k];
    return right;
  }

 private:
  float probability(const float* walk) const {
    return 1 / (1 + std::exp(-std::inner_product(weights_.begin(), weights_.end(), walk, 0.0f)));
  }

  std::vector<float> weights_, steps_;
};

int main(int argc, char** argv) {
  try {
    const char* const library = argc > 1 ? argv[1] : "./libwalk.so";
    auto [generator, schema] = tenon::Plugin::open(library, R"({"rows": 64, "steps": 20})");
    tenon::Feed feed(std::move(generator), schema, {.workers = 2, .batches = 200, .seed = 1});
    Model model(schema[schema.find("data")].shape[1]);
    double accuracy = 0;
    for (int epoch = 0; epoch < 3; ++epoch) {
      int64_t right = 0;
      for (const tenon::Batch batch : feed.epoch()) {
        right += model.train(batch["data"].as<const float, 2>(), batch["label"].as<const int64_t, 1>(), 0.1f);
      }
      accuracy = static_cast<double>(right) / static_cast<double>(200 * schema.rows());
      std::printf("epoch %d: accuracy %.3f\n", epoch, accuracy);
    }
    return accuracy > 0.95 ? 0 : 1;
  } catch (const tenon::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
