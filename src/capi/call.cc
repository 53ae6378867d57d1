// SPDX-License-Identifier: Apache-2.0
//
// The functions tenon_call_* of core.h: calls of code outside of the library.
#include <string>
#include <vector>

#include "array/access.h"
#include "capi/boundary.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

namespace {

// Owned by the caller. Keeps its arrays alive.
struct Call {
  Call(const char* given_name, const char* given_site, std::vector<Ref<Array>> used,
       std::span<const HostCall::Use> uses)
      : name(given_name),
        site(given_site != nullptr ? given_site : ""),
        arrays(std::move(used)),
        call(name.c_str(), given_site != nullptr ? site.c_str() : nullptr, uses) {}

  const std::string name;
  const std::string site;
  const std::vector<Ref<Array>> arrays;
  HostCall call;
};

Access checked_use(const tenon_use& use, const char* name) {
  const Array& array = *capi::unwrap(not_null(use.array, "array of a use"));
  check_flags(use.flags, TENON_OVERWRITE, "tenon_call_begin");
  const Access access = checked_access(use.access);
  if (access == Access::kWrite && array.is_readonly()) {
    throw_error(Code::kBuffer, "the call of ", name, " cannot write the array of shape ",
                shape_text(array.shape()), ": it is read-only");
  }
  return access;
}

}  // namespace

extern "C" {

tenon_status tenon_call_begin(const char* name, const char* site, int32_t n, const tenon_use* uses,
                              tenon_call** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(name, "name");
    not_null(out, "out");
    if (n < 0) throw_error(Code::kValue, "n is ", n, ": it must be at least 0");
    if (n != 0) not_null(uses, "uses");
    std::vector<Ref<Array>> arrays;
    std::vector<HostCall::Use> used;
    for (int32_t i = 0; i < n; ++i) {
      const Access access = checked_use(uses[i], name);
      arrays.push_back(Ref<Array>::share(capi::unwrap(uses[i].array)));
      const bool overwrites = (uses[i].flags & TENON_OVERWRITE) != 0 && access == Access::kWrite;
      used.push_back({*arrays.back(), access, overwrites && arrays.back()->is_dense()});
    }
    *out = reinterpret_cast<tenon_call*>(new Call(name, site, std::move(arrays), used));
  });
}

void tenon_call_end(tenon_call* call) { delete reinterpret_cast<Call*>(call); }

}  // extern "C"
