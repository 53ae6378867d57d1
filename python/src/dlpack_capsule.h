// SPDX-License-Identifier: Apache-2.0
//
// Names of DLPack capsules, and the capsules that Tenon makes.
#pragma once

#include <optional>

#include "python.h"

namespace tenon::python {

// Names as the protocol fixes them. CPython keeps the pointers: they live for ever.
inline constexpr const char* kVersionedName = "dltensor_versioned";
inline constexpr const char* kLegacyName = "dltensor";
inline constexpr const char* kUsedVersionedName = "used_dltensor_versioned";
inline constexpr const char* kUsedLegacyName = "used_dltensor";

// A capsule with a reference of its own to the array. flags: TENON_EXPORT_*. site: as that of a view. A
// capsule that is not consumed gives the tensor back. A legacy capsule has no negative strides (BufferError):
// MXNet has none, and PyTorch ends the process.
// stream: of the consumer, for memory on a device (devices.h); otherwise it has no effect.
nb::object versioned_capsule(tenon_array* array, uint32_t flags, const char* site,
                             int64_t stream = TENON_STREAM_NONE);
nb::object legacy_capsule(tenon_array* array, uint32_t flags, const char* site,
                          int64_t stream = TENON_STREAM_NONE);

// The access that a legacy capsule of Tenon allows; nullopt for other capsules, which cannot state it.
std::optional<Access> access_of_legacy(nb::handle capsule);

// For a DLPack capsule among the arguments of a call that fails: its destructor, which may be a function in
// Python as that of MXNet, is called with the error put aside. Does nothing to other objects.
void keep_error_from_destructor(nb::handle object);

// The protocol's pairs of ints: a device, a version. Throws TypeError unless the object is a tuple of two
// ints (also members of an enum); what: its name in the message. Numbers of more than 64 bits saturate.
struct Pair {
  int64_t first;
  int64_t second;
};
Pair pair_from(PyObject* object, const char* what);

}  // namespace tenon::python
