// SPDX-License-Identifier: Apache-2.0
#include "capi/second_copy.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace tenon::impl::capi {
namespace {

constexpr size_t kNameSize = 8;  // a multiple of 4, as notes require
constexpr char kName[kNameSize] = "Tenon";
constexpr uint32_t kType = 1;

struct ElfNote {
  ElfW(Nhdr) head;
  char name[kNameSize];
  uint32_t value;
};

// The linker puts it into a segment PT_NOTE, which the program headers of a loaded object show.
alignas(4) __attribute__((section(".note.tenon"), used)) const ElfNote note = {
    {sizeof(kName), sizeof(uint32_t), kType}, {'T', 'e', 'n', 'o', 'n'}, 1};

constexpr size_t rounded_up(size_t value, size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

bool has_note_in(const char* begin, const char* end, size_t alignment) {
  while (static_cast<size_t>(end - begin) >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head;
    std::memcpy(&head, begin, sizeof(head));
    const size_t value = rounded_up(sizeof(head) + head.n_namesz, alignment);
    const size_t size = rounded_up(value + head.n_descsz, alignment);
    if (size > static_cast<size_t>(end - begin)) return false;
    if (head.n_namesz == kNameSize && head.n_type == kType &&
        std::memcmp(begin + sizeof(head), kName, kNameSize) == 0) {
      return true;
    }
    begin += size;
  }
  return false;
}

// Whether a loaded segment of the object contains the bytes; others may not be read.
bool is_loaded(const dl_phdr_info& object, ElfW(Addr) address, size_t nbytes) {
  return std::any_of(object.dlpi_phdr, object.dlpi_phdr + object.dlpi_phnum, [&](const ElfW(Phdr) & segment) {
    return segment.p_type == PT_LOAD && (segment.p_flags & PF_R) != 0 && address >= segment.p_vaddr &&
           address + nbytes <= segment.p_vaddr + segment.p_filesz;
  });
}

bool is_tenon(const dl_phdr_info& object) {
  return std::any_of(object.dlpi_phdr, object.dlpi_phdr + object.dlpi_phnum, [&](const ElfW(Phdr) & segment) {
    if (segment.p_type != PT_NOTE || !is_loaded(object, segment.p_vaddr, segment.p_filesz)) return false;
    const auto* begin = reinterpret_cast<const char*>(object.dlpi_addr + segment.p_vaddr);
    return has_note_in(begin, begin + segment.p_filesz, segment.p_align == 8 ? 8 : 4);
  });
}

std::array<char, 4096> path_of_first{};  // constant after the library is loaded

// Of the objects that are loaded, in the order of loading, this looks for the first that is Tenon.
int look_at(dl_phdr_info* object, size_t, void* is_second) {
  if (!is_tenon(*object)) return 0;
  const auto own = reinterpret_cast<ElfW(Addr)>(&note) - object->dlpi_addr;
  *static_cast<bool*>(is_second) = !is_loaded(*object, own, sizeof(note));
  const char* name = object->dlpi_name[0] == '\0' ? "the program itself" : object->dlpi_name;
  std::strncpy(path_of_first.data(), name, path_of_first.size() - 1);
  return 1;
}

bool find_first() {
  bool is_second = false;
  dl_iterate_phdr(look_at, &is_second);
  return is_second;
}

}  // namespace

const bool is_second_copy = find_first();

void refuse_second_copy() {
  Dl_info own{};
  const bool has_name = dladdr(&note, &own) != 0 && own.dli_fname != nullptr;
  throw_error(
      Code::kSystem, "two copies of the Tenon library are loaded: ", path_of_first.data(), " was first, so ",
      has_name ? own.dli_fname : "this one",
      " refuses every call; leases of one copy do not exclude those of the other. Link all of the process "
      "to one of them");
}

}  // namespace tenon::impl::capi
