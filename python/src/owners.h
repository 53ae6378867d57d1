// SPDX-License-Identifier: Apache-2.0
//
// References to Python objects that keep lent memory alive. The C library may drop the last array on any
// thread, with the GIL or without, even after Python has ended; a Python reference may be given back only
// under the GIL. So the deleter passes a node on, and the node is finished when that is allowed:
//
//  - at the end of a Collector, when a function of this extension released the array;
//  - at once, when the deleter runs on another path but its thread holds the GIL;
//  - else by one pending call of the interpreter, or earlier by any call that drains.
//
// After Python has ended nodes leak on purpose: nothing is touched.
#pragma once

#include "python.h"

namespace tenon::python::owners {

// Derive from it. Owned by the storage that it was adopted with, then by the list of released nodes; finish
// destroys it. No allocation happens between release and finish.
struct Node {
  explicit Node(void (*finish_function)(Node*)) noexcept : finish(finish_function) {}

  // Nodes are made and destroyed under the GIL.
  static void* operator new(size_t size);
  static void* operator new(size_t, void* place) noexcept { return place; }
  static void operator delete(void* memory, size_t size) noexcept;

  void (*finish)(Node*);  // under the GIL; may run Python; must not raise
  Node* next = nullptr;
};

// A reference to one object, given back by finish.
struct Object : Node {
  explicit Object(nb::handle owned_object);
  PyObject* object;
};

// This thread may touch Python objects.
bool holds_gil() noexcept;

// The deleter for tenon_adoption and friends; owner is a Node*. Any thread; takes no lock, allocates nothing.
void release(void* owner) noexcept;

// Finishes what other threads have released. Requires the GIL; may run Python; keeps an exception in flight.
void drain();

// While it lives, nodes released on this thread are collected; its end finishes them. Requires the GIL from
// begin to end. For code that releases an array: the objects that it kept alive are released at the end of
// the scope. The outermost one drains, too. An exception in flight is put aside meanwhile, because deleters
// may run Python.
class Collector {
 public:
  Collector() noexcept;
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;
  ~Collector();

  // Whether releases are nested too deeply for the stack. Then pass objects to defer(): they are finished
  // when the outermost release ends.
  bool is_deep() const noexcept;
  void defer(Node* node) noexcept;

 private:
  friend void release(void* owner) noexcept;
  const KeepError keep_error_;
  struct Local& local_;  // of this thread, looked up once
  Collector* outer_;
  Node* nodes_ = nullptr;
};

void add_owners(nb::module_& module);

}  // namespace tenon::python::owners
