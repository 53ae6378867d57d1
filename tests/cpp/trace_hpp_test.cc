// SPDX-License-Identifier: Apache-2.0
//
// A trace as a user of the C++ layer writes one: the file says what was done.
#include "tenon/trace.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "tenon/engine.hpp"

namespace {

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string fresh_path(const char* name) {
  return testing::TempDir() + "tenon-" + std::to_string(getpid()) + "-" + name;
}

void write_once() {
  const tenon::Array array = tenon::Array::zeros({2, 3}, tenon::DType("float32"));
  tenon::push([](const tenon::Array& a) { static_cast<float*>(a.data())[0] = 1; }, tenon::write(array))
      .wait();
}

TEST(TraceHpp, TheFileHasTheOpAndItsArray) {
  const std::string path = fresh_path("op.json");
  tenon::Trace trace(path);
  write_once();
  const tenon_trace_counts counts = trace.stop();
  EXPECT_GE(counts.events, 1u);
  EXPECT_EQ(counts.lost, 0u);
  const std::string text = text_of(path);
  EXPECT_NE(text.find("writes shape (2, 3) and dtype float32"), std::string::npos) << text;
  EXPECT_NE(text.find("\"outcome\": \"done\""), std::string::npos) << text;
  (void)std::remove(path.c_str());
}

TEST(TraceHpp, TheEndOfTheObjectWritesIt) {
  const std::string path = fresh_path("end.json");
  {
    const tenon::Trace trace(path);
    EXPECT_THROW(tenon::Trace(path, 10), tenon::Error) << "one at a time";
    write_once();
  }
  EXPECT_NE(text_of(path).find("\"cat\": \"op\""), std::string::npos);
  (void)std::remove(path.c_str());
  EXPECT_THROW(tenon::Trace("/no/such/folder/run.json"), tenon::Error);
}

}  // namespace
