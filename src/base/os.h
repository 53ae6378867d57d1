// SPDX-License-Identifier: Apache-2.0
//
// The system calls for memory that processes share: sealed memory files, their size in memory, the processes
// that have them open, and sleeping on words of shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tenon::impl::os {

// An open file. Owns its descriptor.
class File {
 public:
  File() = default;
  explicit File(int fd) noexcept : fd_(fd) {}
  File(File&& other) noexcept { swap(other); }
  File& operator=(File&& other) noexcept {
    swap(other);
    return *this;
  }
  ~File();

  // For a file that is open while other code of the program runs. That code may close descriptors that are
  // not its own, as daemons do, and then open a file of its own, which gets the same number. After keep(),
  // each use of the descriptor, and its close, first compares device and inode with those of now. Returns the
  // file. All event descriptors have one inode, so they are not told apart.
  File keep() && noexcept;
  // -1: there is no file, or other code has closed it.
  int fd() const noexcept { return inode_ == 0 || has_inode() ? fd_ : -1; }
  // Other code has closed it.
  bool is_lost() const noexcept { return fd_ >= 0 && fd() < 0; }
  int release() noexcept;  // the caller closes it
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  void swap(File& other) noexcept;
  bool has_inode() const noexcept;

  int fd_ = -1;
  uint64_t device_ = 0, inode_ = 0;  // of a file that is kept; else 0
};

// For a call that failed with this error: fails with kSystem if no file descriptor was left.
void check_descriptors(int error);
// Why a kept file is lost, and what to do: for the ends of messages.
extern const char* const kLostText;

// ------------------------------------------------------------------------------------- memory files

// Creates a memory file of this size without committing memory. Only this user can open it; exec closes it.
// Fails with kSystem (no descriptor is left; the message names the limit), kNoMemory.
File create_memory(const std::string& name, size_t nbytes, bool has_huge_pages);

// Fixes the size of the file. Fails with kSystem.
void seal(const File& file);
bool is_sealed(const File& file);  // fails with kSystem (the call is denied)
size_t size_of(const File& file);  // fails with kSystem

// Commits the memory for a range of the file, so that no later access can fail. Checks before each step how
// much the machine and the control group have left. Fails with kNoMemory, and names the numbers, and with
// kSystem (the file is lost); the range is empty then. what: for the message.
void commit(const File& file, size_t offset, size_t nbytes, const std::string& what);

// The same without the check, a message or the heap, so that it does not wait for a fork beside it. False:
// the range is as it was. It is larger than commit() takes without a further check, or there is no memory.
bool try_commit(const File& file, size_t offset, size_t nbytes) noexcept;

// Whether so much can be committed now, as commit() checks before. Fails with kNoMemory.
void check_room(size_t nbytes, const std::string& what);

// Frees the memory of a range that is mapped here for writing, which reads as zero from then on. Needs no
// descriptor. False: the range is as it was (the pages are locked, or the system cannot do it).
bool discard(std::byte* address, size_t nbytes) noexcept;

// The same for a range of a file. False: the system cannot do it, or the file is lost.
bool punch(const File& file, size_t offset, size_t nbytes) noexcept;

// Fails with kNoMemory. The addresses are aligned to alignment, a power of two of pages.
// is_sparse: neither mlockall() nor a core dump of this process commits the pages that have no memory. The
// dump does not contain the mapping.
std::byte* map(const File& file, size_t offset, size_t nbytes, bool is_writable, size_t alignment,
               bool is_sparse = false);
void unmap(std::byte* address, size_t nbytes) noexcept;
void make_writable(std::byte* address, size_t nbytes);  // fails with kSystem
// Enters the pages into the page table of this process, and commits those for writing that have no memory.
// Needs no descriptor. False: the system cannot do it for all of them.
bool populate(std::byte* address, size_t nbytes, bool is_writable) noexcept;
// Memory that is committed later comes from this NUMA node. Fails with kValue.
void bind_to_node(std::byte* address, size_t nbytes, int node);

// The same open file, with a descriptor of its own, which exec closes. Fails with kSystem (no descriptor is
// left, or this is none).
File copy_of(int fd);

// Maps a range of a memory file so that a page becomes a copy of this process when it writes there. Commits
// nothing. The mapping does not keep the locks of the file's description. Null: the system refuses it, or the
// file has huge pages, of which few may be left for the copies.
std::byte* map_private(const File& file, size_t offset, size_t nbytes) noexcept;
// Of whole pages of such a mapping: this process has written to the first one (true: or this is not known).
bool is_written(const std::byte* address) noexcept;
// Frees the pages that were written. Afterwards, all pages are those of the file. False: the system cannot.
bool discard_written(std::byte* address, size_t nbytes) noexcept;
// Copies the pages, as writes of the same bytes would. Beside other writers; best effort if memory is short.
void write_pages(std::byte* address, size_t nbytes) noexcept;

// Reads a range of a file into private memory. False: the file is shorter.
bool read_at(const File& file, size_t offset, void* to, size_t nbytes) noexcept;

