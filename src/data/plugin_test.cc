// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins are the libraries made of tests/native/plugin.c and plugin_class.cc, loaded as users' are. Oracle:
// their batches tell state, worker and seeds; the C library counts its states and the calls that met another
// call in the same state.
#include "data/plugin.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/feed.h"
#include "data/request_testing.h"
#include "data/seed.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kSeed = 77;
// Of plugin.c: what each row of "data" holds.
enum Column : size_t {
  kOpenWorker,
  kFillWorker,
  kOpenSeed,
  kBatchSeed,
  kIndex,
  kEpoch,
  kNth,
  kState,
  kColumns
};

std::string library(const char* name) { return std::string(TENON_TEST_PLUGINS) + "/lib" + name + ".so"; }

PluginTable table(const char* name) { return PluginTable::load(library(name).c_str()); }

OpenedPlugin open(const char* name, const char* config = nullptr, Ref<Schema> schema = {}) {
  return open_plugin(table(name), config, kSeed, std::move(schema));
}

// A generator that no feed has taken over.
struct Owned {
  explicit Owned(const OpenedPlugin& opened) : generator(opened.generator), schema(opened.schema) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { generator.drop(generator.context); }

  // A batch of rows that fit into 4; the first row of "data".
  std::vector<uint64_t> fill(int32_t worker, uint64_t index, int32_t wanted = 0) {
    std::vector<uint64_t> data(4 * kColumns, 0);
    std::vector<int64_t> label(4, 0);
    void* fields[]{data.data(), label.data()};
    const tenon_fill_request request = request_of(worker, fields, index, 2, index + 1000);
    message.assign(256, '\0');
    EXPECT_EQ(generator.fill(generator.context, &request, message.data(), message.size()), wanted);
    message.resize(std::string_view(message.c_str()).size());
    data.resize(kColumns);
    return data;
  }

  tenon_generator generator;
  Ref<Schema> schema;
  std::string message;
};

int64_t count(const char* name, const char* counter) {
  void* const handle = dlopen(library(name).c_str(), RTLD_NOW);
  return reinterpret_cast<int64_t (*)()>(dlsym(handle, counter))();
}

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

