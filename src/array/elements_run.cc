// SPDX-License-Identifier: Apache-2.0
#include "array/elements_run.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

namespace tenon::impl {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kWidest = 16;
// The elements that pass through the buffers at a time.
constexpr int64_t kPiece = 512;
// A shorter row is not worth a call: then a longer axis becomes the row, in pieces of kSplit elements.
constexpr int64_t kShortRow = 16;
constexpr int64_t kSplit = 256;
// A tile reads runs of kTileSrc bytes and writes runs of kTileDst bytes, or longer ones if they cannot begin
// on a cache line.
constexpr int64_t kTileSrc = 256;
constexpr int64_t kTileDst = 128;
constexpr int64_t kTileDstUnaligned = 512;
constexpr int64_t kTileNbytes = 32768;

int64_t steps_to_line(const std::byte* address, int64_t width) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(address) % uint64_t{kLine}) / width;
}

void copy_bytes(std::byte* dst, const std::byte* src, size_t nbytes) { std::memcpy(dst, src, nbytes); }

// One run over one loop.
class LoopRunner {
 public:
  explicit LoopRunner(const Conversion& conversion)
      : kernels_(conversion.kernels),
        path_(conversion.path),
        stream_from_(conversion.stream_from),
        src_width_(conversion.src_width),
        dst_width_(conversion.dst_width),
        move_src_(kernels_.move[std::countr_zero(conversion.src_width)]),
        move_dst_(kernels_.move[std::countr_zero(conversion.dst_width)]) {}

  void run(Loop& loop) {
    const int64_t nbytes = bytes_of_both(loop);
    if (loop.ndim == 0) loop.push({1, dst_width_, src_width_});
    const int row = loop.ndim - 1;
    const int fastest = fastest_src_axis(loop);
    const bool is_tiled = fastest != row && suits_tiles(loop.axes[fastest], loop.axes[row]);
    streams_ = nbytes >= (is_tiled ? stream_from_.tiles : stream_from_.rows);
    if (is_tiled) {
      std::rotate(loop.axes + fastest, loop.axes + fastest + 1, loop.axes + row);
      run_tiles(loop);
    } else if (loop.axes[row].n < kShortRow) {
      run_pieces(loop, longest_axis(loop));
    } else if (fastest != row) {
      std::rotate(loop.axes + fastest, loop.axes + fastest + 1, loop.axes + row);
      std::swap(loop.axes[row], loop.axes[row - 1]);
      run_pieces(loop, row - 1);
    } else {
      run_rows(loop);
    }
    if (streams_) kernels_.finish_stream();
  }

 private:
  int64_t bytes_of_both(const Loop& loop) const {
    int64_t dst = dst_width_;
    int64_t src = src_width_;
    for (int k = 0; k < loop.ndim; ++k) {
      dst *= loop.axes[k].n;
      if (loop.axes[k].src != 0) src *= loop.axes[k].n;
    }
    return dst + src;
  }

  // The axis along which src is read with the smallest steps.
  static int fastest_src_axis(const Loop& loop) {
    int fastest = loop.ndim - 1;
    for (int k = 0; k < loop.ndim - 1; ++k) {
      const int64_t stride = std::abs(loop.axes[k].src);
      if (stride != 0 && stride < std::abs(loop.axes[fastest].src)) fastest = k;
    }
    return fastest;
  }

  // The innermost axis that is long enough, else the longest.
  static int longest_axis(const Loop& loop) {
    int longest = loop.ndim - 1;
    for (int k = loop.ndim - 2; k >= 0 && loop.axes[longest].n < 4 * kShortRow; --k) {
      if (loop.axes[k].n > loop.axes[longest].n) longest = k;
    }
    return longest;
  }

  // All steps of both axes make one contiguous run of dst.
  bool is_block(const Axis& column, const Axis& row) const {
    return row.dst == dst_width_ && column.dst == row.n * row.dst;
  }

  bool suits_tiles(const Axis& column, const Axis& row) const {
    if (column.src != src_width_ || src_width_ > 8) return false;
    const bool has_vectors = std::min(column.n, row.n) * src_width_ >= kWidest;
    if (!is_block(column, row)) return has_vectors && column.n > 4 && row.n >= kShortRow;
    return column.n * row.n >= 16 && (has_vectors || column.n >= 4 * kShortRow);
  }

  // Calls body(dst, src) at each step of the outer axes.
  template <class Body>
  static void for_each(const Loop& loop, int outer, Body body) {
    int64_t index[Loop::kMaxAxes];
    std::fill_n(index, outer, 0);
    std::byte* dst = loop.dst;
    const std::byte* src = loop.src;
    for (;;) {
      body(dst, src);
      int k = outer - 1;
      for (; k >= 0; --k) {
        dst += loop.axes[k].dst;
        src += loop.axes[k].src;
        if (++index[k] < loop.axes[k].n) break;
        dst -= loop.axes[k].n * loop.axes[k].dst;
        src -= loop.axes[k].n * loop.axes[k].src;
        index[k] = 0;
      }
      if (k < 0) return;
    }
  }

  void run_rows(const Loop& loop) {
    const Axis row = loop.axes[loop.ndim - 1];
    for_each(loop, loop.ndim - 1,
             [&](std::byte* dst, const std::byte* src) { copy_row(dst, row.dst, src, row.src, row.n); });
  }

