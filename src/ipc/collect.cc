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

// The control part of a segment, mapped without a place in the segment.
class MappedControl {
 public:
  // Fails with kValue: this is not the segment of this id.
  MappedControl(os::File file, const std::string& id) : file_(std::move(file)) {
    const bool is_readable = os::is_sealed(file_) && os::read_at(file_, 0, &header_, sizeof header_);
    if (is_readable) check(header_, os::size_of(file_));
    if (!is_readable || text_of(header_.id) != id) {
      throw_error(Code::kValue, "it was replaced by another file");
    }
    control_ = Control::map(file_, header_, &places_);
  }
  MappedControl(const MappedControl&) = delete;
  MappedControl& operator=(const MappedControl&) = delete;
  ~MappedControl() { os::unmap(control_.base, Control::nbytes_of(header_)); }

  const Control& control() const noexcept { return control_; }

 private:
  os::File file_;
  PlaceLocks places_{file_};
  Header header_{};
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
  if (!before.damage.empty() || std::ranges::all_of(before.places, &PlaceReport::is_live)) return;
  os::File file = os::open_memory_of(before.opened_of_pid, before.opened_fd, before.file);
  if (!file) throw_error(Code::kNotFound, "it is gone, or cannot be opened for writing");
  const MappedControl mapped(std::move(file), before.id);
  const Control& control = mapped.control();
  for (const PlaceReport& place : before.places) {
    if (place.is_dead() && reap(control, place.index)) note(place, result);
  }
  reap_all(control);  // places that are reserved for children that never took them
  for (const PlaceReport& place : before.places) {
    const bool is_free = look(control.place(place.index).state) == PlaceState::kFree;
    if (place.is_reserved && is_free) note(place, result);
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
