// SPDX-License-Identifier: Apache-2.0
//
// Daemon threads that are inside of this extension when Python ends.
//
// Before 3.14 CPython ends such a thread with pthread_exit as soon as it wants the GIL. That unwinds the
// stack: destructors would touch Python objects without the GIL, and a noexcept function would end the
// process. So the first frame of ours that the unwinding meets keeps the thread here, asleep, until the
// process is gone, which is what CPython does itself from 3.14 on. The linker puts the function below in the
// place of the compiler's (--wrap, CMakeLists.txt), which says for each frame what an unwinding does there.
//
// libtenon has the compiler's. So functions that it calls are noexcept here: then they have such a frame.
//
// Public means do not suffice. Our own requests for the GIL could catch abi::__forced_unwind, but half of the
// threads that end here ask for the GIL inside of CPython, in a call or a finalizer. Then the destructors of
// inner frames run before any catch of ours, and all of them are noexcept. Of 60 processes that end under
// daemon threads (programs.DAEMONS of test_exit.py, 5 times each, CPython 3.11.7) so many crash:
//    0 with the function below,
//   25 with a catch at each of our requests for the GIL,
//   16 with that and a catch in guarded(), where slots and methods begin,
//   47 with nothing.
#include "ending_threads.h"

#include <dlfcn.h>
#include <unistd.h>
#include <unwind.h>

namespace tenon::python {

bool is_python_ending() noexcept {
  using Answer = int (*)();
  static const Answer is_finalizing = [] {
    void* const found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");  // public from 3.13 on
    return reinterpret_cast<Answer>(found != nullptr ? found : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
  }();
  return is_finalizing != nullptr && is_finalizing() != 0;
}

}  // namespace tenon::python

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class exception_class,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class exception_class,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
  if ((actions & _UA_FORCE_UNWIND) != 0 && tenon::python::is_python_ending()) {
    for (;;) pause();
  }
  return __real___gxx_personality_v0(version, actions, exception_class, exception, context);
}

}  // extern "C"