  // Rows along `axis` in pieces, and for each piece all steps of the axes behind it, while its lines are
  // in the cache.
  void run_pieces(const Loop& loop, int axis) {
    const Axis row = loop.axes[axis];
    Loop inner;
    for (int k = axis + 1; k < loop.ndim; ++k) inner.push(loop.axes[k]);
    for_each(loop, axis, [&](std::byte* dst, const std::byte* src) {
      const int64_t first = row.dst == dst_width_ ? steps_to_line(dst, dst_width_) : 0;
      for (int64_t k = 0, next; k < row.n; k = next) {
        next = std::min(row.n, k == 0 && first > 0 ? first : k + kSplit);
        inner.dst = dst + k * row.dst;
        inner.src = src + k * row.src;
        for_each(inner, inner.ndim, [&](std::byte* inner_dst, const std::byte* inner_src) {
          copy_row(inner_dst, row.dst, inner_src, row.src, next - k);
        });
      }
    });
  }

  // Runs of some rows, transposed in a buffer. Tiles begin and end on lines where all rows allow it.
  void run_tiles(const Loop& loop) {
    const Axis row = loop.axes[loop.ndim - 1];
    const Axis column = loop.axes[loop.ndim - 2];
    const bool has_aligned_rows = column.dst % kLine == 0;
    const bool has_aligned_columns = row.src % kLine == 0;
    const int64_t run = has_aligned_rows ? kTileDst : kTileDstUnaligned;
    const int64_t side_i = kTileSrc / src_width_;
    const int64_t side_j = std::min(run / dst_width_, kTileNbytes / kTileSrc);
    for_each(loop, loop.ndim - 2, [&](std::byte* dst, const std::byte* src) {
      const int64_t first_i = has_aligned_columns ? steps_to_line(src, src_width_) : 0;
      const int64_t first_j = has_aligned_rows && row.n > side_j ? steps_to_line(dst, dst_width_) : 0;
      for (int64_t j = 0, next_j; j < row.n; j = next_j) {
        next_j = std::min(row.n, j == 0 && first_j > 0 ? first_j : j + side_j);
        for (int64_t i = 0, next_i; i < column.n; i = next_i) {
          next_i = std::min(column.n, i == 0 && first_i > 0 ? first_i : i + side_i);
          tile(dst + i * column.dst + j * row.dst, src + i * column.src + j * row.src,
               {next_i - i, column.dst, column.src}, {next_j - j, row.dst, row.src});
        }
      }
    });
  }

  void tile(std::byte* dst, const std::byte* src, const Axis& column, const Axis& row) {
    const TransposeTile transpose = kernels_.transpose[std::countr_zero(static_cast<uint64_t>(src_width_))];
    const size_t rows = static_cast<size_t>(row.n);
    const size_t columns = static_cast<size_t>(column.n);
    // With this stride the rows would use only few sets of the first cache.
    const bool collides = column.dst % 512 == 0;
    if (path_.count == 0 && !streams_ && row.dst == dst_width_ && !collides) {
      transpose(dst, column.dst, src, row.src, rows, columns);
      return;
    }
    transpose(tile_, row.n * src_width_, src, row.src, rows, columns);
    if (is_block(column, row)) {
      copy_row(dst, dst_width_, tile_, src_width_, column.n * row.n);
      return;
    }
    for (int64_t i = 0; i < column.n; ++i) {
      copy_row(dst + i * column.dst, row.dst, tile_ + i * row.n * src_width_, src_width_, row.n);
    }
  }

  void copy_row(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride, int64_t n) {
    const bool is_dst_packed = dst_stride == dst_width_;
    const bool is_packed = is_dst_packed && src_stride == src_width_;
    const bool streams = streams_ && is_dst_packed;
    const size_t count = static_cast<size_t>(n);
    if (path_.count == 0 && is_packed) {
      (streams ? kernels_.stream : copy_bytes)(dst, src, count * static_cast<size_t>(dst_width_));
      return;
    }
    // A repeated value needs no reads, so plain stores are as fast.
    if (path_.count == 0 && (!streams || src_stride == 0)) {
      move_dst_(dst, dst_stride, src, src_stride, count);
      return;
    }
    if (path_.count == 1 && is_packed && !streams) {
      path_.steps[0].row(dst, src, count);
      return;
    }
    int64_t next = streams ? steps_to_line(dst, dst_width_) + kPiece - kLine : kPiece;
    for (int64_t k = 0; k < n; k = next, next += kPiece) {
      next = std::min(next, n);
      copy_piece(dst + k * dst_stride, dst_stride, src + k * src_stride, src_stride, next - k);
    }
  }

  void copy_piece(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride, int64_t n) {
    const size_t count = static_cast<size_t>(n);
    const bool is_dst_packed = dst_stride == dst_width_;
    int buffer = 0;
    if (src_stride != src_width_) {
      move_src_(buffers_[buffer], src_width_, src, src_stride, count);
      src = buffers_[buffer];
      buffer ^= 1;
    }
    for (int k = 0; k < path_.count; ++k) {
      const bool is_last = k == path_.count - 1 && is_dst_packed && !streams_;
      std::byte* out = is_last ? dst : buffers_[buffer];
      path_.steps[k].row(out, src, count);
      if (is_last) return;
      src = out;
      buffer ^= 1;
    }
    if (is_dst_packed) {
      kernels_.stream(dst, src, count * dst_width_);
    } else {
      move_dst_(dst, dst_stride, src, dst_width_, count);
    }
  }

  const Kernels& kernels_;
  const CastPath& path_;
  const StreamFrom stream_from_;
  const int64_t src_width_;
  const int64_t dst_width_;
  const MoveRow move_src_;
  const MoveRow move_dst_;
  bool streams_ = false;
  alignas(kLine) std::byte buffers_[2][kPiece * kWidest];
  alignas(kLine) std::byte tile_[kTileNbytes];
};

}  // namespace

void run_loop(const Conversion& conversion, Loop& loop) { LoopRunner(conversion).run(loop); }

}  // namespace tenon::impl
