// SPDX-License-Identifier: Apache-2.0
//
// What the bindings of feeds share: feed.cc has schemas, batches and feeds, worker.cc what workers in Python
// need.
#pragma once

#include <string>

#include "python.h"
#include "tenon/feed.hpp"

namespace tenon::python {

// The schema together with its field names as a tuple of interned strings.
struct NamedSchema {
  Schema schema;
  nb::tuple names;
  nb::tuple kept;  // the names of fields that a generator need not write
};

// A generator whose workers a Python object starts: see tenon.worker.Workers.
// has_processes: these are processes, and else threads.
Generator generator_of(const nb::object& object, const std::string& name, bool prepares, bool has_state,
                       bool has_processes);
// One whose fills a Python object runs in the consumer's thread.
Generator inline_generator_of(const nb::object& object, const NamedSchema& schema, const std::string& name,
                              bool has_state);

void add_feed(nb::module_& module);
void add_worker(nb::module_& module);

}  // namespace tenon::python
