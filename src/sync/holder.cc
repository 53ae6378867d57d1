// SPDX-License-Identifier: Apache-2.0
#include "sync/holder.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace tenon::impl {
namespace {

void copy_name(char* to, size_t size, const char* text) noexcept {
  if (text == nullptr) return;
  const size_t length = std::min(std::strlen(text), size - 1);
  std::memcpy(to, text, length);
  to[length] = '\0';
}

std::string age_text(int64_t since_ms) {
  const int64_t ms = std::max<int64_t>(coarse_now_ms() - since_ms, 0);  // other processes use a finer clock
  return ms < 1000 ? concat(ms, " ms") : concat(ms / 1000, ".", ms % 1000 / 100, " s");
}

// "process 1234 (python)"
std::string command_text(const Holder& o) {
  const char* const end = o.is_ending ? ", which is ending" : "";
  return concat("process ", o.pid, o.name[0] != '\0' ? concat(" (", o.name, end, ")") : end);
}

std::string process_text(const Holder& o) {
  const std::string does = o.is_granted ? concat("holds it for ", gerund(o.access))
                                        : concat("waits to ", infinitive(o.access), " it");
  const std::string process = command_text(o);
  if (o.dead_pid != 0) {
    return concat(process, o.is_stopped ? ", which is stopped while it cleaned up" : ", which cleans up",
                  " after process ", o.dead_pid, " that ", does, " since ", age_text(o.since_ms));
  }
  return concat(process, o.is_stopped ? ", which is stopped," : "", " that ", does, " since ",
                age_text(o.since_ms), o.note[0] != '\0' ? concat(" (", o.note, ")") : "");
}

}  // namespace

Holder Holder::of(const RequestPart& part) noexcept {
  const Request& request = *part.request;
  if (part.is_ended) {
    Holder view = of(*part.views);
    view.thread = request.owner.number;
    return view;
  }
  Holder o;
  o.kind = request.is_for_view() ? HolderKind::kView : request.kind;
  o.access = part.access;
  o.is_granted = part.is_granted && !part.needs_grant;
  o.thread = request.owner.number;
  o.since_ms = request.since_ms;
  if (request.kind == HolderKind::kLease) {
    o.has_view = part.views != nullptr;
    o.has_owner = o.is_granted && !request.is_detached.load(std::memory_order_relaxed);
  }
  o.extent = part.extent;
  copy_name(o.name, sizeof o.name, request.name);
  copy_name(o.site, sizeof o.site, request.site);
  return o;
}

Holder Holder::of(const View& view) noexcept {
  Holder o;
  o.kind = HolderKind::kView;
  o.access = view.access;
  o.is_granted = true;
  o.thread = view.number;
  o.since_ms = view.opened_ms;
  o.has_view = true;
  o.extent = view.extent;
  copy_name(o.site, sizeof o.site, view.site);
  return o;
}

std::string dead_owner_text(const Holder& o) {
  return concat(command_text(o), " died while it was writing there");
}

std::string text_of(const Holder& o) {
  const bool has_age = o.thread != 0;
  return has_age ? concat(text_without_age(o), ", ", age_text(o.since_ms), " ago") : text_without_age(o);
}

std::string text_without_age(const Holder& o) {
  if (o.thread == 0 && o.pid == 0) return "work that is not done";
  std::string text;
  const char* verb = "taken";
  switch (o.kind) {
    case HolderKind::kView:
      text = o.access == Access::kWrite ? "a writable view of it" : "a view of it";
      break;
    case HolderKind::kOp:
      text = concat("the op '", o.name, "' that ", third_person(o.access), " it");
      verb = "pushed";
      break;
    case HolderKind::kLease: text = concat("a lease for ", gerund(o.access)); break;
    case HolderKind::kCall:
      text = concat("the call of ", o.name);
      verb = "made";
      break;
    case HolderKind::kProcess: return process_text(o);
  }
  text += concat(", ", verb);
  if (o.site[0] != '\0') text += concat(" at ", o.site);
  return text + concat(" by thread ", o.thread);
}

std::string timeout_text(int64_t timeout_ns) {
  if (timeout_ns < 0) return {};
  char text[32];
  const auto seconds = static_cast<double>(timeout_ns) * 1e-9;
  char* const end = std::to_chars(text, text + sizeof text, seconds, std::chars_format::general, 6).ptr;
  return concat(" (", std::string(text, end), " s)");
}

}  // namespace tenon::impl
