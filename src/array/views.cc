// SPDX-License-Identifier: Apache-2.0
//
// Windows on the storage of an array: index, reshape, transpose, reinterpret, broadcast. No element is
// touched, except by a reshape that may copy.
#include <algorithm>
#include <bitset>

#include "array/array.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// The address that is this many elements from element 0.
std::byte* advanced(const Array& array, int64_t elements) {
  if (array.size() == 0 || elements == 0) return array.data();
  if (array.is_byte_sized()) {
    return array.data() + elements * static_cast<int64_t>(array.desc().itemsize);
  }
  const int64_t bits = elements * array.dtype().element_bits();
  if (bits % 8 != 0) {
    throw_error(Code::kValue, "element ", elements, " of packed ", array.dtype().name(), " begins at bit ",
                bits, ", which is not the start of a byte");
  }
  return array.data() + bits / 8;
}

Ref<Array> window(Array& array, const Layout& layout) {
  if (!array.is_byte_sized() && !is_c_contiguous(layout.shape, layout.strides)) {
    throw_error(Code::kValue, "a view of packed ", array.dtype().name(), " elements must be in C order");
  }
  return Array::make(Ref<Storage>::share(&array.storage()), layout);
}

// The result of a slice of an axis: first element and number of elements.
struct Range {
  int64_t start;
  int64_t count;
};

// Python's rule for slice(start, stop, step) on a sequence of length extent.
Range resolve_slice(const tenon_index& slice, int64_t extent) {
  const int64_t step = slice.step;
  const auto clamp = [&](int64_t bound, int64_t omitted) {
    if (bound == TENON_OMITTED) return omitted;
    if (bound < 0) bound = std::max<int64_t>(bound + extent, step < 0 ? -1 : 0);
    return std::min(bound, step < 0 ? extent - 1 : extent);
  };
  const int64_t start = clamp(slice.start, step < 0 ? extent - 1 : 0);
  const int64_t stop = clamp(slice.stop, step < 0 ? -1 : extent);
  const int64_t distance = step < 0 ? start - stop : stop - start;
  if (distance <= 0) return {0, 0};
  const uint64_t stride = step < 0 ? 0 - static_cast<uint64_t>(step) : static_cast<uint64_t>(step);
  return {start, static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride) + 1};
}

// How many axes of the source the indices name; fails with two ellipses.
int32_t axes_named(std::span<const tenon_index> indices) {
  int32_t named = 0;
  int32_t ellipses = 0;
  for (const tenon_index& item : indices) {
    if (item.kind == TENON_INDEX_AT || item.kind == TENON_INDEX_SLICE) ++named;
    if (item.kind == TENON_INDEX_ELLIPSIS) ++ellipses;
  }
  if (ellipses > 1) throw_error(Code::kIndex, "an index can have only one ellipsis ('...'), not ", ellipses);
  return named;
}

// Builds the window of an index axis by axis.
class Indexer {
 public:
  explicit Indexer(Array& array) : array_(array) {}

  void at(int64_t position) {
    const int64_t extent = array_.shape()[axis_];
    const int64_t i = position < 0 ? position + extent : position;
    if (i < 0 || i >= extent) {
      throw_error(Code::kIndex, "index ", position, " is out of bounds for axis ", axis_, " with size ",
                  extent);
    }
    offset_ += i * array_.strides()[axis_];
    ++axis_;
  }

  void slice(const tenon_index& item) {
    if (item.step == 0) throw_error(Code::kValue, "slice step cannot be zero");
    const Range range = resolve_slice(item, array_.shape()[axis_]);
    const int64_t stride = array_.strides()[axis_];
    offset_ += range.start * stride;
    // With fewer than two elements the stride means nothing, and the product may overflow.
    add(range.count, range.count > 1 ? stride * item.step : stride);
    ++axis_;
  }

  void keep(int32_t axes) {
    for (; axes > 0; --axes, ++axis_) add(array_.shape()[axis_], array_.strides()[axis_]);
  }

  void new_axis() { add(1, 1); }

  Ref<Array> result() {
    Layout layout = array_.layout();
    layout.data = advanced(array_, offset_);
    layout.shape = shape_.dims();
    layout.strides = strides_.dims();
    return window(array_, layout);
  }

