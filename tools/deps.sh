#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the C++ tests need from the system: GoogleTest, and a compiler with its sanitizers. Looks
# first, and calls apt-get (as root or through sudo) only for what is missing; where it cannot, it prints
# the line to run and fails.
set -eu

compiler=${CXX:-c++}
packages=
need() { packages="$packages $1"; }
has_header() { echo "#include <$1>" | "$compiler" -x c++ -E - >/dev/null 2>&1; }
has_sanitizer() { echo 'int main() {}' | "$compiler" -x c++ "-fsanitize=$1" -o /dev/null - >/dev/null 2>&1; }

if command -v "$compiler" >/dev/null && command -v cc >/dev/null && command -v nm >/dev/null; then
  has_header gtest/gtest.h || need libgtest-dev
  has_sanitizer address,undefined || need g++
else
  need "g++ libgtest-dev"
fi
[ -z "$packages" ] && exit 0

install="apt-get install -y --no-install-recommends$packages"
if ! command -v apt-get >/dev/null; then
  echo "Missing: the equivalents of the Debian packages$packages. Install them and run again." >&2
  exit 1
elif [ "$(id -u)" = 0 ]; then
  as=
elif sudo -n true 2>/dev/null || { [ -t 0 ] && sudo true; }; then
  as=sudo
else
  echo "Missing packages. Run this line and try again:" >&2
  echo "    sudo $install" >&2
  exit 1
fi
echo "== $install"
export DEBIAN_FRONTEND=noninteractive
$as $install || { $as apt-get update && $as $install; }
