// SPDX-License-Identifier: Apache-2.0
//
// What the bindings of feeds share: feed.cc has schemas, batches and feeds, worker.cc what workers in Python
// need.
#pragma once

#include <string>
#include <vector>

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

// A delivered batch as an object of the class Batch. names: of the fields.
nb::object object_of_batch(Batch batch, const nb::tuple& names);
nb::tuple names_of(const Schema& schema);
nb::dict failure_dict(const tenon_feed_failure& failure);
std::vector<tenon_worker_state> worker_states(const nb::list& states);  // refer to the bytes
nb::list states_of(const tenon_feed_state* state, int32_t workers);

// The calls of a thread that serves a feed; a TimeoutError is none of them.
nb::tuple serve_wait(const Feed& feed, double timeout);
nb::list serve_wanted(const Feed& feed);
nb::dict serve_counts(const Feed& feed);

void add_attached(nb::module_& module);
void add_feed(nb::module_& module);
void add_worker(nb::module_& module);

}  // namespace tenon::python
