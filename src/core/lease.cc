// SPDX-License-Identifier: Apache-2.0
#include "core/lease.h"

#include "base/error.h"
#include "core/access.h"

namespace tenon {

void Lease::acquire(const Array& array, Access access, bool is_overwrite, engine::Actor owner,
                    const char* site, const Deadline& deadline) {
  const char* const doing = access == Access::kWrite ? "lease for writing" : "lease for reading";
  if (access == Access::kWrite && array.is_readonly()) {
    throw_error(Code::kBuffer, "a read-only array of shape ", shape_text(array.shape()),
                " cannot be leased for writing");
  }
  Storage& storage = array.storage();
  entry_.home = &storage.home();
  entry_.extent = array.extent();
  entry_.mode = mode_of(access);
  entry_.is_overwrite = is_overwrite && array.is_dense();
  if (array.size() == 0) claim_.entries = {};
  claim_.owner = owner;
  claim_.site = site;
  claim_.since_ms = engine::coarse_now_ms();
  engine::Refusal refusal;
  if (!claim_.acquire(deadline, &refusal)) throw_refusal(refusal, doing, &array);
  if (storage.region().has_poison.load(std::memory_order_relaxed)) {
    if (const Ref<engine::Failure> failure = engine::failure_of(claim_)) {
      engine::release(claim_);
      throw OpFailure(failure);
    }
  }
  storage.retain();
  storage_.store(&storage, std::memory_order_relaxed);
}

bool Lease::release() noexcept {
  // Of several threads that release it, one gets the storage.
  Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed);
  if (storage == nullptr) return false;
  if (entry_.is_overwrite) engine::settle(claim_, {});
  return give_back(storage);
}

bool Lease::fail(std::string_view message) {
  const auto failure = Ref<engine::Failure>::adopt(
      new engine::Failure(Code::kOp, 0, std::string(message), "write()",
                          claim_.site != nullptr ? claim_.site : "", nullptr, nullptr));
  Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed);
  if (storage == nullptr) return false;
  engine::settle(claim_, failure);
  return give_back(storage);
}

bool Lease::give_back(Storage* storage) noexcept {
  const bool has_escaped = engine::release(claim_);
  storage->release();
  return has_escaped;
}

}  // namespace tenon
