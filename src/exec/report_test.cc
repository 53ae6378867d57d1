// SPDX-License-Identifier: Apache-2.0
//
// What long waits say: the way from the waiter to what holds it up, and what keeps views.
#include "sync/report.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "exec/cells_testing.h"

namespace tenon::impl {
namespace {

std::vector<Cell*> cells;
std::vector<std::string> reports;
std::atomic<int> searches{0};
std::atomic<bool> had_lock{false};

// As a binding does: in the course of it another thread may use every array.
void look_at_locks() {
  for (Cell* cell : cells) {
    if (!cell->queue.lock.try_lock()) {
      had_lock = true;
    } else {
      cell->queue.lock.unlock();
    }
  }
}

class ReportOfAWait : public testing::Test {
 protected:
  void SetUp() override {
    cells = {&a, &b, &c};
    reports.clear();
    searches = 0;
    had_lock = false;
    Engine::instance().set_executor("pool", 2);
    WaitHooks hooks;
    hooks.report = [](const char* text) {
      look_at_locks();
      reports.emplace_back(text);
    };
    set_wait_hooks(hooks);
    set_view_finder([](const Holder& holder, char* text, size_t size) {
      look_at_locks();
      ++searches;
      EXPECT_TRUE(holder.has_view && holder.extent.end - holder.extent.begin == sizeof(int64_t));
      std::strncpy(text, "variable `x`", size);
    });
  }
  void TearDown() override {
    EXPECT_FALSE(had_lock) << "code of the binding was called with the lock of a queue";
    wait_all();
    set_view_finder(nullptr);
    set_wait_hooks({});
    cells.clear();
  }
  // A view that outlived its lease, of another thread.
  void keep(Sight& view, const Wanted& wanted) {
    std::thread([&] {
      Conflict conflict;
      CellLease lease(wanted);
      ASSERT_TRUE(lease.acquire(&conflict) && view.open(&conflict));
      EXPECT_TRUE(lease.release());
    }).join();
  }
  static std::string text_of_wait_for(Op& op) {
    WaitNode node;
    node.actor = current_actor();
    node.request = &op;
    return text_of_wait(node);
  }

  Cell a, b, c;
  Sight view{write(a), "train.py:12"};
};

TEST_F(ReportOfAWait, NamesEachOpOnTheWayAndInTheEndTheViewAndItsVariable) {
  keep(view, write(a));
  const Ref<Op> first = make({write(a), write(b)}, [](Op* self) { self->complete(); }, "first");
  const Ref<Op> second = make({write(b), write(c)}, [](Op* self) { self->complete(); }, "second");
  const Ref<Op> third = make({write(c)}, [](Op* self) { self->complete(); }, "third");
  for (const Ref<Op>& op : {first, second, third}) ASSERT_TRUE(submit(op, OnHost::kWait));
  const std::string text = text_of_wait_for(*third);
  size_t at = 0;
  for (const char* part :
       {"the op 'third' that writes it, pushed at here:1 by thread ", ", which waits for the op 'second'",
        ", which waits for the op 'first'", ", which waits for a writable view of it, taken at train.py:12",
        "; it is kept by: variable `x`"}) {
    at = text.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << " is not in its place in " << text;
  }
  EXPECT_EQ(searches, 1);
  Conflict conflict;
  EXPECT_FALSE(third->wait(Deadline(1'000'000), &conflict));
  EXPECT_EQ(conflict.holder.kind, HolderKind::kView) << "an error names what is at the end of the way";
  view.close();
  wait(third);
  EXPECT_EQ(text_of_wait_for(*third), "") << "nothing is in its way any more";
}

TEST_F(ReportOfAWait, NamesTheWayOutBehindALeaseThatHasAnOwner) {
  constexpr const char* kWayOut = "; if the thread or task that holds the lease waits for ";
  Conflict conflict;
  CellLease lease(write(a));
  ASSERT_TRUE(lease.acquire(&conflict));
  const Ref<Op> first = push({write(a), write(b)}, [] {});
  const Ref<Op> second = push({write(b)}, [] {});
  for (const Ref<Op>& op : {first, second}) {
    const std::string text = text_of_wait_for(*op);
    EXPECT_LT(text.find("waits for a lease for writing"), text.find(kWayOut)) << text;
    EXPECT_NE(text.find(kWayOut), std::string::npos) << text;
  }
  lease.detach();
  EXPECT_EQ(text_of_wait_for(*second).find(kWayOut), std::string::npos) << "it has no owner";
  (void)lease.release();
  wait(second);
}

TEST_F(ReportOfAWait, OfALongWayNamesTheBeginAndTheEnd) {
  keep(view, write(a));
  std::vector<Cell> row(8);
  std::vector<Ref<Op>> ops;
  for (size_t i = 0; i < row.size(); ++i) {
    Cell& before = i == 0 ? a : row[i - 1];
    ops.push_back(make({write(before), write(row[i])}, [](Op* self) { self->complete(); }, "link"));
    ASSERT_TRUE(submit(ops.back(), OnHost::kWait));
  }
  const std::string text = text_of_wait_for(*ops.back());
  EXPECT_NE(text.find(", which in the end waits for a writable view of it"), std::string::npos) << text;
  view.close();
  for (const Ref<Op>& op : ops) wait(op);
}

TEST_F(ReportOfAWait, ForAllOpsNamesOneThatWaitsRatherThanOneThatRuns) {
  {
    const std::scoped_lock lists_it_first(b.queue.lock);
  }
  keep(view, write(a));
  std::atomic<bool> may_end{false};
  const Ref<Op> running = push({write(b)}, [&] {
    while (!may_end) std::this_thread::yield();
  });
  const Ref<Op> behind = make({write(a)}, [](Op* self) { self->complete(); }, "behind");
  ASSERT_TRUE(submit(behind, OnHost::kWait));
  WaitNode node;
  node.actor = current_actor();
  node.waits_for_all = true;
  const std::string text = text_of_wait(node);
  EXPECT_EQ(text.find("the op 'behind' that writes it"), 0u) << text;
  EXPECT_NE(text.find("which waits for a writable view of it"), std::string::npos) << text;
  report_outlived_views(node);
  report_outlived_views(node);
  ASSERT_EQ(reports.size(), 1u) << "once for each view";
  EXPECT_NE(reports[0].find("train.py:12"), std::string::npos) << reports[0];
  EXPECT_NE(
      reports[0].find("outlived its block and keeps others waiting; it is kept by: variable `x`: drop it"),
      std::string::npos)
      << reports[0];
  view.close();
  may_end = true;
  wait(running);
}

TEST_F(ReportOfAWait, ALeaseUnderWhichAViewLivesIsSearchedForAndAnotherOneIsNot) {
  Conflict conflict;
  CellLease lease(write(a));
  ASSERT_TRUE(lease.acquire(&conflict));
  const Ref<Op> op = push({write(a)}, [] {});
  EXPECT_EQ(text_of_wait_for(*op).find("is kept by"), std::string::npos);
  EXPECT_EQ(searches, 0);
  ASSERT_TRUE(view.open(&conflict));
  const std::string text = text_of_wait_for(*op);
  EXPECT_NE(text.find("which waits for a lease for writing, taken by thread "), std::string::npos) << text;
  EXPECT_NE(text.find("; its view is kept by: variable `x`"), std::string::npos) << text;
  WaitNode node;
  node.request = op.get();
  report_outlived_views(node);
  EXPECT_TRUE(reports.empty()) << "its block has not ended";
  view.close();
  lease.release();
  wait(op);
}

}  // namespace
}  // namespace tenon::impl
