// SPDX-License-Identifier: Apache-2.0
//
// The calls of the operating system for memory that processes share: sealed memory files, their size in
// memory, the processes that have them open, and sleeping on words of shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tenon::impl::os {

// An open file. Owns its descriptor.
class File {
 public:
  File() = default;
  explicit File(int fd) noexcept : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File();

  int fd() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Of a call that failed with this error: fails with kSystem if it was for want of descriptors.
void check_descriptors(int error);

// ------------------------------------------------------------------------------------- memory files

// A new memory file of this size (its content does not exist yet), readable by this user alone, closed by
// exec. Fails with kSystem (no descriptor is left: the message says how many there may be), kNoMemory.
File create_memory(const std::string& name, size_t nbytes, bool has_huge_pages);

// From now on the file keeps its size. Fails with kSystem.
void seal(const File& file);
bool is_sealed(const File& file);  // fails with kSystem (this process may not ask)
size_t size_of(const File& file);  // fails with kSystem

// Takes the memory for a range of the file now, so that no later access can fail. Looks before each step at
// what the machine and the control group have left. Fails with kNoMemory, which names the numbers; then the
// range is empty. what: for the message.
void commit(const File& file, size_t offset, size_t nbytes, const std::string& what);

// Gives the memory of a range back; it reads as zero from then on.
void discard(const File& file, size_t offset, size_t nbytes) noexcept;

// Fails with kNoMemory. The addresses are aligned to alignment, a power of two of pages.
std::byte* map(const File& file, size_t offset, size_t nbytes, bool is_writable, size_t alignment);
void unmap(std::byte* address, size_t nbytes) noexcept;
void make_writable(std::byte* address, size_t nbytes);  // fails with kSystem
// Enters the pages of committed memory into this process' table. Best effort.
void populate(std::byte* address, size_t nbytes, bool is_writable) noexcept;
// The pages of memory that is committed later come from this node. Fails with kValue.
void bind_to_node(std::byte* address, size_t nbytes, int node);

// Reads a range of a file into private memory. False: it is not there.
bool read_at(const File& file, size_t offset, void* to, size_t nbytes) noexcept;

// A lock of one byte of a file belongs to one open file description: to its descriptor with the copies of
// this that forks make, and to its mappings. The kernel lets go of it with the last of them: when a process
// ends or becomes another program, that is after the end of its last thread.
void check_byte_locks(const File& file);                       // fails with kSystem (there are none)
bool try_lock_byte(const File& file, uint64_t byte) noexcept;  // false: another description has it
void unlock_byte(const File& file, uint64_t byte) noexcept;
bool is_byte_locked(const File& file, uint64_t byte) noexcept;  // by another description
// A process of this user that has the lock, as /proc tells it: looks at the files of all of them. 0: it does
// not tell.
uint32_t holder_of_byte(const File& file, uint64_t byte) noexcept;
// For a forked child: a new description in place of the one that it shares with its parent, for the
// descriptor and for a mapping. False: it cannot be had, and all is as it was.
bool reopen(const File& file) noexcept;
bool remap(const File& file, size_t offset, std::byte* address, size_t nbytes, bool is_writable) noexcept;

size_t page_nbytes() noexcept;
size_t huge_page_nbytes();

// ---------------------------------------------------------------------------------------- processes

// A process, told apart from another one that gets the same number later.
struct Process {
  uint32_t pid = 0;
  uint64_t start = 0;  // in clock ticks since boot
  friend bool operator==(const Process&, const Process&) = default;
};
Process this_process();                    // asks anew after a fork
uint64_t start_of(uint32_t pid) noexcept;  // 0: there is no such process
std::string command_of(uint32_t pid);      // its name; "" when it is not there
bool is_stopped(uint32_t pid) noexcept;    // by a signal or a debugger
// "process 4711 (python), which is stopped,"; of 0: "another process".
std::string process_text(uint32_t pid);
uint32_t user() noexcept;
// 0: this system has none. Fails with kSystem. if_known: 0 also where it cannot be read.
uint64_t pid_namespace();
uint64_t pid_namespace_if_known() noexcept;
uint64_t boot();  // of this run of this machine: never 0

// A memory file that another process (or this one) has open.
struct Found {
  uint32_t pid;
  int fd;
  std::string name;  // as given to create_memory
};
// Of the processes of this user that can be seen, those with names that begin with prefix.
std::vector<Found> find_memory(const std::string& prefix);
// Opens another process' file anew. Empty: it cannot be opened, or is not this. Fails with kSystem, as
// find_memory does: no descriptor is left.
File open_memory_of(uint32_t pid, int fd, const std::string& name_prefix, bool is_writable = true);

struct FileFacts {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t nbytes = 0;
  uint64_t committed_nbytes = 0;
  bool is_regular = false;
};
bool facts_of(const File& file, FileFacts* facts) noexcept;      // false: they cannot be had
bool facts_of(uint32_t pid, int fd, FileFacts* facts) noexcept;  // of a process' file, without opening it

// ------------------------------------------------------------------------------------------ events

// Of this process, for poll() and its kind; closed by exec. Fails with kSystem.
File create_event();
void signal_event(const File& event) noexcept;  // readable from now on
void clear_event(const File& event) noexcept;   // not any more

// A pipe that carries nothing: has_no_writer() says whether all writers have closed it. False: there is no
// descriptor for it.
bool make_pipe(File* reader, File* writer) noexcept;
bool has_no_writer(const File& reader) noexcept;

// ------------------------------------------------------------------------------------------ sleeping

// A word of shared memory and the value with which one sleeps on it.
struct Sleep {
  const std::atomic<uint32_t>* word;
  uint32_t value;
};
constexpr size_t kMostWords = 128;

// Sleeps while every word has its value, for at most timeout_ns >= 0; at most kMostWords words. Where the
// kernel cannot wait for several, for a millisecond on the first. May return for no reason.
void sleep_on(const Sleep* words, size_t n, int64_t timeout_ns) noexcept;
void wake_all(const std::atomic<uint32_t>& word) noexcept;

}  // namespace tenon::impl::os