 private:
  void add(int64_t extent, int64_t stride) {
    if (shape_.count == TENON_MAX_NDIM) {
      throw_error(Code::kIndex, "the result has more than ", TENON_MAX_NDIM, " axes");
    }
    shape_.push(extent);
    strides_.push(stride);
  }

  Array& array_;
  size_t axis_ = 0;
  int64_t offset_ = 0;
  DimBuffer shape_;
  DimBuffer strides_;
};

// Computes strides for shape over the same elements in C order. False: there are none. Both shapes have the
// same positive size. Splits both shapes into runs of axes with equal products; the source axes of a run must
// be spaced like one axis.
bool reshape_strides(Dims old_shape, Dims old_strides, Dims shape, int64_t* strides) {
  DimBuffer from_shape;
  DimBuffer from_strides;
  for (size_t i = 0; i < old_shape.size(); ++i) {
    if (old_shape[i] == 1) continue;
    from_shape.push(old_shape[i]);
    from_strides.push(old_strides[i]);
  }
  int32_t from = 0;
  size_t to = 0;
  while (from < from_shape.count && to < shape.size()) {
    int32_t from_end = from + 1;
    size_t to_end = to + 1;
    int64_t from_length = from_shape[from];
    int64_t to_length = shape[to];
    while (from_length != to_length) {
      if (from_length < to_length) {
        from_length *= from_shape[from_end++];
      } else {
        to_length *= shape[to_end++];
      }
    }
    for (int32_t i = from; i + 1 < from_end; ++i) {
      if (from_strides[i] != from_shape[i + 1] * from_strides[i + 1]) return false;
    }
    int64_t stride = from_strides[from_end - 1];
    for (size_t i = to_end; i-- > to;) {
      strides[i] = stride;
      stride *= shape[i];
    }
    from = from_end;
    to = to_end;
  }
  for (; to < shape.size(); ++to) strides[to] = 1;
  return true;
}

// shape with its -1 replaced. Fails with kValue.
DimBuffer complete_shape(const Array& array, Dims shape) {
  DimBuffer full;
  int32_t unknown = -1;
  int64_t known = 1;
  bool overflows = false;
  for (int64_t extent : shape) {
    if (extent == -1 && unknown < 0) {
      unknown = full.count;
    } else if (extent < 0) {
      throw_error(Code::kValue, "shape ", shape_text(shape),
                  extent == -1 ? " has more than one -1" : " has a negative entry");
    } else {
      overflows |= __builtin_mul_overflow(known, extent, &known);
    }
    full.push(extent);
  }
  if (unknown >= 0 && known > 0 && !overflows && array.size() % known == 0) {
    full[unknown] = array.size() / known;
    known = array.size();
  }
  if (overflows || known != array.size() || (unknown >= 0 && full[unknown] < 0)) {
    throw_error(Code::kValue, "cannot reshape array of ", array.size(), " elements, shape ",
                shape_text(array.shape()), ", into shape ", shape_text(shape));
  }
  return full;
}

// The shape of the last axis scaled from one item size to another.
DimBuffer scaled_shape(const Array& array, DType dtype) {
  const uint64_t old_bits = array.is_byte_sized() ? array.desc().itemsize * 8 : array.dtype().element_bits();
  const uint64_t new_bits = dtype.element_bits();
  DimBuffer shape;
  for (int64_t extent : array.shape()) shape.push(extent);
  if (old_bits == new_bits) return shape;
  if (shape.count == 0) {
    throw_error(Code::kValue, "a 0-dimensional array of ", array.dtype().name(), " cannot be viewed as ",
                dtype.name(), ": the sizes of the elements differ; reshape it to (1,) first");
  }
  int64_t& last = shape[shape.count - 1];
  const uint64_t bits = static_cast<uint64_t>(last) * old_bits;
  if (bits % new_bits != 0) {
    throw_error(Code::kValue, "last axis of ", bits / 8, " bytes cannot be viewed as ", dtype.name(), ": ",
                bits / 8, " is not a multiple of ", dtype.padded_itemsize());
  }
  last = static_cast<int64_t>(bits / new_bits);
  return shape;
}