// The lock of one byte of a file belongs to an open file description. The descriptor, its copies in forked
// children and the mappings share that description; the kernel releases the lock with the last of them. If a
// process ends or calls exec, that is after the end of its last thread.
void check_byte_locks(const File& file);                       // fails with kSystem (there are none)
bool try_lock_byte(const File& file, uint64_t byte) noexcept;  // false: another description has it
void unlock_byte(const File& file, uint64_t byte) noexcept;
bool is_byte_locked(const File& file, uint64_t byte) noexcept;  // by another description
// A process of this user that has the lock. Reads the entries of all processes of the user in /proc. 0: not
// known.
uint32_t holder_of_byte(const File& file, uint64_t byte) noexcept;
// The same file with an open file description of its own. Empty: the system refuses it, or /proc is missing.
File open_again(const File& file, bool is_writable) noexcept;
bool has_huge_pages(const File& file) noexcept;  // or it is not known
bool has_proc() noexcept;                        // else no file can be opened again
// For a forked child: replace the description that it shares with its parent by a new one, for the descriptor
// and for a mapping. False: nothing has changed.
bool reopen(const File& file) noexcept;
bool replace(const File& file, const File& fresh) noexcept;  // fresh: the new description of the same file
bool remap(const File& file, size_t offset, std::byte* address, size_t nbytes, bool is_writable,
           bool is_sparse = false) noexcept;

size_t page_nbytes() noexcept;
size_t huge_page_nbytes();

// ---------------------------------------------------------------------------------------- processes

// A process. The start distinguishes it from a later process with the same pid.
struct Process {
  uint32_t pid = 0;
  uint64_t start = 0;  // in clock ticks since boot
  friend bool operator==(const Process&, const Process&) = default;
};
// Fail with kSystem where no descriptor is left to look.
Process this_process();            // reads it again after a fork
Process process_of(uint32_t pid);  // start 0: there is no such process
// False also where no descriptor is left to look. A start of 0 is not known: then another process with the
// number counts, too.
bool has_ended(const Process& process) noexcept;
uint64_t start_of(uint32_t pid) noexcept;  // 0: there is no such process
std::string command_of(uint32_t pid);      // its name; "": there is no such process
bool is_stopped(uint32_t pid) noexcept;    // by a signal or a debugger
// "process 4711 (python), which is stopped,"; for pid 0 "another process".
std::string process_text(uint32_t pid);
uint32_t user() noexcept;
// 0: this system has no pid namespaces. Fails with kSystem. if_known: 0 also if it cannot be read.
uint64_t pid_namespace();
uint64_t pid_namespace_if_known() noexcept;
// Identifies this boot of the machine. 0: not known, because /proc is missing. Fails with kSystem.
uint64_t boot();

// A memory file that another process (or this one) has open.
struct Found {
  uint32_t pid;
  int fd;
  std::string name;  // as given to create_memory
};
// The memory files of the visible processes of this user whose names begin with prefix.
std::vector<Found> find_memory(const std::string& prefix);
// Opens the file of a process again. Empty: it cannot be opened, or is another file by now, or is another
// user's. For reading, it may be one that its user has given to a group of this process. Both functions fail
// with kSystem if no descriptor is left.
File open_memory_of(uint32_t pid, int fd, const std::string& name_prefix, bool is_writable = true);
// Why this process could not open a file that the process may have: for the ends of messages. "": it can look
// at the process, or the process has ended.
std::string why_hidden(const Process& process, int fd);

struct FileFacts {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t nbytes = 0;
  uint64_t committed_nbytes = 0;
  bool is_regular = false;
};
bool facts_of(const File& file, FileFacts* facts) noexcept;  // false: not available
bool is_same_file(const File& one, const File& other) noexcept;
uint32_t owner_of(const File& file);                             // fails with kSystem
bool is_of_user(const File& file, uint32_t user) noexcept;       // owns it
bool facts_of(uint32_t pid, int fd, FileFacts* facts) noexcept;  // of a file of a process, without opening it

// ------------------------------------------------------------------------------------------ events

// Creates an event descriptor of this process, for poll() and select(). exec closes it. Fails with kSystem.
File create_event();
void signal_event(const File& event) noexcept;  // readable from now on
void clear_event(const File& event) noexcept;   // not readable any more

// A pipe without data: has_no_writer() says whether all write ends are closed. False: no descriptor is left.
bool make_pipe(File* reader, File* writer) noexcept;
bool has_no_writer(const File& reader) noexcept;

// ------------------------------------------------------------------------------------------ sleeping

// A word of shared memory, and the value during which a thread sleeps on it.
struct Sleep {
  const std::atomic<uint32_t>* word;
  uint32_t value;
};
constexpr size_t kMostWords = 128;

// Sleeps while every word has its value, for at most timeout_ns >= 0; at most kMostWords words. If the kernel
// cannot wait for several words, sleeps on the first one for at most a millisecond. May return spuriously.
void sleep_on(const Sleep* words, size_t n, int64_t timeout_ns) noexcept;
void wake_all(const std::atomic<uint32_t>& word) noexcept;

}  // namespace tenon::impl::os
