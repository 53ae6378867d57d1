// SPDX-License-Identifier: Apache-2.0
//
// What the extension calls in Python: functions and classes of the package, which it is given once, by
// tenon/_callbacks.py. The extension imports no module of the package.
#pragma once

#include <cstddef>

#include "python.h"

namespace tenon::python {

// The names are in callbacks.cc, in the same order.
enum class Callback : size_t {
  // Exceptions.
  kTenonError,
  kLeaseConflict,
  kLeaseEscaped,
  kDeadlockError,
  kMovedError,
  kOpError,
  kOwnerDied,
  kMessageGone,
  kCopiedError,
  kOpErrorOf,
  // Arrays.
  kArrayRepr,
  kArrayHtml,
  kArrayFormat,
  kReduceArray,
  kArrayCTypes,
  kArrayFunction,
  kToJax,
  kAsJax,
  kMxNetContext,
  kAsInMxNetContext,
  kWriteField,
  // Leases, blocks and bodies.
  kLease,
  kLeases,
  kEnterBlock,
  kEnterLater,
  kNothingLater,
  kCheckOnDied,
  kGiveBack,
  kTextOf,
  kEndViews,
  kCheckOutlived,
  kWarnOfOutlived,
  kReleaseRetained,
  kWaitForSearches,
  kCertaintyOf,
  kIsOneName,
  kCallBody,
  kCheckResult,
  kWhereViewsAreKept,
  kEndFailedBody,
  kDescribeOutlived,
  kReportUnseen,
  // Pushes.
  kOp,
  kCFunction,
  kIterable,
  kFill,
  kCopy,
  kCast,
  kPolicyOf,
  kRefuseGenerators,
  kPromiseOf,
  kPushAgain,
  // Views.
  kDropViews,
  kFindViews,
  kReport,
  // Messages.
  kDumpsParts,
  kLoadsParts,
  kNoteMessage,
  kCount,
};

// Borrowed; lives as long as the process. Under the GIL. Fails with RuntimeError before the package has given
// them.
nb::handle callback(Callback which);

void add_callbacks(nb::module_& module);

}  // namespace tenon::python
