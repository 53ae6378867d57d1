// SPDX-License-Identifier: Apache-2.0
//
// The door between libtenon and libtenon_tbb.so, the only library that needs oneTBB: it lies beside
// libtenon, is built where oneTBB was found, and is opened when someone asks for the executor "tbb".
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "engine/executor.h"

namespace tenon::engine {

// What libtenon_tbb.so exports. Null after a failure, with the reason in message.
using TbbExecutorFactory = Executor* (*)(int workers, char* message, size_t message_size);
inline constexpr char kTbbExecutorFactory[] = "tenon_tbb_executor";

// Opens the library at path, for ever, and makes an executor of so many workers. Fails with kNotFound where
// the library is not there or cannot be loaded, kSystem where oneTBB does not start.
std::unique_ptr<Executor> make_tbb_executor(const std::string& path, int workers);

}  // namespace tenon::engine