void expect_text(const std::string& text, const char* part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

Ref<Schema> schema_of(int64_t rows, int64_t columns) {
  const int64_t data[]{rows, columns};
  const tenon_field fields[]{{"data", DType(TENON_UINT, 64), 2, data},
                             {"label", DType(TENON_INT, 64), 1, data}};
  return Schema::make(fields);
}

TEST(Plugin, ItsDescriptionIsTheSchema) {
  const Owned owned(open("telling", R"({"rows": 3})"));
  ASSERT_EQ(owned.schema->fields().size(), 2u);
  const SchemaField& data = owned.schema->fields()[0];
  EXPECT_EQ(data.name, "data");
  EXPECT_EQ(data.dtype, DType(TENON_UINT, 64));
  EXPECT_EQ(data.shape, (std::vector<int64_t>{3, 8}));
  EXPECT_EQ(owned.schema->fields()[1].dtype, DType(TENON_INT, 64));
  EXPECT_STREQ(owned.generator.name, "telling");
  EXPECT_EQ(owned.generator.flags, uint32_t{TENON_THREADSAFE});
}

TEST(Plugin, EachWorkerHasAStateOpenedAtItsFirstFillAndClosedOnceAtTheEnd) {
  const int64_t opened = count("telling", "count_opened");
  const int64_t described = count("telling", "count_described");
  {
    Owned owned(open("telling"));
    EXPECT_EQ(count("telling", "count_described"), described + 1);
    EXPECT_EQ(count("telling", "count_open"), 0) << "the state that was described is closed";
    std::map<uint64_t, uint64_t> state_of_worker;
    for (uint64_t i = 0; i < 9; ++i) {
      const auto worker = static_cast<int32_t>(i % 3);
      const std::vector<uint64_t> row = owned.fill(worker, i);
      EXPECT_EQ(row[kOpenWorker], i % 3);
      EXPECT_EQ(row[kFillWorker], i % 3);
      EXPECT_EQ(row[kOpenSeed], kSeed);
      EXPECT_EQ(row[kBatchSeed], i + 1000);
      EXPECT_EQ(row[kIndex], i);
      EXPECT_EQ(row[kEpoch], 2u);
      EXPECT_EQ(row[kNth], i / 3);
      EXPECT_EQ(state_of_worker.try_emplace(i % 3, row[kState]).first->second, row[kState]);
      EXPECT_EQ(count("telling", "count_open"), static_cast<int64_t>(std::min<uint64_t>(i + 1, 3)));
    }
    EXPECT_EQ(std::set<uint64_t>({state_of_worker[0], state_of_worker[1], state_of_worker[2]}).size(), 3u);
  }
  EXPECT_EQ(count("telling", "count_open"), 0);
  EXPECT_EQ(count("telling", "count_opened"), opened + 4);
  EXPECT_EQ(count("telling", "count_closed"), opened + 4);
}

// Workers run into their first fill together.
TEST(Plugin, StatesOfWorkersThatBeginTogetherStayApart) {
  constexpr int kWorkers = 4;
  constexpr uint64_t kFills = 10;
  constexpr int kRounds = 1000;
  const int64_t closed = count("telling", "count_closed");
  for (int round = 0; round < kRounds; ++round) {
    Owned owned(open("telling"));
    std::barrier start(kWorkers);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int32_t worker = 0; worker < kWorkers; ++worker) {
      threads.emplace_back([&, worker] {
        start.arrive_and_wait();
        std::vector<uint64_t> data(4 * kColumns);
        std::vector<int64_t> label(4);
        void* fields[]{data.data(), label.data()};
        char message[256];
        for (uint64_t i = 0; i < kFills; ++i) {
          const tenon_fill_request request = request_of(worker, fields, i, 0, 0);
          const int32_t code =
              owned.generator.fill(owned.generator.context, &request, message, sizeof message);
          if (code != 0 || data[kOpenWorker] != static_cast<uint64_t>(worker) || data[kNth] != i) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(count("telling", "count_open"), kWorkers);
  }
  EXPECT_EQ(count("telling", "count_closed"), closed + kRounds * (kWorkers + 1));
  EXPECT_EQ(count("telling", "count_overlaps"), 0);
}

// A worker whose call hangs goes on in another thread.
TEST(Plugin, CallsOfOneWorkerThatOverlapHaveAStateEach) {
  constexpr int kThreads = 4;
  constexpr uint64_t kFills = 100;
  constexpr int64_t kRows = 50'000;  // so that calls overlap on one core, too
  Owned owned(open("telling", R"({"rows": 50000})"));
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      std::vector<uint64_t> data(kRows * kColumns);
      std::vector<int64_t> label(kRows);
      void* fields[]{data.data(), label.data()};
      char message[256];
      for (uint64_t n = 0; n < kFills; ++n) {
        tenon_fill_request request = request_of(0, fields, n, 0, 0);
        request.rows = kRows;
        EXPECT_EQ(owned.generator.fill(owned.generator.context, &request, message, sizeof message), 0);
        EXPECT_EQ(data[kOpenWorker], 0u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count("telling", "count_overlaps"), 0);
  EXPECT_LE(count("telling", "count_open"), kThreads) << "states are used again";
}

// A child of fork has the parent's states as dead copies: it opens its own, and closes only those.
TEST(Plugin, AForkedWorkerOpensItsOwnState) {
  auto owned = std::make_unique<Owned>(open("telling"));
  const uint64_t state = owned->fill(0, 1)[kState];
  const int64_t opened = count("telling", "count_opened");
  const int64_t closed = count("telling", "count_closed");
  const pid_t child = fork();
  if (child == 0) {
    int code = 0;
    const std::vector<uint64_t> row = owned->fill(0, 2);
    if (row[kState] == state || row[kNth] != 0) code |= 1;
    if (owned->fill(1, 3)[kOpenWorker] != 1) code |= 2;
    if (count("telling", "count_opened") != opened + 2) code |= 4;
    owned.reset();
    if (count("telling", "count_closed") != closed + 2) code |= 8;
    _exit(code);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(owned->fill(0, 4)[kNth], 1u);
}

tenon_feed_options options_of_40_batches() {
  tenon_feed_options options{};
  options.struct_size = sizeof options;
  options.workers = 3;
  options.slots = 8;
  options.batches = 40;
  options.seed = kSeed;
  return options;
}

// version_1: the same plug-in, as it was compiled for version 1 of the table.
TEST(Plugin, AFeedRunsItOfEachVersionOfTheTable) {
  for (const char* const name : {"telling", "version_1"}) {
    SCOPED_TRACE(name);
    const int64_t opened = count(name, "count_opened");
    {
      OpenedPlugin opened_plugin = open(name);
      Feed feed(opened_plugin.generator, opened_plugin.schema, options_of_40_batches());
      for (uint64_t epoch = 0; epoch < 2; ++epoch) {
        feed.begin();
        Ref<Batch> batch;
        for (uint64_t index = 0; index < 40; ++index) {
          ASSERT_TRUE(feed.next(-1, batch));
          const auto* const row = reinterpret_cast<const uint64_t*>(batch->array(0)->data());
          EXPECT_EQ(row[kIndex], index);
          EXPECT_EQ(row[kEpoch], epoch);
          EXPECT_EQ(row[kBatchSeed], batch_seed(kSeed, epoch, index));
          EXPECT_EQ(row[kOpenWorker], row[kFillWorker]);
        }
      }
      feed.close(-1);
      EXPECT_EQ(count(name, "count_open"), 0) << "closing the feed closes the states";
    }
    EXPECT_LE(count(name, "count_opened"), opened + 4);
    EXPECT_EQ(count(name, "count_overlaps"), 0);
  }
}

TEST(Plugin, ItMayReduceABatchAndEndTheEpoch) {
  OpenedPlugin opened = open("telling", R"({"shrink_at": 1, "end_at": 3})");
  Feed feed(opened.generator, opened.schema, options_of_40_batches());
  feed.begin();
  std::vector<int64_t> rows;
  Ref<Batch> batch;
  while (feed.next(-1, batch) && batch) rows.push_back(batch->array(0)->shape()[0]);
  EXPECT_EQ(rows, (std::vector<int64_t>{4, 1, 4}));
  feed.close(-1);
}

TEST(Plugin, AFailureComesWithItsTextAndCode) {
  Owned owned(open("telling", R"({"fail_at": 3, "text": "disk \"A\" is full: \u00e9\ud83d\ude00"})"));
  owned.fill(0, 2);
  owned.fill(0, 3, 7);
  EXPECT_EQ(owned.message, "disk \"A\" is full: \u00e9\U0001F600");
  EXPECT_EQ(owned.fill(0, 4)[kNth], 2u) << "the same state goes on";
}

TEST(Plugin, AnOpenThatFailsIsToldAndTriedAgain) {
  const int64_t closed = count("telling", "count_closed");
  {
    Owned owned(open("telling", R"({"fail_open": "no device"})"));
    for (int i = 0; i < 2; ++i) {
      owned.fill(2, 0, 5);
      EXPECT_EQ(owned.message, "open of plug-in 'telling' for worker 2 returned 5: no device");
    }
  }
  EXPECT_EQ(count("telling", "count_closed"), closed + 1) << "only the described state was open";
  const std::string text = error_of(Code::kOp, [] { open("telling", R"({"rows": "three"})"); });
  EXPECT_EQ(text, "open of plug-in 'telling' returned 3: rows must be an integer from 1 to 1048576");
}

TEST(Plugin, TextsOfAnyBytesAreReadable) {
  Owned endless(open("telling", R"({"fail_at": 0, "lie": "endless text"})"));
  endless.fill(0, 0, 7);
  EXPECT_EQ(endless.message, std::string(255, 'x'));

  Owned bytes(open("telling", "{\"fail_at\": 0, \"text\": \"a\xff\xc3 b\xed\xa0\x80 \xe2\x82\"}"));
  bytes.fill(0, 0, 7);
  EXPECT_EQ(bytes.message, "a?? b??? ??");

  std::string long_text;  // 2 bytes each, begun at an odd place: one lies across the end of the buffer
  for (int i = 0; i < 200; ++i) long_text += "\u00e9";
  Owned cut(open("telling", ("{\"fail_at\": 0, \"text\": \"" + long_text + "\"}").c_str()));
  cut.fill(0, 0, 7);
  EXPECT_EQ(cut.message, long_text.substr(0, 254));
}

TEST(Plugin, TablesThatCannotServeAreRefused) {
  const auto refused = [](const char* name) { return error_of(Code::kValue, [&] { (void)table(name); }); };
  expect_text(refused("other_abi"), "its ABI is 9, this library's is 3");
  expect_text(refused("no_version"), "its ABI is 0, this library's is 3");
  expect_text(refused("short_table"), "struct_size of its table is 24, at least ");
  expect_text(refused("unknown_flags"), "its table has unknown flags: 512");
  expect_text(refused("no_open"), "open is NULL in its table");
  expect_text(refused("no_fill"), "fill is NULL in its table");
  expect_text(refused("no_close"), "close is NULL in its table");
  expect_text(refused("null_table"), "tenon_plugin_table() returned NULL");
  expect_text(refused("null_table"), library("null_table").c_str());
  const std::string symbol = error_of(Code::kNotFound, [] { (void)table("no_table"); });
  expect_text(symbol, "has no function 'tenon_plugin_table'; did you mean 'tenon_plugin_tabel'?");
  const std::string file = error_of(Code::kNotFound, [] { (void)PluginTable::load("./no_such_plugin.so"); });
  expect_text(file, "No such file");
}

TEST(Plugin, DescriptionsThatCannotBeAreRefused) {
  const std::map<std::string, std::pair<Code, const char*>> lies{
      {"no list", {Code::kValue, "describes 2 fields in no list"}},
      {"no fields", {Code::kValue, "describes 0 fields"}},
      {"negative", {Code::kValue, "describes -3 fields"}},
      {"many", {Code::kValue, "describes 2147483647 fields"}},
      {"no name", {Code::kValue, "field 1 has no name"}},
      {"bad name", {Code::kValue, "'a b' is not an identifier"}},
      {"twice", {Code::kValue, "two fields are named 'data'"}},
      {"no dtype", {Code::kValue, "field 1 has no dtype"}},
      {"bad dtype", {Code::kType, "float33"}},
      {"no shape", {Code::kValue, "field 1 has no shape"}},
      {"no axes", {Code::kValue, "has no axis"}},
      {"many axes", {Code::kValue, "1000"}},
      {"other rows", {Code::kValue, "has 5 rows (axis 0)"}},
      {"negative rows", {Code::kValue, "-4"}},
      {"huge", {Code::kValue, ""}},
      {"refuses", {Code::kOp, "describe of plug-in 'telling' returned 6: nothing to describe"}}};
  for (const auto& [lie, expected] : lies) {
    const std::string config = "{\"lie\": \"" + lie + "\"}";
    const std::string text = error_of(expected.first, [&] { open("telling", config.c_str()); });
    expect_text(text, expected.second);
    expect_text(text, "plug-in 'telling'");
    EXPECT_EQ(count("telling", "count_open"), 0) << lie;
  }
}

TEST(Plugin, ADescriptionThatChangesIsAnErrorOfTheBatch) {
  Owned owned(open("telling", R"({"lie": "for workers"})"));
  owned.fill(1, 0, -1);
  EXPECT_EQ(
      owned.message,
      "plug-in 'telling' describes itself for worker 1 as data uint64 (4, 9), label int64 (4,), but the "
      "feed was made for data uint64 (4, 8), label int64 (4,)");
  EXPECT_EQ(count("telling", "count_open"), 0);
}

TEST(Plugin, TheUsersSchemaIsComparedWithItsDescription) {
  const Owned owned(open("telling", nullptr, schema_of(4, 8)));
  const std::string text = error_of(Code::kValue, [] { open("telling", R"({"rows": 3})", schema_of(4, 8)); });
  EXPECT_EQ(text,
            "plug-in 'telling' fills data uint64 (3, 8), label int64 (3,), but the schema is data uint64 "
            "(4, 8), label int64 (4,)");
}

TEST(Plugin, WithoutADescriptionTheUserGivesTheSchema) {
  const std::string text = error_of(Code::kValue, [] { open("silent"); });
  EXPECT_EQ(text, "plug-in 'libsilent.so' does not describe its fields: give a schema");
  Owned owned(open("silent", nullptr, schema_of(4, 8)));
  EXPECT_EQ(owned.generator.flags, 0u);
  EXPECT_EQ(owned.fill(0, 6)[kIndex], 6u);
}

TEST(Plugin, TheConfigurationIsAJsonObject) {
  for (const char* bad : {"", "[]", "3", "{\"rows\": 3", "{} {}", "{\"rows\": \"3}", "rows=3"}) {
    expect_text(error_of(Code::kValue, [&] { open("telling", bad); }), "not a JSON object");
  }
  const Owned owned(open("telling", "\n { \"text\" : \"}\\\"{\" , \"x\": [1, {\"rows\": 9}],\"rows\":2 } "));
  EXPECT_EQ(owned.schema->rows(), 2);
}

TEST(PluginConfig, ValuesAreFoundByKey) {
  const char* const config =
      R"({"a": -12, "b": 2.5e3, "c": true, "d": "x\n\"y\\ \u00e4\ud83d\ude00", "e": null,)"
      R"( "f": [1, "]", {"a": 3}], "g": 9223372036854775808, "h": "\ud83d",)"
      R"( "i": "\u0000", "j": 1.5, "k": false, "" : 4, "l" : 7 })";
  int64_t integer = 99;
  double number = 99;
  int boolean = 99;
  char text[32] = "before";
  EXPECT_EQ(tenon_plugin_integer(config, "a", &integer), 1);
  EXPECT_EQ(integer, -12);
  EXPECT_EQ(tenon_plugin_integer(config, "l", &integer), 1);
  EXPECT_EQ(integer, 7);
  EXPECT_EQ(tenon_plugin_integer(config, "", &integer), 1);
  EXPECT_EQ(integer, 4);
  EXPECT_EQ(tenon_plugin_number(config, "b", &number), 1);
  EXPECT_EQ(number, 2500);
  EXPECT_EQ(tenon_plugin_number(config, "a", &number), 1);
  EXPECT_EQ(number, -12);
  EXPECT_EQ(tenon_plugin_boolean(config, "c", &boolean), 1);
  EXPECT_EQ(boolean, 1);
  EXPECT_EQ(tenon_plugin_boolean(config, "k", &boolean), 1);
  EXPECT_EQ(boolean, 0);
  EXPECT_EQ(tenon_plugin_string(config, "d", text, sizeof text), 1);
  EXPECT_STREQ(text, "x\n\"y\\ \u00e4\U0001F600");
  for (const char* missing : {"z", "A", "aa", "x"}) {
    EXPECT_EQ(tenon_plugin_integer(config, missing, &integer), 0);
    EXPECT_EQ(tenon_plugin_string(config, missing, text, sizeof text), 0);
  }
  for (const char* other : {"b", "c", "d", "e", "f", "g", "j"}) {
    EXPECT_EQ(tenon_plugin_integer(config, other, &integer), -1) << other;
  }
  EXPECT_EQ(tenon_plugin_number(config, "c", &number), -1);
  EXPECT_EQ(tenon_plugin_boolean(config, "a", &boolean), -1);
  for (const char* other : {"a", "e", "f", "h", "i"}) {
    EXPECT_EQ(tenon_plugin_string(config, other, text, sizeof text), -1) << other;
  }
  char small[13];
  EXPECT_EQ(tenon_plugin_string(config, "d", small, 12), -1);
  EXPECT_EQ(tenon_plugin_string(config, "d", small, 13), 1);
}

// Whatever the text: looking ends, within the text.
TEST(PluginConfig, DamagedTextsEnd) {
  const std::string whole = R"( {"a" : [1, {"b": "c\"\u12"}], "k" : "v\ud83d\ude00" , "n":-1.5e3} )";
  for (size_t size = 0; size <= whole.size(); ++size) {
    for (const char* end : {"", "\"", "\\", "}", "]", ":", ",", "{", "x"}) {
      const std::string text = whole.substr(0, size) + end;
      const std::vector<char> exact(text.c_str(), text.c_str() + text.size() + 1);  // overruns are seen
      char value[8];
      double number = 0;
      (void)tenon_plugin_string(exact.data(), "k", value, sizeof value);
      (void)tenon_plugin_number(exact.data(), "n", &number);
    }
  }
}

