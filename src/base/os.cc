// SPDX-License-Identifier: Apache-2.0
#include "base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fork_mark.h"
#include "base/text.h"
#include "base/users.h"

// These are newer than the headers of the oldest supported systems (Linux 5.14, 5.16, 6.3).
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace tenon::impl::os {

void check_descriptors(int error) {
  if (error != EMFILE && error != ENFILE) return;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  throw_error(Code::kSystem, "no file descriptor is left for shared memory: this process may have ",
              limit.rlim_cur, " (ulimit -n); close files, or raise the limit");
}

namespace {

constexpr size_t kStep = size_t{64} << 20;
constexpr const char* kMemoryPrefix = "/memfd:";

std::string system_text(int error) { return std::strerror(error); }

// For a call that failed with this error: fails with kSystem if the system denies the call to this process.
void check_denied(const char* call, int error) {
  if (error != EPERM && error != ENOSYS) return;
  throw_error(Code::kSystem, "shared memory needs the system call ", call,
              ", which fails in this process: ", system_text(error),
              "; allow it (a seccomp filter of the container or sandbox denies it?)");
}

// For a call that failed with this error and could not do what.
[[noreturn]] void fail(const char* call, int error, const char* what, Code code = Code::kSystem) {
  check_descriptors(error);
  check_denied(call, error);
  throw_error(code, what, ": ", system_text(error));
}

std::string megabytes(uint64_t nbytes) {
  return concat(nbytes >> 20, ".", (nbytes % (1 << 20)) * 10 >> 20, " MiB");
}

// The first number in a file, if there is one.
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// "key 123" or "key: 123 kB" in a file.
std::optional<uint64_t> number_behind(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t number = 0;
    if (words >> name >> number && (name == key || name == key + ":")) return number;
  }
  return std::nullopt;
}

// The memory that can still be committed, and the limit that determines it.
struct Headroom {
  uint64_t nbytes = UINT64_MAX;
  std::string limit = "no limit is known";
  void lower(uint64_t to, std::string because) {
    if (to >= nbytes) return;
    nbytes = to;
    limit = std::move(because);
  }
};

// Applies the limits of a control group and of all groups above it. Page cache that can be dropped counts as
// free.
void look_at_groups(Headroom* room, const std::string& root, std::string path, const char* limit_file,
                    const char* usage_file) {
  while (true) {
    const std::string group = root + path;
    const auto limit = number_in(concat(group, "/", limit_file));
    const auto used = number_in(concat(group, "/", usage_file));
    if (limit && used && *limit < (uint64_t{1} << 60)) {
      const uint64_t cache = number_behind(concat(group, "/memory.stat"), "inactive_file").value_or(0);
      const uint64_t taken = *used - std::min(cache, *used);
      room->lower(*limit - std::min(taken, *limit),
                  concat("the control group '", path.empty() ? "/" : path, "' has a limit of ",
                         megabytes(*limit), " and uses ", megabytes(taken)));
    }
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return;
    path.resize(slash);
  }
}

Headroom headroom() {
  Headroom room;
  if (const auto available = number_behind("/proc/meminfo", "MemAvailable")) {
    room.lower(*available << 10, concat("the machine has ", megabytes(*available << 10), " available"));
  }
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      look_at_groups(&room, "/sys/fs/cgroup", path, "memory.max", "memory.current");
    } else if (controllers.find("memory") != std::string::npos) {
      look_at_groups(&room, "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes");
    }
  }
  return room;
}

[[noreturn]] void throw_no_memory(const std::string& what, const Headroom& room) {
  throw_error(Code::kNoMemory, "there is no memory for ", what, ": ", room.limit,
              "; free some, or make less at a time");
}

std::string link_of(const std::string& path) {
  char target[512];
  const ssize_t n = readlink(path.c_str(), target, sizeof target);
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : std::string();
}

// NAME, if the path links to "/memfd:NAME (deleted)".
std::optional<std::string> memory_name(const std::string& path) {
  const std::string link = link_of(path);
  if (link.rfind(kMemoryPrefix, 0) != 0) return std::nullopt;
  std::string name = link.substr(std::strlen(kMemoryPrefix));
  const size_t end = name.rfind(" (deleted)");
  if (end != std::string::npos) name.resize(end);
  return name;
}

