// SPDX-License-Identifier: Apache-2.0
//
// A process that is to be killed: holder NAME takes a lease for writing of the array of that name, says so by
// a byte on its output, and holds it.
#include <tenon/engine.hpp>
#include <tenon/share.hpp>

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 2) return 2;
  const tenon::Array array = tenon::attach(argv[1]);
  const auto lease = array.overwrite();
  if (write(STDOUT_FILENO, ".", 1) != 1) return 1;
  for (;;) pause();
}