// Fails with kValue unless the byte at byte_offset is aligned; names the nearest offsets that are. wanted:
// the bytes of the view, or null for all that follow.
void check_alignment(const Array& array, DType dtype, uint64_t byte_offset, const uint64_t* wanted) {
  const uint64_t alignment = dtype.alignment();
  const auto address = reinterpret_cast<uintptr_t>(array.data()) + byte_offset;
  if (address % alignment == 0) return;
  const uint64_t nbytes = array.desc().nbytes;
  const auto works = [&](uint64_t offset) {
    return offset < nbytes && (wanted == nullptr || *wanted <= nbytes - offset);
  };
  const uint64_t down = byte_offset - address % alignment;  // wraps, and then does not work
  const uint64_t up = byte_offset + (alignment - address % alignment);
  std::string advice = "copy the array first";
  if (wanted != nullptr || byte_offset != 0) {  // else no other offset leaves a whole number of elements
    const char* const with = wanted != nullptr ? "" : " and a shape";
    if (works(down) && works(up)) {
      advice = concat("use byte offset ", down, " or ", up, with);
    } else if (works(down) || works(up)) {
      advice = concat("use byte offset ", works(down) ? down : up, with);
    }
  }
  throw_error(Code::kValue, "byte offset ", byte_offset, " lies at ",
              address_text(array.data() + byte_offset), ", which is not aligned for ", dtype.name(),
              " (multiples of ", alignment, "): ", advice);
}

}  // namespace

Ref<Array> index(Array& array, std::span<const tenon_index> indices) {
  const bool is_all = indices.empty() || (indices.size() == 1 && indices[0].kind == TENON_INDEX_ELLIPSIS);
  if (is_all) return Ref<Array>::share(&array);  // an array never changes
  const int32_t ndim = array.desc().ndim;
  const int32_t named = axes_named(indices);
  if (named > ndim) {
    throw_error(Code::kIndex, "too many indices: the array has ", ndim, " axes, but ", named,
                " were indexed");
  }
  Indexer indexer(array);
  bool has_ellipsis = false;
  for (const tenon_index& item : indices) {
    switch (item.kind) {
      case TENON_INDEX_AT: indexer.at(item.start); break;
      case TENON_INDEX_SLICE: indexer.slice(item); break;
      case TENON_INDEX_NEW_AXIS: indexer.new_axis(); break;
      case TENON_INDEX_ELLIPSIS:
        indexer.keep(ndim - named);
        has_ellipsis = true;
        break;
      default: throw_error(Code::kValue, "index kind ", item.kind, " is unknown");
    }
  }
  if (!has_ellipsis) indexer.keep(ndim - named);
  return indexer.result();
}

Ref<Array> reshape(Array& array, Dims shape, int32_t copy_mode) {
  if (copy_mode < TENON_COPY_IF_NEEDED || copy_mode > TENON_COPY_ALWAYS) {
    throw_error(Code::kValue, "copy mode ", copy_mode, " is unknown");
  }
  const DimBuffer full = complete_shape(array, shape);
  DimBuffer strides = c_strides(full.dims());
  const auto reshaped = [&](Array& source) {
    Layout layout = source.layout();
    layout.shape = full.dims();
    layout.strides = strides.dims();
    return window(source, layout);
  };
  const bool is_view = copy_mode != TENON_COPY_ALWAYS;
  if (is_view && (array.size() == 0 || array.is_contiguous())) return reshaped(array);
  if (is_view && reshape_strides(array.shape(), array.strides(), full.dims(), strides.values.data())) {
    return reshaped(array);
  }
  if (copy_mode == TENON_COPY_NEVER) {
    throw_error(Code::kValue, "shape ", shape_text(array.shape()), " with ", strides_text(array.strides()),
                " cannot be viewed as shape ", shape_text(shape), ": reshape with a copy");
  }
  strides = c_strides(full.dims());
  return reshaped(*copy(array, array.dtype()));
}

Ref<Array> transpose(Array& array, const int32_t* axes) {
  const int32_t ndim = array.desc().ndim;
  DimBuffer shape;
  DimBuffer strides;
  std::bitset<TENON_MAX_NDIM> seen;
  for (int32_t i = 0; i < ndim; ++i) {
    int32_t axis = axes != nullptr ? axes[i] : ndim - 1 - i;
    if (axis < 0) axis += ndim;
    if (axis < 0 || axis >= ndim || seen[static_cast<size_t>(axis)]) {
      throw_error(Code::kValue, "axes of a transpose must be a permutation of 0..", ndim - 1, ": entry ", i,
                  " is ", axes[i]);
    }
    seen.set(static_cast<size_t>(axis));
    shape.push(array.shape()[static_cast<size_t>(axis)]);
    strides.push(array.strides()[static_cast<size_t>(axis)]);
  }
  Layout layout = array.layout();
  layout.shape = shape.dims();
  layout.strides = strides.dims();
  return window(array, layout);
}

