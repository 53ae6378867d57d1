// SPDX-License-Identifier: Apache-2.0
#include "ipc/collect.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/os.h"
#include "ipc/names.h"
#include "ipc/participant.h"

namespace tenon::impl {
namespace {

// The control part of a segment, mapped without taking part.
class Mapped {
 public:
  explicit Mapped(os::File file) : file_(std::move(file)) {
    const size_t nbytes = os::size_of(file_);
    Header header{};
    if (!os::is_sealed(file_) || !os::read_at(file_, 0, &header, sizeof header)) {
      throw_error(Code::kValue, "it is another file by now");
    }
    check(header, nbytes);
    const uint64_t page = std::max<uint64_t>(header.page_nbytes, os::page_nbytes());
    nbytes_ = round_up(control_end(header.blocks), page);
    id_ = header.id;
    control_ = {os::map(file_, 0, nbytes_, true, page), header.blocks, &places_};
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { os::unmap(control_.base, nbytes_); }

  const Control& control() const noexcept { return control_; }
  const SegmentId& id() const noexcept { return id_; }

 private:
  os::File file_;
  PlaceLocks places_{file_};
  size_t nbytes_ = 0;
  SegmentId id_;
  Control control_;
};

void note(const PlaceReport& place, Collected* result) {
  result->places.push_back(place);
  for (const LeaseReport& lease : result->before.leases) result->leases += lease.place == place.index ? 1 : 0;
  for (const ArrayReport& array : result->before.arrays) {
    for (const SentReport& sent : array.sent) result->handles += sent.place == place.index ? sent.count : 0;
  }
}

void collect_in(Collected* result) {
  const SegmentReport& before = result->before;
  const auto is_live = [](const PlaceReport& place) { return place.state == PlaceReport::PlaceState::kLive; };
  if (!before.damage.empty() || std::ranges::all_of(before.places, is_live)) return;
  os::File file = os::open_memory_of(before.opened_of_pid, before.opened_fd, before.file);
  if (!file) throw_error(Code::kNotFound, "it is gone by now, or cannot be opened for writing");
  const Mapped mapped(std::move(file));
  if (text_of(mapped.id()) != before.id) throw_error(Code::kValue, "it is another file by now");
  const Control& control = mapped.control();
  for (const PlaceReport& place : before.places) {
    if (place.state == PlaceReport::PlaceState::kDead && reap(control, place.index)) note(place, result);
  }
  reap_all(control);  // places that were reserved for children that have not come
  for (const PlaceReport& place : before.places) {
    const bool was_reserved = place.state == PlaceReport::PlaceState::kReserved;
    if (was_reserved && look(control.place(place.index).state) == PlaceState::kFree) note(place, result);
  }
}

}  // namespace

std::vector<Collected> collect() {
  (void)remove_names_of_the_dead();
  std::vector<Collected> results;
  for (SegmentReport& report : inspect()) {
    Collected result;
    result.before = std::move(report);
    try {
      collect_in(&result);
    } catch (const Error& e) {
      if (e.code() == Code::kSystem) throw;
      result.failure = e.what();
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace tenon::impl
