// SPDX-License-Identifier: Apache-2.0
#include "ipc/segment_forks.h"

#include <new>

namespace tenon::impl {
namespace {

constexpr size_t kMostForks = 64;  // children without places that are watched

}  // namespace

void SegmentForks::before(OpenSegments& segments) noexcept {
  look(segments);
  Fork fork;
  segments.visit([&](Segment& segment) {
    const Participant::Reserved place = segment.before_fork();
    try {
      if (place.index != Participant::kNone) fork.places.emplace_back(segment.header().id, place);
    } catch (const std::bad_alloc&) {
      // This place is freed by its age (is_abandoned in participant.cc).
    }
  });
  if (fork.places.empty() || forks_.size() == kMostForks) return;
  if (!os::make_pipe(&fork.reader, &writer_)) return;
  try {
    forks_.push_back(std::move(fork));
  } catch (const std::bad_alloc&) {
    writer_ = os::File();
  }
}

void SegmentForks::after(OpenSegments& segments) noexcept {
  segments.visit([](Segment& segment) { segment.after_fork(); });
  writer_ = os::File();
  look(segments);
}

void SegmentForks::become_child() noexcept {
  forks_.clear();
  writer_ = os::File();  // last: it shows the parent that this child has its places
}

void SegmentForks::look(OpenSegments& segments) noexcept {
  std::erase_if(forks_, [&](const Fork& fork) {
    if (fork.reader.is_lost()) return true;  // its places are freed by their age
    if (!os::has_no_writer(fork.reader)) return false;
    for (const auto& [id, place] : fork.places) {
      if (Segment* const segment = segments.find(id)) segment->participant().free_reserved(place);
    }
    return true;
  });
}

}  // namespace tenon::impl
