// SPDX-License-Identifier: Apache-2.0
#include "data/native_function.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "sync/actor.h"

namespace tenon::impl {
namespace {

template <class Body>
std::string error_of(Code code, Body body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(NativeFunction, AFunctionOfALibraryIsCalled) {
  const Ref<NativeFunction> function =
      NativeFunction::load("libm.so.6", "double ldexp(double x, int e)", true);
  tenon_value arguments[2]{};
  arguments[0].f = 0.75;
  arguments[1].i = 4;
  EXPECT_EQ(function->call(arguments).f, 12.0);
}

TEST(NativeFunction, WithoutAPathASymbolOfTheProcessIsFound) {
  const Ref<NativeFunction> function = NativeFunction::load(nullptr, "size_t strlen(const void *s)", true);
  tenon_value argument{};
  argument.p = const_cast<char*>("tenon");
  EXPECT_EQ(function->call(&argument).u, 5u);
}

TEST(NativeFunction, WhatIsMissingIsNamed) {
  const std::string library = error_of(
      Code::kNotFound, [] { NativeFunction::load("./no_such_library.so", "int fill(float *data)", false); });
  EXPECT_NE(library.find("'./no_such_library.so'"), std::string::npos) << library;
  EXPECT_NE(library.find("No such file"), std::string::npos) << library;

  const std::string symbol = error_of(
      Code::kNotFound, [] { NativeFunction::load("libm.so.6", "double ldxep(double x, int e)", false); });
  EXPECT_NE(symbol.find("'libm.so.6' has no function 'ldxep'; did you mean 'ldexp'?"), std::string::npos)
      << symbol;

  const std::string in_process = error_of(
      Code::kNotFound, [] { NativeFunction::load(nullptr, "int no_such_function_here(void)", false); });
  EXPECT_NE(in_process.find("no function 'no_such_function_here'"), std::string::npos) << in_process;

  error_of(Code::kValue, [] { NativeFunction::load("libm.so.6", "double cos(double", false); });
  error_of(Code::kValue, [] { NativeFunction::create(nullptr, "double cos(double x)", false); });
}

std::atomic<int> inside{0};
std::atomic<int> most_inside{0};

void crowd() {
  const int now = ++inside;
  int most = most_inside;
  while (now > most && !most_inside.compare_exchange_weak(most, now)) {
  }
  for (int i = 0; i < 20; ++i) std::this_thread::yield();
  --inside;
}

TEST(NativeFunction, OneCallAtATimeUnlessThreadsafe) {
  const Ref<NativeFunction> function =
      NativeFunction::create(reinterpret_cast<void*>(crowd), "void crowd(void)", false);
  most_inside = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) function->call(nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most_inside, 1);
}

NativeFunction* calls_itself = nullptr;
std::string refusal;

void call_itself() {
  refusal = error_of(Code::kValue, [] { calls_itself->call(nullptr); });
}

TEST(NativeFunction, ACallFromInsideOfItselfIsRefusedAndDoesNotHang) {
  const Ref<NativeFunction> function =
      NativeFunction::create(reinterpret_cast<void*>(call_itself), "void call_itself(void)", false);
  calls_itself = function.get();
  for (int i = 0; i < 2; ++i) {
    refusal.clear();
    function->call(nullptr);
    EXPECT_NE(refusal.find("'call_itself' is called from inside of itself"), std::string::npos) << refusal;
  }
}

int function_that_ends(int code) {
  if (code == 7) pthread_exit(nullptr);
  return code;
}

TEST(NativeFunction, AfterACallThatEndsItsThreadOthersMayCall) {
  const Ref<NativeFunction> function =
      NativeFunction::create(reinterpret_cast<void*>(function_that_ends), "int ending(int code)", false);
  tenon_value bad{}, good{};
  bad.i = 7;
  good.i = 8;
  std::thread([&] {
    this_thread.may_end = true;
    (void)function->call(&bad);
    ADD_FAILURE() << "it returned";
  }).join();
  EXPECT_EQ(function->call(&good).i, 8);
}

}  // namespace
}  // namespace tenon::impl
