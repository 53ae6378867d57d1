# SPDX-License-Identifier: Apache-2.0
#
# What the build needs: Linux on x86-64 or AArch64, and a compiler with std::source_location. Clang 15 is the
# first that has it with libstdc++.

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8 OR
   NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64|aarch64|arm64)$")
  message(FATAL_ERROR "Tenon supports Linux on x86-64 and AArch64, and this is ${CMAKE_SYSTEM_NAME} on "
                      "${CMAKE_SYSTEM_PROCESSOR}. It needs futexes, sealed memory files and /proc: use WSL 2 "
                      "on Windows, and a Linux container on macOS.")
endif()

foreach(minimum GNU=11 Clang=15)
  string(REPLACE "=" ";" minimum ${minimum})
  list(GET minimum 0 compiler)
  list(GET minimum 1 version)
  if(CMAKE_CXX_COMPILER_ID STREQUAL compiler AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS version)
    message(FATAL_ERROR "Tenon needs C++20 with std::source_location: g++ 11 or clang++ 15 or newer. "
                        "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}; "
                        "choose another one with CXX or CMAKE_CXX_COMPILER.")
  endif()
endforeach()