// ---------------------------------------------------------------------------- classes in C++

struct Rows {
  std::vector<float> data = std::vector<float>(4 * 6);
  std::vector<int64_t> label = std::vector<int64_t>(4);
  bool flag[4]{};
  std::string message;

  int32_t fill(const Owned& owned, int32_t worker, uint64_t index) {
    void* fields[]{data.data(), label.data(), flag};
    const tenon_fill_request request = request_of(worker, fields, index, 3, 8);
    char text[256] = "";
    const int32_t code = owned.generator.fill(owned.generator.context, &request, text, sizeof text);
    message = text;
    return code;
  }
};

TEST(PluginClass, FillsThroughViews) {
  {
    Owned owned(open_plugin(table("ramp"), R"({"gain": 0.5, "name": "abc"})", 9, {}));
    EXPECT_STREQ(owned.generator.name, "Chosen");
    EXPECT_EQ(owned.generator.flags, uint32_t{TENON_THREADSAFE});
    EXPECT_EQ(owned.schema->fields()[0].shape, (std::vector<int64_t>{4, 3, 2}));
    EXPECT_EQ(owned.schema->fields()[2].dtype, DType(TENON_BOOL, 8));
    EXPECT_EQ(count("ramp", "count_objects"), 0) << "a description needs no object";
    Rows rows;
    EXPECT_EQ(rows.fill(owned, 5, 2), 0) << rows.message;
    for (size_t i = 0; i < rows.data.size(); ++i) {
      EXPECT_EQ(rows.data[i], 0.5F * static_cast<float>(200 + 10 * (i / 6)) + static_cast<float>(i % 6));
    }
    EXPECT_EQ(rows.label, std::vector<int64_t>(4, 3030));
    EXPECT_TRUE(rows.flag[0] && rows.flag[3]);
    EXPECT_EQ(count("ramp", "count_objects"), 1);
  }
  EXPECT_EQ(count("ramp", "count_objects"), 0);
}

