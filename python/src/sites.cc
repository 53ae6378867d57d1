// SPDX-License-Identifier: Apache-2.0
#include "sites.h"

#include <dlfcn.h>

#include <array>
#include <string>
#include <unordered_set>

namespace tenon::python {
namespace {

// Of the frame API, what is not part of the stable ABI. Null where it is missing: then only the innermost
// frame is looked at, by its line.
template <class Function>
Function* looked_up(const char* name) noexcept {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}
using GetBack = PyFrameObject*(PyFrameObject*);
using GetLasti = int(PyFrameObject*);

// One place in a program. Keeps its code, so that the address means one code only.
struct Place {
  PyObject* code = nullptr;
  int instruction = 0;
  bool is_library = false;
  const char* text = nullptr;
};

// All under the GIL. Texts live as long as the process: views may name them at any time.
std::array<Place, 1024> places;
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

// frame: null for the line where the code begins.
void describe(nb::handle code, PyFrameObject* frame, Place& place) {
  const std::string name(text_of(nb::object(code.attr("co_filename"))));
  const int line =
      frame != nullptr ? PyFrame_GetLineNumber(frame) : nb::cast<int>(code.attr("co_firstlineno"));
  place.is_library = is_library_file(name);
  place.text = kept_site(name + ":" + std::to_string(line));
}

// What a frame executes. The code is a reference that the caller owns.
struct Position {
  PyObject* code;
  int instruction;

  static Position of(PyFrameObject* frame) {
    static GetLasti* const get_lasti = looked_up<GetLasti>("PyFrame_GetLasti");
    return {reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)),
            get_lasti != nullptr ? get_lasti(frame) : PyFrame_GetLineNumber(frame)};
  }
  // Where it is remembered, if it is.
  Place& place() const noexcept {
    const uintptr_t key = reinterpret_cast<uintptr_t>(code) / 16 + static_cast<uintptr_t>(instruction);
    return places[key * 0x9E3779B97F4A7C15u >> 54];
  }
  bool is_at(const Place& place) const noexcept {
    return place.code == code && place.instruction == instruction;
  }
};

const Place& place_of(const Position& position, PyFrameObject* frame) {
  Place& place = position.place();
  if (!position.is_at(place)) {
    Place fresh;
    describe(position.code, frame, fresh);
    fresh.code = Py_NewRef(position.code);
    fresh.instruction = position.instruction;
    const nb::object replaced = nb::steal(place.code);
    place = fresh;
  }
  return place;
}

// The innermost line that is not a library's.
const char* site_from(nb::object frame) {
  static GetBack* const get_back = looked_up<GetBack>("PyFrame_GetBack");
  const char* first = nullptr;
  for (int depth = 0; depth < 64 && frame.is_valid(); ++depth) {
    auto* const object = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const Position position = Position::of(object);
    const nb::object code = nb::steal(position.code);
    const Place& place = place_of(position, object);
    if (!place.is_library) return place.text;
    if (first == nullptr) first = place.text;
    if (get_back == nullptr) break;
    frame = nb::steal(reinterpret_cast<PyObject*>(get_back(object)));
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
      const Place& place = place_of({code.ptr(), kBegin}, nullptr);
      if (!place.is_library) return place.text;
    }
  } catch (...) {
    PyErr_Clear();
  }
  return current_site();
}

const char* current_site() noexcept {
  PyFrameObject* const innermost = PyThreadState_GetFrame(PyThreadState_Get());
  if (innermost == nullptr) return nullptr;
  // As a rule it is a line of the program itself that was here before: no error can come up then.
  const Position position = Position::of(innermost);
  const Place& place = position.place();
  const bool is_known = position.is_at(place) && !place.is_library;
  Py_DECREF(position.code);
  if (is_known) {
    Py_DECREF(reinterpret_cast<PyObject*>(innermost));
    return place.text;
  }
  const KeepError keep_error;
  try {
    return site_from(nb::steal(reinterpret_cast<PyObject*>(innermost)));
  } catch (...) {
    PyErr_Clear();
    return nullptr;
  }
}

}  // namespace tenon::python
