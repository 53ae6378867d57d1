// SPDX-License-Identifier: Apache-2.0
//
// Why a batch could not be delivered, in words.
#pragma once

#include <cstdint>
#include <string>

#include "data/feed_control.h"
#include "data/ticket.h"
#include "data/ticket_failure.h"

namespace tenon::impl {

std::string failure_text(const Ticket& ticket, const TicketFailure& failure, const FeedHead& head);
std::string seconds_text(int64_t ns);  // "1.5 s"

}  // namespace tenon::impl