TEST(PluginClass, ExceptionsBecomeTexts) {
  Rows rows;
  const Owned thrower(open("ramp", R"({"name": "thrower"})"));
  EXPECT_EQ(rows.fill(thrower, 0, 3), -1);
  EXPECT_EQ(rows.message, "no batch thrower");
  EXPECT_EQ(rows.fill(thrower, 0, 2), 0);

  const Owned oddity(open("ramp", R"({"name": "oddity"})"));
  EXPECT_EQ(rows.fill(oddity, 0, 4), -1);
  EXPECT_EQ(rows.message, "unknown exception");

  const Owned stray(open("ramp", R"({"name": "stray"})"));
  EXPECT_EQ(rows.fill(stray, 0, 0), -1);
  EXPECT_EQ(rows.message, "index 3 is outside of axis 1 of 3 elements");

  const Owned worst(open("ramp", R"({"name": "worst"})"));
  EXPECT_EQ(rows.fill(worst, 1, 0), -1);
  EXPECT_EQ(rows.message, "open of plug-in 'Chosen' for worker 1 failed: the name 'worst' is taken");

  expect_text(error_of(Code::kOp, [] { open("ramp", R"({"rows": "many"})"); }),
              "configuration: 'rows' is \"many\", not an integer from -9223372036854775808 to");
  const Owned gain(open("ramp", R"({"gain": "loud"})"));
  EXPECT_EQ(rows.fill(gain, 0, 0), -1);
  expect_text(rows.message, "configuration: 'gain' is \"loud\", not a number");
}