bool is_number(const char* text) noexcept {
  return *text != '\0' && std::strspn(text, "0123456789") == std::strlen(text);
}

template <class Visit>
void visit_numbers(const std::string& folder, Visit visit) {
  struct Close {
    void operator()(DIR* entries) const noexcept { closedir(entries); }
  };
  const std::unique_ptr<DIR, Close> entries(opendir(folder.c_str()));
  if (entries == nullptr) return check_descriptors(errno);
  while (const dirent* entry = readdir(entries.get())) {
    if (is_number(entry->d_name)) visit(static_cast<uint32_t>(std::strtoul(entry->d_name, nullptr, 10)));
  }
}

// Calls visit(pid, fd, path) for each descriptor of each process of this user.
template <class Visit>
void visit_descriptors(Visit visit) {
  visit_numbers("/proc", [&](uint32_t pid) {
    const std::string process = concat("/proc/", pid);
    struct stat status{};
    if (stat(process.c_str(), &status) != 0 || status.st_uid != user()) return;
    visit_numbers(process + "/fd", [&](uint32_t fd) { visit(pid, fd, concat(process, "/fd/", fd)); });
  });
}

}  // namespace

const char* const kLostText =
    "other code of this process has closed the file descriptor of that memory, as os.closerange() and "
    "daemons "
    "do: close descriptors first, and make shared memory after that";

File::~File() {
  if (const int own = fd(); own >= 0) close(own);
}

void File::swap(File& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
}

int File::release() noexcept {
  const int own = fd();
  fd_ = -1;
  return own;
}

File File::keep() && noexcept {
  struct stat status{};
  if (fd_ >= 0 && fstat(fd_, &status) == 0) {
    device_ = static_cast<uint64_t>(status.st_dev);
    inode_ = static_cast<uint64_t>(status.st_ino);
  }
  return std::move(*this);
}

bool File::has_inode() const noexcept {
  struct stat status{};
  return fstat(fd_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

File create_memory(const std::string& name, size_t nbytes, bool has_huge_pages) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (has_huge_pages ? MFD_HUGETLB : 0);
  int fd = memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name.c_str(), flags);
  if (fd < 0) {
    fail("memfd_create", errno, "a memory file cannot be made",
         errno == ENOMEM ? Code::kNoMemory : Code::kSystem);
  }
  File file = File(fd).keep();
  if (fchmod(fd, 0600) != 0 || ftruncate(fd, static_cast<off_t>(nbytes)) != 0) {
    throw_error(Code::kNoMemory, "a memory file cannot have ", nbytes, " bytes: ", system_text(errno));
  }
  return file;
}

void seal(const File& file) {
  if (fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail("fcntl(F_ADD_SEALS)", errno, "a memory file cannot be sealed");
  }
}

bool is_sealed(const File& file) {
  const int seals = fcntl(file.fd(), F_GET_SEALS);
  if (seals < 0) check_denied("fcntl(F_GET_SEALS)", errno);
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  return seals >= 0 && (seals & kWanted) == kWanted;
}

size_t size_of(const File& file) {
  struct stat status{};
  if (fstat(file.fd(), &status) != 0) throw_error(Code::kSystem, "fstat: ", system_text(errno));
  return static_cast<size_t>(status.st_size);
}