Ref<Array> reinterpret(Array& array, DType dtype, const Dims* shape, uint64_t byte_offset) {
  check_dtype(dtype);
  const bool is_same_size =
      array.is_byte_sized() && dtype.is_byte_sized() && array.desc().itemsize == dtype.padded_itemsize();
  Layout layout = array.layout();
  layout.dtype = dtype;
  layout.flags &= ~static_cast<uint32_t>(TENON_SUBBYTE_PADDED);
  if (shape == nullptr && byte_offset == 0 && is_same_size) {
    if (array.size() > 0) check_alignment(array, dtype, 0, nullptr);
    return window(array, layout);
  }
  if (!array.is_contiguous()) {
    throw_error(Code::kValue, "shape ", shape_text(array.shape()), " with ", strides_text(array.strides()),
                " is not in C order: only elements of the same size can be viewed as ", dtype.name(),
                "; copy first");
  }
  const uint64_t nbytes = array.desc().nbytes;
  if (byte_offset > nbytes) {
    throw_error(Code::kValue, "byte offset ", byte_offset, " lies behind the end of an array of ", nbytes,
                " bytes");
  }
  DimBuffer wanted;
  if (shape != nullptr) {
    for (int64_t extent : *shape) wanted.push(extent);
  } else if (byte_offset == 0) {
    wanted = scaled_shape(array, dtype);
  } else {
    const uint64_t bits = (nbytes - byte_offset) * 8;
    if (bits % dtype.element_bits() != 0) {
      throw_error(Code::kValue, nbytes - byte_offset, " bytes behind byte offset ", byte_offset,
                  " cannot be viewed as ", dtype.name(), ": ", nbytes - byte_offset, " is not a multiple of ",
                  dtype.padded_itemsize());
    }
    wanted.push(static_cast<int64_t>(bits / dtype.element_bits()));
  }
  const int64_t size = element_count(wanted.dims(), dtype.element_bits());
  const uint64_t needed = (static_cast<uint64_t>(size) * dtype.element_bits() + 7) / 8;
  if (needed > nbytes - byte_offset) {
    throw_error(
        Code::kValue, "shape ", shape_text(wanted.dims()), " of ", dtype.name(), " needs ", needed,
        " bytes, but ", nbytes - byte_offset, " follow byte offset ", byte_offset,
        needed <= nbytes ? concat(": the largest offset that works is ", nbytes - needed) : std::string());
  }
  if (size > 0) check_alignment(array, dtype, byte_offset, shape != nullptr ? &needed : nullptr);
  layout.data = array.data() == nullptr ? nullptr : array.data() + byte_offset;
  layout.shape = wanted.dims();
  layout.strides = {};
  return Array::make(Ref<Storage>::share(&array.storage()), layout);
}

Ref<Array> broadcast(Array& array, Dims shape) {
  const auto ndim = static_cast<int32_t>(shape.size());
  const int32_t added = ndim - array.desc().ndim;
  DimBuffer strides;
  for (int32_t i = 0; i < ndim && added >= 0; ++i) {
    const auto axis = static_cast<size_t>(i);
    const int64_t extent = i < added ? 1 : array.shape()[axis - static_cast<size_t>(added)];
    if (extent != shape[axis] && extent != 1) break;
    strides.push(extent == 1 ? 0 : array.strides()[axis - static_cast<size_t>(added)]);
  }
  if (added < 0 || strides.count < ndim) {
    throw_error(Code::kValue, "cannot broadcast shape ", shape_text(array.shape()), " to shape ",
                shape_text(shape));
  }
  element_count(shape, static_cast<uint32_t>(array.desc().itemsize) * 8);
  Layout layout = array.layout();
  layout.flags |= TENON_READONLY;
  layout.shape = shape;
  layout.strides = strides.dims();
  return window(array, layout);
}

Ref<Array> as_readonly(Array& array) {
  Layout layout = array.layout();
  layout.flags |= TENON_READONLY;
  return window(array, layout);
}

}  // namespace tenon::impl