TEST(PluginClass, TheEndOfItsThreadIsAFailureOfTheBatch) {
  Rows rows;
  OpenedPlugin quitter = open("ramp", R"({"name": "quitter"})");
  tenon_feed_options options{};
  options.struct_size = sizeof options;
  options.workers = 1;
  options.slots = 2;
  options.batches = 4;
  Feed feed(quitter.generator, quitter.schema, options);
  const auto fill = [&feed] {
    Ref<Batch> batch;
    EXPECT_TRUE(feed.next(-1, batch));
    return batch ? static_cast<int64_t>(batch->ticket().index) : -1;
  };
  for (int epoch = 0; epoch < 2; ++epoch) {
    feed.begin();
    EXPECT_EQ(fill(), 0);
    EXPECT_EQ(fill(), 1);
    expect_text(error_of(Code::kOp, fill), "failed at batch 2 of epoch");
    EXPECT_EQ(count("ramp", "count_objects"), 1) << "the state of the worker is used again";
  }
}

TEST(PluginClass, TheEndOfAThreadOfTheCallerIsThatOfTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Rows rows;
  const Owned quitter(open("ramp", R"({"name": "quitter"})"));
  EXPECT_DEATH((void)rows.fill(quitter, 0, 2),
               "plug-in 'Chosen' did not return, because it ended its thread");
}

