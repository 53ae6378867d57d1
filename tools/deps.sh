#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the tests need from the system: GoogleTest, a compiler with its sanitizers, and spin. Looks
# first, and calls apt-get (as root or through sudo) only for what is missing; where it cannot, it prints
# the line to run and fails. Others are tried for as well: without Open MPI, the decoders and the Fortran
# compiler the tests that use them are skipped.
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
command -v spin >/dev/null || need spin

log=$(dirname "$0")/../build/log/deps.log

# logged COMMAND...: what it prints goes to the log.
logged() { "$@" >>"$log" 2>&1; }

# install AS PACKAGES: with sudo or nothing in front.
install() {
  line="apt-get install -y --no-install-recommends$2"
  echo "$line (log: build/log/deps.log)"
  mkdir -p "$(dirname "$log")"
  DEBIAN_FRONTEND=noninteractive
  export DEBIAN_FRONTEND
  logged $1 $line || { logged $1 apt-get update && logged $1 $line; }
}

# try_for PACKAGE LACK: does not prompt, and goes on without it.
try_for() {
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    install "" " $1" && return
  elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then
    install sudo " $1" && return
  fi
  echo "Without the Debian package $1 $2; nothing else needs it."
}

try_for_others() {
  has_header turbojpeg.h || try_for libturbojpeg0-dev "the test that decodes JPEG is skipped"
  has_header sndfile.h || try_for libsndfile1-dev "the test that reads sound is skipped"
  has_header zlib.h || try_for zlib1g-dev "the test that inflates is skipped"
  command -v mpirun >/dev/null || try_for openmpi-bin "the tests of MPI are skipped"
  command -v "${FC:-gfortran}" >/dev/null || try_for gfortran "the test of a generator in Fortran is skipped"
}

if [ -z "$packages" ]; then
  try_for_others
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "Missing: the equivalents of the Debian packages$packages. Install them and run again." >&2
  exit 1
elif [ "$(id -u)" = 0 ]; then
  install "" "$packages"
elif sudo -n true 2>/dev/null || { [ -t 0 ] && sudo true; }; then
  install sudo "$packages"
else
  echo "Missing packages. Run this line and try again:" >&2
  echo "    sudo apt-get install -y --no-install-recommends$packages" >&2
  exit 1
fi
try_for_others
