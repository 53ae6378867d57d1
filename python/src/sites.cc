// SPDX-License-Identifier: Apache-2.0
#include "sites.h"

#include <array>
#include <string>
#include <unordered_set>

#include "frames.h"

namespace tenon::python {
namespace {

// One place in a program. It owns its code, so that the address is not reused.
struct CodePlace {
  Position position{nullptr, 0};
  bool is_library = false;
  bool is_torch = false;
  const char* text = nullptr;
};

// All under the GIL. Texts live as long as the process: views may name them at any time.
constexpr int kPlaceBits = 10;
std::array<CodePlace, 1 << kPlaceBits> places;
std::unordered_set<std::string>* texts = nullptr;

std::string* package_folder = nullptr;

bool is_library_file(std::string_view file) {
  if (package_folder != nullptr && file.starts_with(*package_folder)) return true;
  for (std::string_view part : {"/site-packages/", "/dist-packages/", "/lib/python3", "<frozen "}) {
    if (file.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// The same text, living for ever.
const char* kept_site(const std::string& site) {
  if (texts == nullptr) texts = new std::unordered_set<std::string>;
  return texts->insert(site).first->c_str();
}

bool is_of_torch(nb::handle frame) {
  const nb::object module = frame.attr("f_globals").attr("get")("__name__", "");
  return text_of(nb::str(module)).starts_with("torch.");
}

// frame: null for the line where the code begins.
void describe(nb::handle code, nb::handle frame, CodePlace& place) {
  const std::string name(text_of(nb::object(code.attr("co_filename"))));
  const int line = frame.is_valid() ? PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject*>(frame.ptr()))
                                    : nb::cast<int>(code.attr("co_firstlineno"));
  place.is_library = is_library_file(name);
  place.is_torch = frame.is_valid() && is_of_torch(frame);
  place.text = kept_site(name + ":" + std::to_string(line));
}

// The entry of the cache for a position.
CodePlace& place_for(const Position& position) noexcept { return places[position.hash(kPlaceBits)]; }

const CodePlace& place_of(const Position& position, nb::handle frame) {
  CodePlace& place = place_for(position);
  if (place.position != position) {
    CodePlace fresh;
    describe(position.code, frame, fresh);
    fresh.position = {Py_NewRef(position.code), position.instruction};
    const nb::object replaced = nb::steal(place.position.code);
    place = fresh;
  }
  return place;
}

// The innermost line that is not a library's.
const char* site_from(nb::object frame) {
  const char* first = nullptr;
  for (int depth = 0; depth < 64 && frame.is_valid(); ++depth) {
    const Position position = Position::of(frame);
    const nb::object code = nb::steal(position.code);
    const CodePlace& place = place_of(position, frame);
    if (!place.is_library) return place.text;
    if (first == nullptr) first = place.text;
    frame = back_of(frame);
  }
  return first;
}

bool is_code(nb::handle object) {
  static PyObject* type = nullptr;
  if (type == nullptr) type = nb::object(nb::module_::import_("types").attr("CodeType")).release().ptr();
  return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == type;
}

}  // namespace

void set_package_folder(const std::string& folder) {
  if (package_folder == nullptr) package_folder = new std::string;
  *package_folder = folder;
}

const char* site_of_function(nb::handle function) noexcept {
  constexpr int kBegin = -1;  // no instruction of a frame
  const KeepError keep_error;
  try {
    const nb::object code = nb::getattr(function, "__code__", nb::none());
    if (is_code(code)) {
      const CodePlace& place = place_of({code.ptr(), kBegin}, nb::handle());
      if (!place.is_library) return place.text;
    }
  } catch (...) {
    forget_exception();
  }
  return current_site();
}

[[gnu::hot]] const char* current_site() noexcept {
  Caller caller;
  return site_and_caller(&caller);
}

const char* site_at(nb::handle frame) noexcept {
  const KeepError keep_error;
  try {
    return site_from(nb::borrow(frame));
  } catch (...) {
    forget_exception();
    return nullptr;
  }
}

bool is_called_by_torch() noexcept {
  const KeepError keep_error;
  try {
    const nb::object frame = innermost_frame();
    if (!frame.is_valid()) return false;
    const Position position = Position::of(frame);
    const nb::object code = nb::steal(position.code);
    return place_of(position, frame).is_torch;
  } catch (...) {
    forget_exception();
    return false;
  }
}

[[gnu::hot]] const char* site_and_caller(Caller* caller) noexcept {
  const nb::object innermost = innermost_frame();
  if (!innermost.is_valid()) return nullptr;
  // Usually it is a known line of the program itself: then no error can occur.
  const Position position = Position::of(innermost);
  *caller = {innermost.ptr(), position.instruction};
  const CodePlace& place = place_for(position);
  const bool is_known = place.position == position && !place.is_library;
  Py_DECREF(position.code);
  if (is_known) return place.text;
  return site_at(innermost);
}

}  // namespace tenon::python
