// SPDX-License-Identifier: Apache-2.0
//
// nanobind's nb::ndarray, used as its documentation says: a function that takes an array of any kind, and a
// class that lends its memory to NumPy and PyTorch. Linked into the module and built for one CPython version,
// optimised for speed: nanobind at its best.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>

namespace nb = nanobind;

namespace {

using Any = nb::ndarray<nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

// Lends the matrix that it was made from, which it keeps.
class Lender {
 public:
  explicit Lender(Matrix matrix) : matrix_(std::move(matrix)) {
    for (size_t i = 0; i < 2; ++i) {
      shape_[i] = matrix_.shape(i);
      strides_[i] = matrix_.stride(i);
    }
  }

  template <class Framework>
  nb::ndarray<Framework, float, nb::ndim<2>> lend(nb::handle self) {
    return {matrix_.data(), 2, shape_, self, strides_};
  }

 private:
  Matrix matrix_;
  size_t shape_[2];
  int64_t strides_[2];
};

template <class Framework>
auto lend(nb::handle self) {
  return nb::cast<Lender&>(self).lend<Framework>(self);
}

}  // namespace

NB_MODULE(nanobind_peer, module) {
  module.def("take", [](const Any&) {}, "Takes an array and lets go of it.");
  module.def("address", [](const Any& array) { return reinterpret_cast<uintptr_t>(array.data()); });
  nb::class_<Lender>(module, "Lender")
      .def(nb::init<Matrix>())
      .def("numpy", &lend<nb::numpy>)
      .def("torch", &lend<nb::pytorch>);
}
