// SPDX-License-Identifier: Apache-2.0
//
// The smallest C++ program that shows headers and library fit: writes through a typed view, copies, pushes
// an op, and meets an error as an exception.
#include <iostream>
#include <tenon/engine.hpp>
#include <tenon/tenon.hpp>

int main() {
  auto array = tenon::Array::zeros<float>({2, 3});
  array.as<float, 2>()(1, 2) = 4.0f;
  const auto copy = array.copy("int32");
  if (copy.as<const int32_t, 2>()(1, 2) != 4) return 1;
  tenon::push([](tenon::View<float, 2> all) { all(1, 2) += 1; }, tenon::write(array)).wait();
  if (array.as<const float, 2>()(1, 2) != 5.0f) return 4;
  try {
    array.reshape({7});
    return 2;
  } catch (const tenon::Error& error) {
    std::cout << "C++: " << error.what() << '\n';
    return error.code() == TENON_ERR_VALUE ? 0 : 3;
  }
}
