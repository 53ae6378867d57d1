// SPDX-License-Identifier: Apache-2.0
//
// Why a batch could not be delivered, in words, and as the C ABI reports it.
#pragma once

#include <cstdint>
#include <string>

#include "data/feed_control.h"
#include "data/ticket.h"
#include "data/ticket_failure.h"
#include "tenon/feed.h"

namespace tenon::impl {

std::string failure_text(const Ticket& ticket, const TicketFailure& failure, const FeedHead& head);
// struct_size is 0.
tenon_feed_failure failure_record(const Ticket& ticket, const TicketFailure& failure) noexcept;
std::string seconds_text(int64_t ns);  // "1.5 s"

}  // namespace tenon::impl