namespace {

bool has_room(const Headroom& room, uint64_t nbytes) {
  constexpr uint64_t kMargin = uint64_t{32} << 20;  // left for the kernel and for other processes
  return room.nbytes >= nbytes + std::min(kMargin, nbytes);
}

// False: errno says why.
bool allocate(const File& file, size_t offset, size_t nbytes) noexcept {
  int result = 0;
  do {
    result = fallocate(file.fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(nbytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

void check_room(size_t nbytes, const std::string& what) {
  const Headroom room = headroom();
  if (!has_room(room, nbytes)) throw_no_memory(what, room);
}

void commit(const File& file, size_t offset, size_t nbytes, const std::string& what) {
  if (file.is_lost()) throw_error(Code::kSystem, "there is no memory for ", what, ": ", kLostText);
  size_t done = 0;
  int error = 0;
  Headroom room;
  while (done < nbytes) {
    const size_t step = std::min(kStep, nbytes - done);
    room = headroom();
    const uint64_t rest = done == 0 ? nbytes : step;  // first all of it, so that little is committed in vain
    if (!has_room(room, rest)) break;
    if (!allocate(file, offset + done, step)) {
      error = errno;
      room.limit = concat("the system says '", system_text(error), "', and ", room.limit);
      break;
    }
    done += step;
  }
  if (done == nbytes) return;
  if (done != 0) (void)punch(file, offset, done);
  check_denied("fallocate", error);
  throw_no_memory(what, room);
}

bool try_commit(const File& file, size_t offset, size_t nbytes) noexcept {
  return nbytes <= kStep && allocate(file, offset, nbytes);
}

bool discard(std::byte* address, size_t nbytes) noexcept {
  return madvise(address, nbytes, MADV_REMOVE) == 0;
}

bool punch(const File& file, size_t offset, size_t nbytes) noexcept {
  return !file.is_lost() && fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                      static_cast<off_t>(offset), static_cast<off_t>(nbytes)) == 0;
}

// Without MAP_NORESERVE, the system would set huge pages aside for the parts of the file that have no memory.
std::byte* map(const File& file, size_t offset, size_t nbytes, bool is_writable, size_t alignment,
               bool is_sparse) {
  // Reserves more addresses than needed, then maps the file at the first aligned address.
  const size_t reserved = nbytes + alignment;
  void* const room = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    throw_error(Code::kNoMemory, "there are no addresses for ", nbytes,
                " bytes of shared memory: ", system_text(errno), " (ulimit -v?)");
  }
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t at = round_up(begin, alignment);
  void* mapped = reinterpret_cast<void*>(at);
  if (!remap(file, offset, static_cast<std::byte*>(mapped), nbytes, is_writable, is_sparse))
    mapped = MAP_FAILED;
  const int error = errno;
  const auto unmap_range = [](uintptr_t from, uintptr_t to) {
    if (to > from) munmap(reinterpret_cast<void*>(from), to - from);
  };
  if (mapped == MAP_FAILED) {
    unmap_range(begin, begin + reserved);
    throw_error(Code::kNoMemory, nbytes, " bytes of shared memory cannot be mapped: ", system_text(error));
  }
  unmap_range(begin, at);
  unmap_range(at + round_up(nbytes, page_nbytes()), begin + reserved);
  return static_cast<std::byte*>(mapped);
}

void unmap(std::byte* address, size_t nbytes) noexcept { munmap(address, nbytes); }

void make_writable(std::byte* address, size_t nbytes) {
  if (mprotect(address, nbytes, PROT_READ | PROT_WRITE) != 0) {
    throw_error(Code::kSystem, "shared memory cannot be made writable: ", system_text(errno));
  }
}

namespace {

struct flock lock_of_byte(short kind, uint64_t byte) noexcept {
  struct flock lock{};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

}  // namespace

void check_byte_locks(const File& file) {
  struct flock lock = lock_of_byte(F_WRLCK, 0);
  if (fcntl(file.fd(), F_OFD_GETLK, &lock) == 0) return;
  fail(
      "fcntl(F_OFD_SETLK)", errno,
      "shared memory needs locks of open files (fcntl F_OFD_SETLK), with which others see that a process has "
      "ended");
}

bool try_lock_byte(const File& file, uint64_t byte) noexcept {
  const struct flock lock = lock_of_byte(F_WRLCK, byte);
  return fcntl(file.fd(), F_OFD_SETLK, &lock) == 0;
}

void unlock_byte(const File& file, uint64_t byte) noexcept {
  const struct flock lock = lock_of_byte(F_UNLCK, byte);
  (void)fcntl(file.fd(), F_OFD_SETLK, &lock);
}

bool is_byte_locked(const File& file, uint64_t byte) noexcept {
  struct flock lock = lock_of_byte(F_WRLCK, byte);
  return fcntl(file.fd(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

File open_again(const File& file, bool is_writable) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file.fd());
  return File(file.fd() >= 0 ? open(path, (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC) : -1);
}

bool has_proc() noexcept { return access("/proc/self/fd", X_OK) == 0; }

bool reopen(const File& file) noexcept { return replace(file, open_again(file, true)); }

bool replace(const File& file, const File& fresh) noexcept {
  const int fd = file.fd(), from = fresh.fd();
  return fd >= 0 && from >= 0 && dup3(from, fd, O_CLOEXEC) >= 0;
}

// After mlockall(MCL_FUTURE), the system would commit all pages of an accessible mapping at once.
bool remap(const File& file, size_t offset, std::byte* address, size_t nbytes, bool is_writable,
           bool is_sparse) noexcept {
  const int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const auto map_with = [&](int access) {
    return mmap(address, nbytes, access, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file.fd(),
                static_cast<off_t>(offset)) != MAP_FAILED;
  };
  if (is_sparse && map_with(PROT_NONE)) {
    (void)madvise(address, nbytes, MADV_DONTDUMP);
    if (munlock(address, nbytes) == 0 && mprotect(address, nbytes, protection) == 0) return true;
  }
  return map_with(protection);
}

bool populate(std::byte* address, size_t nbytes, bool is_writable) noexcept {
  return madvise(address, nbytes, is_writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0;
}

void bind_to_node(std::byte* address, size_t nbytes, int node) {
  constexpr int kBind = 2;  // MPOL_BIND
  unsigned long nodes[16] = {};
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  if (node < 0 || node >= 16 * kBits) throw_error(Code::kValue, "there is no NUMA node ", node);
  nodes[node / kBits] = 1UL << (node % kBits);
  if (syscall(SYS_mbind, address, nbytes, kBind, nodes, 16UL * kBits, 0) != 0) {
    throw_error(Code::kValue, "memory cannot be bound to NUMA node ", node, ": ", system_text(errno));
  }
}

bool read_at(const File& file, size_t offset, void* to, size_t nbytes) noexcept {
  size_t done = 0;
  while (done < nbytes) {
    const ssize_t n =
        pread(file.fd(), static_cast<char*>(to) + done, nbytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

size_t page_nbytes() noexcept {
  static const auto nbytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return nbytes;
}

size_t huge_page_nbytes() {
  static const size_t nbytes = number_behind("/proc/meminfo", "Hugepagesize").value_or(2048) << 10;
  return nbytes;
}

namespace {

struct Stat {
  char state;
  uint64_t start;
  bool has_ended;
};

// Empty: there is no such process. Does not allocate, because a forked child calls it when memory may be
// short.
std::optional<Stat> stat_of(uint32_t pid) noexcept {
  // After the name; the state is the first of them.
  constexpr int kFieldsToThreads = 17, kFieldsToStart = 20;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
  const File file(open(path, O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t n = file.fd() >= 0 ? read(file.fd(), text, sizeof text - 1) : 0;
  if (n <= 0) return std::nullopt;
  text[n] = '\0';
  const char* at = std::strrchr(text, ')');
  const char *state = nullptr, *threads = nullptr;
  for (int field = 0; field < kFieldsToStart; ++field) {
    at = at != nullptr ? std::strchr(at, ' ') : nullptr;
    if (at == nullptr) return std::nullopt;
    ++at;
    if (field == 0) state = at;
    if (field == kFieldsToThreads) threads = at;
  }
  // The state is that of the first thread, which may end before others.
  const bool is_gone = *state == 'X' || (*state == 'Z' && std::strtoull(threads, nullptr, 10) <= 1);
  return Stat{*state, std::strtoull(at, nullptr, 10), is_gone};
}

}  // namespace

uint64_t start_of(uint32_t pid) noexcept {
  const std::optional<Stat> stat = stat_of(pid);
  return stat && !stat->has_ended ? stat->start : 0;
}

bool is_stopped(uint32_t pid) noexcept {
  const std::optional<Stat> stat = stat_of(pid);
  return stat && (stat->state == 'T' || stat->state == 't');
}

Process process_of(uint32_t pid) {
  errno = 0;
  const uint64_t start = start_of(pid);
  if (start == 0) check_descriptors(errno);
  return {pid, start};
}

bool has_ended(const Process& process) noexcept {
  errno = 0;
  const std::optional<Stat> stat = stat_of(process.pid);
  if (!stat) return errno != EMFILE && errno != ENFILE;
  const bool is_another = process.start != 0 && stat->start != process.start;
  return stat->has_ended || is_another;
}

Process this_process() {
  struct KnownProcess {
    ForkMark mark;
    Process process;
  };
  thread_local std::optional<KnownProcess> known;
  if (!known || known->mark.is_child()) {
    known.emplace(KnownProcess{ForkMark(), process_of(static_cast<uint32_t>(getpid()))});
  }
  return known->process;
}

std::string command_of(uint32_t pid) {
  std::ifstream file(concat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return readable(name);  // the kernel cuts it after 15 bytes
}

std::string process_text(uint32_t pid) {
  if (pid == 0) return "another process";
  const std::string command = command_of(pid);
  return concat("process ", pid, command.empty() ? "" : concat(" (", command, ")"),
                is_stopped(pid) ? ", which is stopped," : "");
}

uint32_t user() noexcept { return geteuid(); }

uint64_t pid_namespace_if_known() noexcept {
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
}

uint64_t pid_namespace() {
  errno = 0;
  const uint64_t number = pid_namespace_if_known();
  if (number == 0 && errno != ENOENT) {
    throw_error(Code::kSystem, "/proc/self/ns/pid cannot be looked at: ", system_text(errno));
  }
  return number;
}

uint64_t boot() {
  static const uint64_t number = [] {
    const File file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    if (!file) check_descriptors(errno);  // then the next call tries again
    char text[64];
    const ssize_t n = file ? read(file.fd(), text, sizeof text) : 0;
    if (n <= 0) return uint64_t{0};
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (ssize_t i = 0; i < n && text[i] != '\n'; ++i) {
      hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x100000001b3;
    }
    return hash | 1;
  }();
  return number;
}

std::vector<Found> find_memory(const std::string& prefix) {
  std::vector<Found> found;
  visit_descriptors([&](uint32_t pid, uint32_t fd, const std::string& path) {
    const auto name = memory_name(path);
    if (name && name->rfind(prefix, 0) == 0) found.push_back({pid, static_cast<int>(fd), *name});
  });
  return found;
}

namespace {

// The file /proc/PID/fdinfo/FD has a line for a lock that contains the byte:
// "lock:	1: OFDLCK ADVISORY  WRITE -1 00:01:25 5 5".
bool has_locked(const std::string& about, uint64_t byte) {
  std::ifstream file(about);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("lock:", 0) != 0 || line.find("OFDLCK") == std::string::npos) continue;
    if (line.find("WRITE") == std::string::npos) continue;
    std::istringstream words(line);
    std::vector<std::string> parts;
    for (std::string word; words >> word;) parts.push_back(word);
    if (parts.size() < 2) continue;
    const uint64_t begin = std::strtoull(parts[parts.size() - 2].c_str(), nullptr, 10);
    const uint64_t last = std::strtoull(parts.back().c_str(), nullptr, 10);  // 0 for "EOF"
    if (begin <= byte && (byte <= last || parts.back() == "EOF")) return true;
  }
  return false;
}

}  // namespace

uint32_t holder_of_byte(const File& file, uint64_t byte) noexcept {
  uint32_t holder = 0;
  try {
    const std::string wanted = link_of(concat("/proc/self/fd/", file.fd()));
    if (wanted.empty()) return 0;
    visit_descriptors([&](uint32_t pid, uint32_t fd, const std::string& path) {
      if (holder != 0 || link_of(path) != wanted) return;
      if (has_locked(concat("/proc/", pid, "/fdinfo/", fd), byte)) holder = pid;
    });
  } catch (const std::exception&) {
    return 0;
  }
  return holder;
}

File open_memory_of(uint32_t pid, int fd, const std::string& name_prefix, bool is_writable) {
  const std::string path = concat("/proc/", pid, "/fd/", fd);
  const auto name = memory_name(path);
  if (!name || name->rfind(name_prefix, 0) != 0) return {};
  const int opened = open(path.c_str(), (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) {
    check_descriptors(errno);
    return {};
  }
  File file = File(opened).keep();
  // A process of root can open the files of all users, who must not choose what it reads.
  if (!is_of_user(file, user()) && (is_writable || !is_given_to_own_group(file))) return {};
  // Between the two calls the process may have ended, and its pid and descriptor may be reused.
  const auto same = memory_name(concat("/proc/self/fd/", opened));
  return same && *same == *name ? std::move(file) : File();
}

std::string why_hidden(const Process& process, int fd) {
  if (!has_proc()) return "there is no /proc here, through which a process opens the memory of another one";
  if (has_ended(process)) return "";
  const std::string path = concat("/proc/", process.pid, "/fd/", fd);
  char link[1];
  if (readlink(path.c_str(), link, sizeof link) >= 0 || (errno != EACCES && errno != EPERM)) return "";
  return concat("process ", process.pid,
                " has it, but the system does not let this process open its files: it is of another user "
                "namespace (another container?), or is not dumpable, as after a change of its user");
}

namespace {

FileFacts facts_in(const struct stat& status) noexcept {
  return {static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino),
          static_cast<uint64_t>(status.st_size), static_cast<uint64_t>(status.st_blocks) * 512,
          S_ISREG(status.st_mode)};
}

}  // namespace

bool facts_of(const File& file, FileFacts* facts) noexcept {
  struct stat status{};
  if (fstat(file.fd(), &status) != 0) return false;
  *facts = facts_in(status);
  return true;
}

bool is_same_file(const File& one, const File& other) noexcept {
  FileFacts first, second;
  return facts_of(one, &first) && facts_of(other, &second) && first.device == second.device &&
         first.inode == second.inode;
}

uint32_t owner_of(const File& file) {
  struct stat status{};
  if (fstat(file.fd(), &status) != 0) throw_error(Code::kSystem, "fstat: ", system_text(errno));
  return status.st_uid;
}

bool is_of_user(const File& file, uint32_t user) noexcept {
  struct stat status{};
  return fstat(file.fd(), &status) == 0 && status.st_uid == user;
}

bool facts_of(uint32_t pid, int fd, FileFacts* facts) noexcept {
  struct stat status{};
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%d", pid, fd);
  if (stat(path, &status) != 0) return false;
  *facts = facts_in(status);
  return true;
}

File create_event() {
  File event = File(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)).keep();
  if (!event) fail("eventfd", errno, "an event descriptor cannot be created");
  return event;
}

void signal_event(const File& event) noexcept {
  const uint64_t one = 1;
  (void)!write(event.fd(), &one, sizeof one);  // if the counter is full, it is readable already
}

void clear_event(const File& event) noexcept {
  uint64_t count = 0;
  (void)!read(event.fd(), &count, sizeof count);
}

bool make_pipe(File* reader, File* writer) noexcept {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  *reader = File(ends[0]).keep();
  *writer = File(ends[1]).keep();
  return true;
}

bool has_no_writer(const File& reader) noexcept {
  pollfd file{reader.fd(), POLLIN, 0};
  return poll(&file, 1, 0) == 1 && (file.revents & POLLHUP) != 0;
}

void sleep_on(const Sleep* words, size_t n, int64_t timeout_ns) noexcept {
  struct Waited {  // struct futex_waitv
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
  };
  constexpr uint32_t kWord32 = 2;  // FUTEX_32; shared between processes
  static std::atomic<bool> has_waitv{true};
  if (n > 1 && has_waitv.load(std::memory_order_relaxed)) {
    Waited waited[kMostWords];
    n = std::min(n, kMostWords);
    for (size_t i = 0; i < n; ++i) {
      waited[i] = {words[i].value, reinterpret_cast<uint64_t>(words[i].word), kWord32, 0};
    }
    const timespec time = timespec_of(now_ns() + timeout_ns);
    const bool is_done = syscall(SYS_futex_waitv, waited, n, 0, &time, CLOCK_MONOTONIC) >= 0;
    if (is_done || (errno != ENOSYS && errno != EPERM)) return;  // EPERM: a container's filter
    has_waitv.store(false, std::memory_order_relaxed);
  }
  if (n > 1) timeout_ns = std::min<int64_t>(timeout_ns, 1'000'000);
  const timespec time = timespec_of(timeout_ns);
  (void)syscall(SYS_futex, words[0].word, FUTEX_WAIT, words[0].value, &time, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word) noexcept {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tenon::impl::os
