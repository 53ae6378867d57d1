// SPDX-License-Identifier: Apache-2.0
#include "ipc/names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace tenon::impl {
namespace {

constexpr char kRecordMark[8] = {'T', 'N', 'N', 'A', 'M', 'E', '0', '1'};
constexpr const char* kPrefix = "name-";  // so that no name is "." or ".."
constexpr const char* kVariable = "TENON_RUNTIME_DIR";
constexpr off_t kSection = 0, kKept = 1;
constexpr mode_t kDirectoryRights = 0700, kFileRights = 0600;

std::string way_out() { return concat("; set ", kVariable, " to a directory that only this user can use"); }

[[noreturn]] void fail(int error, const std::string& what) {
  os::check_descriptors(error);
  throw_error(Code::kSystem, what, ": ", std::strerror(error), way_out());
}

bool is_directory_of_user(const std::string& path) noexcept {
  struct stat status{};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == os::user();
}

const char* variable(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// A directory of this user, if possible the same one for all of its processes: $XDG_RUNTIME_DIR is usually
// /run/user/UID, so processes without the variable find the same directory. A directory of another user is
// ignored: after `su`, the variable may still name it.
std::string path_of_directory() {
  if (const char* const given = variable(kVariable)) return given;
  if (const char* const runtime = variable("XDG_RUNTIME_DIR")) {
    struct stat status{};
    if (stat(runtime, &status) != 0) {
      throw_error(Code::kSystem, "XDG_RUNTIME_DIR is '", runtime, "', which cannot be used for names of ",
                  "shared memory: ", std::strerror(errno),
                  "; create that directory, unset the variable, or set ", kVariable);
    }
    if (status.st_uid == os::user()) return concat(runtime, "/tenon");
  }
  const std::string runtime = concat("/run/user/", os::user());
  if (is_directory_of_user(runtime)) return runtime + "/tenon";
  struct stat status{};
  const bool has_memory = stat("/dev/shm", &status) == 0 && S_ISDIR(status.st_mode);
  return concat(has_memory ? "/dev/shm" : "/tmp", "/tenon-", os::user());
}

// Gives the user all rights to its own file or directory, which the umask of the process that made it has
// taken. entry: in the directory. True: it was not all of them before.
bool restore_rights(int directory, const char* entry, mode_t rights) noexcept {
  // Such a descriptor needs no right to the file, and a symbolic link is not followed.
  const os::File file(openat(directory, entry, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat status{};
  if (!file || fstat(file.fd(), &status) != 0 || status.st_uid != os::user()) return false;
  if (S_ISDIR(status.st_mode) != (rights == kDirectoryRights) || (status.st_mode & rights) == rights)
    return false;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file.fd());
  return chmod(path, (status.st_mode & 07777) | rights) == 0;
}

// Fails with kSystem. Empty: it does not exist, and make is kNo.
os::File open_directory(std::string* path, NameLock::Make make) {
  *path = path_of_directory();
  const std::string what = concat("the directory '", *path, "' for names of shared memory ");
  if (make == NameLock::Make::kYes && mkdir(path->c_str(), kDirectoryRights) != 0 && errno != EEXIST) {
    fail(errno, what + "cannot be created");
  }
  (void)restore_rights(AT_FDCWD, path->c_str(), kDirectoryRights);
  os::File folder(open(path->c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) {
    const int error = errno;
    if (error == ENOENT && make == NameLock::Make::kNo) return {};
    struct stat status{};
    if (lstat(path->c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
      throw_error(Code::kSystem, what, "is a symbolic link, which is not allowed: remove it", way_out());
    }
    fail(error, what + "cannot be opened");
  }
  struct stat status{};
  if (fstat(folder.fd(), &status) != 0) fail(errno, what + "cannot be examined");
  if (status.st_uid != os::user()) {
    throw_error(Code::kSystem, what, "belongs to user ", status.st_uid, ", and this process to user ",
                os::user(), way_out());
  }
  if ((status.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", status.st_mode & 07777u);
    throw_error(Code::kSystem, what, "has the mode ", mode, ", so other users can use it: run `chmod 700 ",
                *path, "`", way_out());
  }
  return folder;
}

// True: the call has succeeded. The locks belong to open file descriptions, so they also exclude other
// threads.
bool lock(const os::File& file, int command, short type, off_t at, struct flock* found = nullptr) noexcept {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = at;
  range.l_len = 1;
  int result = -1;
  do {
    result = fcntl(file.fd(), command, &range);
  } while (result != 0 && errno == EINTR);
  if (found != nullptr) *found = range;
  return result == 0;
}

// Whether the file is the one that the directory has under the name.
bool is_named(const os::File& folder, const std::string& entry, const os::File& file) noexcept {
  struct stat here{}, named{};
  return fstat(file.fd(), &here) == 0 &&
         fstatat(folder.fd(), entry.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         here.st_dev == named.st_dev && here.st_ino == named.st_ino;
}

os::File open_entry(const os::File& folder, const std::string& entry, int flags) noexcept {
  const auto open = [&] {
    return os::File(openat(folder.fd(), entry.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags,
                           kFileRights));
  };
  os::File file = open();
  if (file && flags != 0) (void)fchmod(file.fd(), kFileRights);  // it may be new
  if (file || errno != EACCES) return file;
  if (restore_rights(folder.fd(), entry.c_str(), kFileRights)) return open();
  errno = EACCES;
  return {};
}

std::optional<NameRecord> record_in(const os::File& file) noexcept {
  NameRecord record;
  if (!os::read_at(file, 0, &record, sizeof record)) return std::nullopt;
  if (std::memcmp(record.mark, kRecordMark, sizeof kRecordMark) != 0) return std::nullopt;
  return record;
}

}  // namespace

NameLock::NameLock(const std::string& name, Make make) : entry_(kPrefix + name) {
  folder_ = open_directory(&path_, make);
  path_ += "/" + entry_;
  if (folder_) lock_entry(make);
}

void NameLock::lock_entry(Make make) {
  while (true) {
    file_ = open_entry(folder_, entry_, make == Make::kYes ? O_CREAT : 0);
    if (!file_) {
      if (errno == ENOENT && make == Make::kNo) return;
      fail(errno, concat("the file '", path_, "' of a name of shared memory cannot be opened"));
    }
    if (!lock(file_, F_OFD_SETLK, F_WRLCK, kSection)) {
      if (errno != EAGAIN && errno != EACCES) {
        fail(errno, concat("the file '", path_, "' of a name of shared memory cannot be locked"));
      }
      file_ = os::File();
      state_ = NameState::kBusy;
      return;
    }
    if (is_named(folder_, entry_, file_)) break;  // else another process removed it before it was locked
  }
  state_ = NameState::kLocked;
}

uint32_t NameLock::holder(const std::string& name) {
  std::string path;
  const os::File folder = open_directory(&path, Make::kNo);
  const os::File file = folder ? open_entry(folder, kPrefix + name, 0) : os::File();
  return file ? os::holder_of_byte(file, kSection) : 0;
}

NameLock::~NameLock() {
  if (state_ != NameState::kLocked) return;
  // While this process has a write lock of byte 1, no process can begin to keep the name.
  if (lock(file_, F_OFD_SETLK, F_WRLCK, kKept)) (void)unlinkat(folder_.fd(), entry_.c_str(), 0);
}

bool NameLock::is_kept() const noexcept {
  struct flock found{};
  return lock(file_, F_OFD_GETLK, F_WRLCK, kKept, &found) && found.l_type != F_UNLCK;
}

std::optional<NameRecord> NameLock::record() const noexcept { return record_in(file_); }

NameHold NameLock::keep(const SegmentId& segment, int fd) {
  // Opened again, as forked children inherit this lock: they must not inherit the lock of byte 0.
  os::File hold = open_entry(folder_, entry_, 0);
  if (!hold) fail(errno, concat("the file '", path_, "' of a name of shared memory cannot be opened"));
  NameRecord record;
  if (const auto before = this->record(); before && before->segment == segment) record = *before;
  std::memcpy(record.mark, kRecordMark, sizeof kRecordMark);
  record.segment = segment;
  const os::Process self = os::this_process();
  const NameUser own{self.pid, fd, self.start, os::pid_namespace()};
  const auto is_free = [&](const NameUser& holder) {
    return holder.pid == 0 || holder.pid == self.pid ||
           (holder.pid_namespace == own.pid_namespace && os::has_ended({holder.pid, holder.start}));
  };
  const auto place = std::find_if(std::begin(record.holders), std::end(record.holders), is_free);
  if (place != std::end(record.holders)) *place = own;
  if (pwrite(file_.fd(), &record, sizeof record, 0) != ssize_t{sizeof record}) {
    fail(errno, concat("the file '", path_, "' of a name of shared memory cannot be written"));
  }
  if (!lock(hold, F_OFD_SETLK, F_RDLCK, kKept)) {
    fail(errno, concat("the file '", path_, "' of a name of shared memory cannot be locked"));
  }
  return std::move(hold).keep();
}

void NameLock::remove() noexcept {
  (void)unlinkat(folder_.fd(), entry_.c_str(), 0);
  state_ = NameState::kAbsent;
  file_ = os::File();
}

bool NameLock::renew() {
  remove();
  lock_entry(Make::kYes);
  return state_ == NameState::kLocked;
}

NameHold keep_name(const std::string& name, const SegmentId& segment) noexcept {
  try {
    std::string path;
    const os::File folder = open_directory(&path, NameLock::Make::kNo);
    if (!folder) return {};
    os::File hold = open_entry(folder, kPrefix + name, 0);
    if (!hold || !lock(hold, F_OFD_SETLK, F_RDLCK, kKept)) return {};
    const std::optional<NameRecord> record = record_in(hold);
    if (!record || record->segment != segment || !is_named(folder, kPrefix + name, hold)) return {};
    return std::move(hold).keep();
  } catch (const std::exception&) {
    return {};
  }
}

void remove_name(const char* name, const SegmentId& segment) noexcept {
  try {
    NameLock lock(name, NameLock::Make::kNo);
    if (lock.state() != NameLock::NameState::kLocked) return;
    if (const auto record = lock.record(); record && record->segment == segment) lock.remove();
  } catch (const std::exception&) {
    // The file stays, as after a kill.
  }
}

size_t remove_names_of_the_dead() noexcept {
  size_t removed = 0;
  try {
    std::string path;
    const os::File folder = open_directory(&path, NameLock::Make::kNo);
    if (!folder) return 0;
    std::vector<std::string> names;
    {
      const int fd = fcntl(folder.fd(), F_DUPFD_CLOEXEC, 0);
      const auto close = [](DIR* open) { closedir(open); };
      const std::unique_ptr<DIR, decltype(close)> entries(fd >= 0 ? fdopendir(fd) : nullptr);
      if (entries == nullptr) {
        const os::File closed(fd);
        return 0;
      }
      while (const dirent* entry = readdir(entries.get())) {
        const std::string text = entry->d_name;
        if (text.rfind(kPrefix, 0) == 0) names.push_back(text.substr(std::strlen(kPrefix)));
      }
    }
    for (const std::string& name : names) {
      const NameLock lock(name, NameLock::Make::kNo);
      removed += lock.state() == NameLock::NameState::kLocked && !lock.is_kept() ? 1 : 0;
    }
  } catch (const std::exception&) {
    // The next process removes the rest.
  }
  return removed;
}

}  // namespace tenon::impl
