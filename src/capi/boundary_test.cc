// SPDX-License-Identifier: Apache-2.0
//
// Nothing that is thrown crosses the C boundary. Every function of tenon.h that returns a status is called
// with a body that throws; the table below is compared with the header, so that none is forgotten.
#include "capi/boundary.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "tenon/dlpack.h"

namespace tenon::impl::capi {
namespace {

using Call = std::function<tenon_status(tenon_error*)>;

// A call with NULL and zero arguments: the injected fault comes before any of them is used.
template <class... Arguments>
Call with_nulls(tenon_status (*function)(Arguments...)) {
  return [function](tenon_error* error) {
    std::tuple<Arguments...> arguments{};
    std::get<sizeof...(Arguments) - 1>(arguments) = error;
    return std::apply(function, arguments);
  };
}

const std::map<std::string, Call>& entries() {
#define ENTRY(function) std::pair(std::string(#function), with_nulls(function))
  static const std::map<std::string, Call> table = {
      ENTRY(tenon_dtype_from_name),
      ENTRY(tenon_dtype_check),
      ENTRY(tenon_array_create),
      ENTRY(tenon_array_adopt),
      ENTRY(tenon_array_alias),
      ENTRY(tenon_array_index),
      ENTRY(tenon_array_reshape),
      ENTRY(tenon_array_transpose),
      ENTRY(tenon_array_reinterpret),
      ENTRY(tenon_array_broadcast),
      ENTRY(tenon_array_readonly),
      ENTRY(tenon_array_move_out),
      ENTRY(tenon_array_renew),
      ENTRY(tenon_array_unchecked),
      ENTRY(tenon_array_make_consistent),
      ENTRY(tenon_array_copy_to),
      ENTRY(tenon_array_fill),
      ENTRY(tenon_array_copy),
      ENTRY(tenon_tensor_pool_create),
      ENTRY(tenon_tensor_pool_empty),
      ENTRY(tenon_tensor_pool_freeze),
      ENTRY(tenon_tensor_pool_send),
      ENTRY(tenon_tensor_pool_key),
      ENTRY(tenon_tensor_pool_revoke),
      ENTRY(tenon_tensor_pool_stats),
      ENTRY(tenon_tensor_pool_note),
      ENTRY(tenon_tensor_pool_serve),
      ENTRY(tenon_pool_attach),
      ENTRY(tenon_pool_link_offer),
      ENTRY(tenon_message_open),
      ENTRY(tenon_message_key),
      ENTRY(tenon_message_revoke),
      ENTRY(tenon_message_take_over),
      ENTRY(tenon_shared_create),
      ENTRY(tenon_shared_attach),
      ENTRY(tenon_shared_send),
      ENTRY(tenon_shared_open),
      ENTRY(tenon_shared_receive),
      ENTRY(tenon_handle_take_over),
      ENTRY(tenon_shared_describe),
      ENTRY(tenon_shared_collect),
      ENTRY(tenon_arena_create),
      ENTRY(tenon_arena_over),
      ENTRY(tenon_arena_open),
      ENTRY(tenon_arena_use),
      ENTRY(tenon_arena_request),
      ENTRY(tenon_arena_enter),
      ENTRY(tenon_arena_array),
      ENTRY(tenon_channel_create),
      ENTRY(tenon_channel_create_bytes),
      ENTRY(tenon_channel_open),
      ENTRY(tenon_channel_open_as),
      ENTRY(tenon_channel_loan),
      ENTRY(tenon_channel_loan_bytes),
      ENTRY(tenon_channel_receive),
      ENTRY(tenon_channel_wait),
      ENTRY(tenon_channel_join),
      ENTRY(tenon_channel_fd),
      ENTRY(tenon_item_send),
      ENTRY(tenon_item_drop),
      ENTRY(tenon_item_set_nbytes),
      ENTRY(tenon_item_put_back),
      ENTRY(tenon_item_array),
      ENTRY(tenon_array_lazy_copy),
      ENTRY(tenon_mapping_lend),
      ENTRY(tenon_view_open),
      ENTRY(tenon_lease_acquire),
      ENTRY(tenon_lease_request),
      ENTRY(tenon_lease_check),
      ENTRY(tenon_push),
      ENTRY(tenon_op_wait),
      ENTRY(tenon_op_on_done),
      ENTRY(tenon_handle_limit),
      ENTRY(tenon_handle_set_opens),
      ENTRY(tenon_shared_revoke),
      ENTRY(tenon_call_begin),
      ENTRY(tenon_await_begin),
      ENTRY(tenon_wait_all),
      ENTRY(tenon_array_wait),
      ENTRY(tenon_engine_set),
      ENTRY(tenon_engine_wait_for_bodies),
      ENTRY(tenon_engine_shut_down),
      ENTRY(tenon_array_to_dlpack),
      ENTRY(tenon_array_to_dlpack_legacy),
      ENTRY(tenon_array_from_dlpack),
      ENTRY(tenon_array_from_dlpack_legacy),
      ENTRY(tenon_function_load),
      ENTRY(tenon_function_create),
      ENTRY(tenon_function_call),
      ENTRY(tenon_function_bind),
      ENTRY(tenon_schema_create),
      ENTRY(tenon_plugin_open),
      ENTRY(tenon_plugin_look),
      ENTRY(tenon_feed_create),
      ENTRY(tenon_feed_begin),
      ENTRY(tenon_feed_use_device),
      ENTRY(tenon_feed_next),
      ENTRY(tenon_feed_wait),
      ENTRY(tenon_feed_state_take),
      ENTRY(tenon_feed_resume),
      ENTRY(tenon_feed_close),
      ENTRY(tenon_feed_serve),
      ENTRY(tenon_feed_serve_wait),
      ENTRY(tenon_feed_serve_next),
      ENTRY(tenon_feed_serve_wanted),
      ENTRY(tenon_attach_feed),
      ENTRY(tenon_attached_begin),
      ENTRY(tenon_attached_next),
      ENTRY(tenon_attached_resume),
      ENTRY(tenon_attached_state_take),
      ENTRY(tenon_trace_begin),
      ENTRY(tenon_trace_end),
      ENTRY(tenon_worker_commit),
      ENTRY(tenon_worker_join),
      ENTRY(tenon_worker_next),
  };
#undef ENTRY
  return table;
}

class Injected {
 public:
  explicit Injected(void (*thrower)()) { fault = thrower; }
  ~Injected() { fault = nullptr; }
};

void expect_everywhere(void (*thrower)(), tenon_status status, const char* message) {
  const Injected injected(thrower);
  for (const auto& [name, call] : entries()) {
    tenon_error error = TENON_ERROR_INIT;
    EXPECT_EQ(call(&error), status) << name;
    EXPECT_EQ(error.code, status) << name;
    EXPECT_STREQ(error.message, message) << name;
    EXPECT_EQ(call(nullptr), status) << name;
  }
}

TEST(Boundary, TheTableNamesEveryFallibleFunctionOfTheHeader) {
  std::stringstream text;
  for (const char* name : {"core.h", "feed.h", "share.h", "pool.h", "trace.h"})
    text << std::ifstream(std::string(TENON_HEADERS) + name).rdbuf();
  const std::string header = text.str();
  const std::regex declaration(R"(TENON_API tenon_status (tenon_\w+)\()");
  std::set<std::string> declared;
  for (std::sregex_iterator it(header.begin(), header.end(), declaration), end; it != end; ++it)
    declared.insert((*it)[1]);
  std::set<std::string> listed;
  for (const auto& [name, call] : entries()) listed.insert(name);
  ASSERT_GT(declared.size(), 20U);
  EXPECT_EQ(declared, listed);
}

TEST(Boundary, OutOfMemoryHasAMessage) {
  expect_everywhere([] { throw std::bad_alloc(); }, TENON_ERR_NO_MEMORY, "out of memory");
}

TEST(Boundary, AnErrorKeepsItsCodeAndMessage) {
  expect_everywhere([] { throw_error(Code::kTimeout, "waited ", 5, " s"); }, TENON_ERR_TIMEOUT, "waited 5 s");
}

TEST(Boundary, OtherExceptionsAreInternal) {
  expect_everywhere([] { throw std::runtime_error("odd"); }, TENON_ERR_INTERNAL, "odd");
}

TEST(Boundary, AnythingThrownIsCaught) {
  expect_everywhere([] { throw 42; }, TENON_ERR_INTERNAL, "unknown exception");
}

TEST(Boundary, EveryCodeHasAName) {
  for (tenon_status code = TENON_OK; code <= TENON_ERR_INTERNAL; ++code) {
    EXPECT_EQ(std::string(tenon_status_name(code)).rfind("TENON_", 0), 0U) << code;
  }
  EXPECT_STREQ(tenon_status_name(99), "unknown status");
}

TEST(Boundary, LongMessagesAreCutAndEnded) {
  const std::string text(2000, 'x');
  tenon_error error = TENON_ERROR_INIT;
  report(&error, TENON_ERR_VALUE, text.c_str(), 7);
  EXPECT_EQ(std::strlen(error.message), sizeof error.message - 1);
  EXPECT_EQ(error.op_code, 7);
}

TEST(Boundary, AMessageIsCutBetweenCharacters) {
  tenon_error error = TENON_ERROR_INIT;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "\u00e9";  // two bytes each
  (void)report(&error, TENON_ERR_VALUE, text.c_str(), 0);
  EXPECT_EQ(std::strlen(error.message), (sizeof error.message - 1) / 2 * 2);
  (void)report(&error, TENON_ERR_VALUE, ("x" + text).c_str(), 0);
  EXPECT_EQ(std::strlen(error.message), sizeof error.message - 1);
}

TEST(Boundary, ShorterErrorStructsOfOlderCallersAreNotOverrun) {
  tenon_error error;
  std::memset(&error, 0x7e, sizeof error);
  error.struct_size = offsetof(tenon_error, message) + 16;
  report(&error, TENON_ERR_VALUE, "a text that is longer than sixteen bytes", 7);
  EXPECT_STREQ(error.message, "a text that is ");
  EXPECT_EQ(error.message[16], 0x7e);
  EXPECT_EQ(error.op_code, 0x7e7e7e7e);
  error.struct_size = 4;
  EXPECT_EQ(report(&error, TENON_ERR_TYPE, "x"), TENON_ERR_TYPE);
  EXPECT_EQ(error.code, TENON_ERR_VALUE);
}

TEST(Boundary, SuccessLeavesTheErrorAlone) {
  tenon_error error = TENON_ERROR_INIT;
  error.code = 77;
  tenon_dtype dtype;
  EXPECT_EQ(tenon_dtype_from_name("float32", &dtype, &error), TENON_OK);
  EXPECT_EQ(error.code, 77);
}

TEST(Boundary, NullArgumentsAreErrors) {
  const std::set<std::string> without_pointers{"tenon_wait_all", "tenon_engine_shut_down",
                                               "tenon_engine_wait_for_bodies"};
  for (const auto& [name, call] : entries()) {
    if (without_pointers.contains(name)) continue;
    EXPECT_NE(call(nullptr), TENON_OK) << name;
  }
}

TEST(Boundary, ATensorIsConsumedEvenWhenTheArgumentsAreWrong) {
  static int deaths = 0;
  DLManagedTensorVersioned tensor{};
  tensor.version = {1, 3};
  tensor.deleter = [](DLManagedTensorVersioned*) { ++deaths; };
  tenon_array* out = nullptr;
  EXPECT_EQ(tenon_array_from_dlpack(&tensor, 1U << 30, &out, nullptr), TENON_ERR_VALUE);
  EXPECT_EQ(deaths, 1);
  EXPECT_EQ(tenon_array_from_dlpack(&tensor, 0, nullptr, nullptr), TENON_ERR_VALUE);
  EXPECT_EQ(deaths, 2);
  const Injected injected([] { throw 42; });
  EXPECT_EQ(tenon_array_from_dlpack(&tensor, 0, &out, nullptr), TENON_ERR_INTERNAL);
  EXPECT_EQ(deaths, 3);
}

// What several functions have in common, and would say of one of them.
TEST(Boundary, ErrorsNameTheFunctionThatWasCalled) {
  constexpr uint32_t kUnknown = 1U << 30;
  const int64_t shape[] = {4};
  const tenon_field field{"x", {TENON_FLOAT, 32, 1}, 1, shape};
  const tenon_layout layout{"a", 1, 0, &field};
  tenon_shared_options shared{};
  shared.struct_size = sizeof shared;
  shared.flags = kUnknown;
  tenon_channel_options channel{};
  channel.struct_size = sizeof channel;
  channel.slots = 3;
  DLManagedTensor tensor{};
  tenon_array* array = nullptr;
  tenon_arena* arena = nullptr;
  tenon_channel* made = nullptr;
  const std::pair<const char*, Call> calls[] = {
      {"tenon_shared_create",
       [&](tenon_error* e) { return tenon_shared_create(field.dtype, 1, shape, 0, &shared, &array, e); }},
      {"tenon_arena_create",
       [&](tenon_error* e) { return tenon_arena_create(1, &layout, &shared, &arena, e); }},
      {"tenon_channel_create",
       [&](tenon_error* e) { return tenon_channel_create(1, &field, &channel, &shared, &made, e); }},
      {"tenon_array_from_dlpack_legacy",
       [&](tenon_error* e) { return tenon_array_from_dlpack_legacy(&tensor, kUnknown, &array, e); }},
  };
  for (const auto& [name, call] : calls) {
    tenon_error error = TENON_ERROR_INIT;
    EXPECT_EQ(call(&error), TENON_ERR_VALUE) << name;
    EXPECT_EQ(std::string(error.message).find(std::string(name) + ": unknown flags"), 0U) << error.message;
  }
}

TEST(Boundary, AWaitForAnArrayIsNotCalledALease) {
  const int64_t shape[] = {4};
  tenon_array *array = nullptr, *fixed = nullptr;
  tenon_error error = TENON_ERROR_INIT;
  ASSERT_EQ(tenon_array_create({TENON_FLOAT, 32, 1}, 1, shape, {TENON_CPU, 0}, 0, &array, nullptr), TENON_OK);
  ASSERT_EQ(tenon_array_readonly(array, &fixed, nullptr), TENON_OK);
  EXPECT_EQ(tenon_array_wait(fixed, TENON_WRITE, 0, &error), TENON_ERR_BUFFER);
  EXPECT_EQ(std::string(error.message).find("lease"), std::string::npos) << error.message;
  tenon_lease lease = TENON_LEASE_INIT;
  tenon_lease_options options{};
  options.struct_size = sizeof options;
  options.access = TENON_WRITE;
  ASSERT_EQ(tenon_lease_acquire(&lease, array, &options, nullptr), TENON_OK);
  tenon_lease_detach(&lease);
  EXPECT_EQ(tenon_array_wait(array, TENON_READ, 0, &error), TENON_ERR_TIMEOUT);
  EXPECT_EQ(std::string(error.message).find("cannot wait to read the array"), 0U) << error.message;
  (void)tenon_lease_release(&lease);
  tenon_array_release(fixed);
  tenon_array_release(array);
}

TEST(View, ClosingTwiceIsHarmlessAndOpeningTwiceIsAnError) {
  const int64_t shape[] = {4};
  tenon_array* array = nullptr;
  ASSERT_EQ(tenon_array_create({TENON_FLOAT, 32, 1}, 1, shape, {TENON_CPU, 0}, 0, &array, nullptr), TENON_OK);
  tenon_view view = TENON_VIEW_INIT;
  ASSERT_EQ(tenon_view_open(&view, array, TENON_WRITE, nullptr, nullptr), TENON_OK);
  EXPECT_EQ(tenon_view_open(&view, array, TENON_READ, nullptr, nullptr), TENON_ERR_VALUE);
  EXPECT_EQ(tenon_array_views(array).writers, 1U);
  tenon_view_close(&view);
  tenon_view_close(&view);
  EXPECT_EQ(tenon_array_views(array).writers, 0U);
  tenon_array* frozen = nullptr;
  ASSERT_EQ(tenon_array_readonly(array, &frozen, nullptr), TENON_OK);
  EXPECT_EQ(tenon_view_open(&view, frozen, TENON_WRITE, nullptr, nullptr), TENON_ERR_BUFFER);
  ASSERT_EQ(tenon_view_open(&view, frozen, TENON_READ, nullptr, nullptr), TENON_OK);
  tenon_array_release(frozen);
  tenon_array_release(array);
  tenon_view_close(&view);  // the view kept the storage
}

// The extension for Python prepares the memory of a view so (`prepare`), which is faster than clearing it.
TEST(View, OpeningLooksAtTheFirstWordAloneAndSetsTheOthers) {
  const int64_t shape[] = {4};
  tenon_array* array = nullptr;
  ASSERT_EQ(tenon_array_create({TENON_FLOAT, 32, 1}, 1, shape, {TENON_CPU, 0}, 0, &array, nullptr), TENON_OK);
  for (const int32_t access : {TENON_READ, TENON_WRITE, TENON_WRITE_OR_READ}) {
    tenon_view view;
    std::memset(&view, 0xFF, sizeof view);
    view.reserved[0] = nullptr;
    ASSERT_EQ(tenon_view_open(&view, array, access, nullptr, nullptr), TENON_OK);
    EXPECT_EQ(tenon_view_access(&view), access == TENON_READ ? TENON_READ : TENON_WRITE);
    EXPECT_EQ(tenon_array_views(array).readers + tenon_array_views(array).writers, 1U);
    tenon_view_close(&view);
    EXPECT_EQ(tenon_array_views(array).readers + tenon_array_views(array).writers, 0U);
  }
  tenon_array_release(array);
}

}  // namespace
}  // namespace tenon::impl::capi