TEST(PluginClass, WithoutASchemaTheUsersIsCheckedAgainstItsViews) {
  const int64_t shape[]{4, 2};
  const tenon_field right{"data", DType(TENON_FLOAT, 64), 2, shape};
  const tenon_field other{"data", DType(TENON_FLOAT, 32), 2, shape};
  const tenon_field flat{"data", DType(TENON_FLOAT, 64), 1, shape};
  std::vector<double> data(8);
  void* fields[]{data.data(), data.data()};
  char text[256] = "";
  const auto fill = [&](std::span<const tenon_field> described, uint64_t index) {
    const Owned owned(open("plain", nullptr, Schema::make(described)));
    const tenon_fill_request request = request_of(0, fields, index, 0, 0);
    return owned.generator.fill(owned.generator.context, &request, text, sizeof text);
  };
  EXPECT_EQ(fill({&right, 1}, 3), 0) << text;
  EXPECT_EQ(data, (std::vector<double>{-1, 3, 3, 3, 3, 3, 3, 3}));
  EXPECT_EQ(fill({&right, 1}, 5), 55) << "a result that is a code";
  EXPECT_EQ(fill({&other, 1}, 0), -1);
  expect_text(text, "field 'data' is float32 (4, 2), but operator() takes a view of float64 with 2 axes");
  EXPECT_EQ(fill({&flat, 1}, 0), -1);
  expect_text(text, "field 'data' is float64 (4,), but");
  const tenon_field two[]{right, {"more", DType(TENON_FLOAT, 64), 1, shape}};
  EXPECT_EQ(fill(two, 0), -1);
  expect_text(text, "operator() takes 1 views, but the batch has 2 fields");
  expect_text(error_of(Code::kOp, [] { open("liar"); }),
              "field 'data' is float32 (4, 3), but operator() takes a view of float64 with 2 axes");
}

}  // namespace
}  // namespace tenon::impl
