// SPDX-License-Identifier: Apache-2.0
#include "data/failure_text.h"

#include <signal.h>
#include <cstring>

#include <cstdio>

#include "base/clock.h"
#include "base/error.h"
#include "data/generator_call.h"
#include "data/tickets.h"

namespace tenon::impl {
namespace {

// As sigabbrev_np, which glibc before 2.32 does not have. "?" for signals that end no program.
const char* signal_name(int32_t signal) noexcept {
  switch (signal) {
    case SIGABRT: return "ABRT";
    case SIGALRM: return "ALRM";
    case SIGBUS: return "BUS";
    case SIGFPE: return "FPE";
    case SIGHUP: return "HUP";
    case SIGILL: return "ILL";
    case SIGINT: return "INT";
    case SIGIO: return "IO";
    case SIGKILL: return "KILL";
    case SIGPIPE: return "PIPE";
    case SIGPROF: return "PROF";
    case SIGPWR: return "PWR";
    case SIGQUIT: return "QUIT";
    case SIGSEGV: return "SEGV";
    case SIGSTKFLT: return "STKFLT";
    case SIGSYS: return "SYS";
    case SIGTERM: return "TERM";
    case SIGTRAP: return "TRAP";
    case SIGUSR1: return "USR1";
    case SIGUSR2: return "USR2";
    case SIGVTALRM: return "VTALRM";
    case SIGXCPU: return "XCPU";
    case SIGXFSZ: return "XFSZ";
    default: return "?";
  }
}

}  // namespace

std::string seconds_text(int64_t ns) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f s", static_cast<double>(ns) / kSecond);
  return buffer;
}

std::string failure_text(const Ticket& ticket, const TicketFailure& f, const FeedHead& head) {
  const std::string worker = f.pid != 0 ? concat("worker process ", f.worker, " (", f.pid, ")") : "";
  std::string text = concat("generator '", head.generator, "' ");
  switch (f.kind) {
    case TENON_DIED:
      text = concat(f.pid != 0 ? worker : concat("worker process ", f.worker), " ");
      if (f.exit_signal == 0 && f.exit_code < 0 && f.pid != 0) {
        text += concat("ended while generator '", head.generator, "' filled ", ticket_text(ticket),
                       "; how is not known, because this program ignores SIGCHLD or waits for any child");
        break;
      }
      if (f.exit_signal == 0 && f.exit_code < 0) {
        text += concat("did not run, so generator '", head.generator, "' did not fill ", ticket_text(ticket));
        break;
      }
      text += f.exit_signal != 0
                  ? concat("was killed by signal ", f.exit_signal, " (", signal_name(f.exit_signal),
                           f.exit_signal == SIGKILL ? "; out of memory?" : "", ")")
                  : concat("ended with exit code ", f.exit_code);
      text += concat(" while generator '", head.generator, "' filled ", ticket_text(ticket));
      break;
    case TENON_HUNG:
      if (!f.was_begun) {
        text += concat("was not called for ", ticket_text(ticket), ": an earlier call takes longer than ",
                       seconds_text(head.fill_timeout_ns));
        break;
      }
      text += concat("took longer than ", seconds_text(head.fill_timeout_ns), " for ", ticket_text(ticket),
                     worker.empty() ? "" : concat(" in ", worker, ", which was killed"));
      break;
    default:
      if (!f.was_begun) {
        text += concat("was not called for ", ticket_text(ticket));
        break;
      }
      text += concat(failed_text(f.code, f.message), " at ", ticket_text(ticket),
                     worker.empty() ? "" : concat(" in ", worker));
  }
  return concat(text, f.message[0] == '\0' ? "" : ": ", f.message);
}

tenon_feed_failure failure_record(const Ticket& ticket, const TicketFailure& f) noexcept {
  tenon_feed_failure record{};
  record.kind = f.kind;
  record.code = f.code;
  record.worker = f.worker;
  record.pid = f.pid;
  record.exit_signal = f.exit_signal;
  record.exit_code = f.exit_code;
  record.epoch = ticket.epoch;
  record.index = ticket.index;
  static_assert(sizeof record.text == sizeof f.message);
  std::memcpy(record.text, f.message, sizeof record.text);
  return record;
}

}  // namespace tenon::impl
