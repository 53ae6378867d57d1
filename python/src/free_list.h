// SPDX-License-Identifier: Apache-2.0
//
// A free list of blocks of one size, for objects that are made and freed in each call.
#pragma once

#include <new>

#include "python.h"

namespace tenon::python {

// A static object. Everything under the GIL. Keeps some free blocks for ever.
template <size_t kSize>
class FreeList {
 public:
  // Throws std::bad_alloc.
  void* take() {
    if (spare_ == nullptr) {
      void* const memory = PyObject_Malloc(kSize);
      if (memory == nullptr) throw std::bad_alloc();
      return memory;
    }
    --n_spare_;
    SpareObject* const block = spare_;
    spare_ = block->next;
    return block;
  }

  void give(void* memory) noexcept {
    if (n_spare_ == kMaxSpare) {
      PyObject_Free(memory);
      return;
    }
    ++n_spare_;
    spare_ = new (memory) SpareObject{spare_};
  }

 private:
  struct SpareObject {
    SpareObject* next;
  };
  static constexpr int kMaxSpare = 64;

  SpareObject* spare_ = nullptr;
  int n_spare_ = 0;
};

}  // namespace tenon::python
