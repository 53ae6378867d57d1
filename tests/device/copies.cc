// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills. Each is a box of rows, of which a step does a part. Every step looks anew where the
// bytes are.
#include <algorithm>
#include <cstring>

#include "fake.h"

namespace tenon::fake {
namespace {

constexpr size_t kMostPerStep = size_t{1} << 20;

struct Side {
  uintptr_t base;
  size_t pitch, slice;  // bytes from one row, one plane to the next
};

struct Box {
  size_t width, height, depth;  // bytes, rows, planes

  size_t nbytes() const { return width * height * depth; }
  // From the first to the last byte.
  size_t extent(const Side& side) const {
    return (depth - 1) * side.slice + (height - 1) * side.pitch + width;
  }
};

std::string direction(uintptr_t dst, uintptr_t src) {
  auto place = [](uintptr_t address) {
    Block* block = find_block(address);
    return block != nullptr && (is_device(*block) || block->kind == Kind::kManaged) ? "d" : "h";
  };
  return std::string(place(src)) + "2" + place(dst);
}

// The error of the copy that fake_cuda_fail_copy() has chosen, at its first step.
CUresult take_copy_error() {
  State& s = state();
  if (s.copy_to_fail == 0 || --s.copy_to_fail > 0) return CUDA_SUCCESS;
  return s.copy_error;
}

// Calls part(row's bytes from, to) for the parts of rows in [done, done + n) of the box's bytes.
template <class Part>
CUresult for_rows(const Box& box, size_t done, size_t n, Part part) {
  for (size_t end = done + n; done < end;) {
    size_t row = done / box.width, column = done % box.width;
    size_t count = std::min(box.width - column, end - done);
    CUresult error = part(row / box.height, row % box.height, column, count);
    if (error != CUDA_SUCCESS) return error;
    done += count;
  }
  return CUDA_SUCCESS;
}

// How many bytes the next step does.
size_t draw_part(const Box& box, size_t done) {
  size_t most = std::min(kMostPerStep, box.nbytes() / (1 + state().random() % 3) + 1);
  return std::min(most, box.nbytes() - done);
}

CUresult illegal(const char* name, const char* what, uintptr_t address, size_t nbytes) {
  note_problem(std::string(name) + what + text_of(address, nbytes));
  return CUDA_ERROR_ILLEGAL_ADDRESS;
}

uintptr_t at(const Side& side, size_t plane, size_t row, size_t column) {
  return side.base + plane * side.slice + row * side.pitch + column;
}

CUresult submit_copy(Call& call, const char* name, const Side& dst, const Side& src, const Box& box,
                     CUstream handle) {
  Stream* stream = find_stream(call.context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (box.nbytes() == 0) return CUDA_SUCCESS;
  for (const Side* side : {&dst, &src}) {
    if (is_valid(side->base, box.extent(*side))) continue;
    note_problem(std::string(name) + " is given " + text_of(side->base, box.extent(*side)));
    return CUDA_ERROR_INVALID_VALUE;
  }
  return submit(
      *stream,
      {name, [=, done = size_t{0}](auto&) mutable {
         State& s = state();
         CUresult error = done == 0 ? take_copy_error() : CUDA_SUCCESS;
         if (error != CUDA_SUCCESS) return error;
         size_t n = draw_part(box, done);
         error = for_rows(box, done, n, [&](size_t plane, size_t row, size_t column, size_t count) {
           uintptr_t from = at(src, plane, row, column), to = at(dst, plane, row, column);
           char* to_bytes = reach(to, count);
           const char* from_bytes = reach(from, count);
           if (to_bytes == nullptr) return illegal(name, " writes ", to, count);
           if (from_bytes == nullptr) return illegal(name, " reads ", from, count);
           std::memmove(to_bytes, from_bytes, count);
           return CUDA_SUCCESS;
         });
         done += n;
         if (error != CUDA_SUCCESS || done < box.nbytes()) return error == CUDA_SUCCESS ? kMore : error;
         std::string kind = direction(dst.base, src.base);
         bool has_pageable = is_pageable(dst.base) || is_pageable(src.base);
         for (const std::string& counted : {kind, std::string(has_pageable ? "pageable" : "pinned")}) {
           ++s.counts["copies." + counted];
           s.counts["bytes." + counted] += box.nbytes();
         }
         return CUDA_SUCCESS;
       }});
}

template <class T>
CUresult submit_fill(Call& call, const char* name, uintptr_t dst, size_t pitch, T value, size_t width,
                     size_t height, CUstream handle) {
  Stream* stream = find_stream(call.context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Box box{width * sizeof(T), height, 1};
  Side side{dst, pitch, 0};
  if (box.nbytes() == 0) return CUDA_SUCCESS;
  bool is_aligned = dst % sizeof(T) == 0 && (height == 1 || (pitch % sizeof(T) == 0 && pitch >= box.width));
  if (!is_aligned || !is_valid(dst, box.extent(side)) || is_pageable(dst)) {
    note_problem(std::string(name) + " is given " + text_of(dst, box.extent(side)));
    return CUDA_ERROR_INVALID_VALUE;
  }
  return submit(*stream, {name, [=, done = size_t{0}](auto&) mutable {
                            CUresult error = done == 0 ? take_copy_error() : CUDA_SUCCESS;
                            if (error != CUDA_SUCCESS) return error;
                            size_t n = draw_part(box, done);
                            error = for_rows(
                                box, done, n, [&](size_t plane, size_t row, size_t column, size_t count) {
                                  char* bytes = reach(at(side, plane, row, column), count);
                                  if (bytes == nullptr)
                                    return illegal(name, " writes ", at(side, plane, row, column), count);
                                  const char* pattern = reinterpret_cast<const char*>(&value);
                                  for (size_t i = 0; i < count; ++i)
                                    bytes[i] = pattern[(column + i) % sizeof(T)];
                                  return CUDA_SUCCESS;
                                });
                            done += n;
                            return error != CUDA_SUCCESS ? error : done < box.nbytes() ? kMore : CUDA_SUCCESS;
                          }});
}

// One side of a copy descriptor. False: it names memory of another type than it says, or an array.
bool read_side(CUmemorytype type, const void* host, CUdeviceptr device, uintptr_t* base) {
  *base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(host) : device;
  Block* block = find_block(*base);
  bool is_on_device = block != nullptr && is_device(*block);
  switch (type) {
    case CU_MEMORYTYPE_HOST: return !is_on_device;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: return true;
    default: return false;
  }
}

}  // namespace

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t nbytes, CUstream stream) {
  TENON_FAKE_CALL(kContext);
  return submit_copy(call, __func__, {dst, 0, 0}, {src, 0, 0}, {nbytes, 1, 1}, stream);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  TENON_FAKE_CALL(kContext);
  const CUDA_MEMCPY2D& c = *copy;
  Side dst{0, c.dstPitch, 0}, src{0, c.srcPitch, 0};
  bool is_good = read_side(c.dstMemoryType, c.dstHost, c.dstDevice, &dst.base) &&
                 read_side(c.srcMemoryType, c.srcHost, c.srcDevice, &src.base);
  is_good =
      is_good && c.dstXInBytes + c.WidthInBytes <= c.dstPitch && c.srcXInBytes + c.WidthInBytes <= c.srcPitch;
  if (!is_good) return CUDA_ERROR_INVALID_VALUE;
  dst.base += c.dstY * c.dstPitch + c.dstXInBytes;
  src.base += c.srcY * c.srcPitch + c.srcXInBytes;
  return submit_copy(call, __func__, dst, src, {c.WidthInBytes, c.Height, 1}, stream);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  TENON_FAKE_CALL(kContext);
  const CUDA_MEMCPY3D& c = *copy;
  Side dst{0, c.dstPitch, c.dstPitch * c.dstHeight}, src{0, c.srcPitch, c.srcPitch * c.srcHeight};
  bool is_good = read_side(c.dstMemoryType, c.dstHost, c.dstDevice, &dst.base) &&
                 read_side(c.srcMemoryType, c.srcHost, c.srcDevice, &src.base);
  is_good =
      is_good && c.dstXInBytes + c.WidthInBytes <= c.dstPitch && c.srcXInBytes + c.WidthInBytes <= c.srcPitch;
  is_good = is_good && c.srcLOD == 0 && c.dstLOD == 0 && c.reserved0 == nullptr && c.reserved1 == nullptr;
  if (c.Depth > 1) is_good = is_good && c.dstY + c.Height <= c.dstHeight && c.srcY + c.Height <= c.srcHeight;
  if (!is_good) return CUDA_ERROR_INVALID_VALUE;
  dst.base += c.dstZ * dst.slice + c.dstY * c.dstPitch + c.dstXInBytes;
  src.base += c.srcZ * src.slice + c.srcY * c.srcPitch + c.srcXInBytes;
  return submit_copy(call, __func__, dst, src, {c.WidthInBytes, c.Height, c.Depth}, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) {
  TENON_FAKE_CALL(kContext);
  return submit_fill(call, __func__, dst, 0, value, n, 1, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t n, CUstream stream) {
  TENON_FAKE_CALL(kContext);
  return submit_fill(call, __func__, dst, 0, value, n, 1, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n, CUstream stream) {
  TENON_FAKE_CALL(kContext);
  return submit_fill(call, __func__, dst, 0, value, n, 1, stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream) {
  TENON_FAKE_CALL(kContext);
  return submit_fill(call, __func__, dst, pitch, value, width, height, stream);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream) {
  TENON_FAKE_CALL(kContext);
  return submit_fill(call, __func__, dst, pitch, value, width, height, stream);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height,
                            CUstream stream) {
  TENON_FAKE_CALL(kContext);
  return submit_fill(call, __func__, dst, pitch, value, width, height, stream);
}

}  // namespace tenon::fake
