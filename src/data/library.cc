// SPDX-License-Identifier: Apache-2.0
#include "data/library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tenon::impl {
namespace {

// The dynamic symbol table of a library (System V gABI, "Dynamic Section"; the GNU hash table gives the
// number of symbols, because the section headers are not loaded).
struct SymbolTable {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  size_t size = 0;
};

size_t count_by_gnu_hash(const uint32_t* table) {
  const uint32_t bucket_count = table[0];
  const uint32_t first_symbol = table[1];
  const uint32_t bloom_words = table[2];
  const uint32_t* const buckets = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* const chains = buckets + bucket_count;
  uint32_t last = bucket_count == 0 ? 0 : *std::max_element(buckets, buckets + bucket_count);
  if (last < first_symbol) return first_symbol;
  while ((chains[last - first_symbol] & 1) == 0) ++last;
  return last + 1;
}

SymbolTable symbol_table(void* library) {
  SymbolTable table;
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return table;
  // glibc has relocated these addresses, musl has not.
  const auto address = [&](const ElfW(Dyn) & entry) {
    const ElfW(Addr) value = entry.d_un.d_ptr;
    return value < map->l_addr ? value + map->l_addr : value;
  };
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB: table.symbols = reinterpret_cast<const ElfW(Sym)*>(address(*entry)); break;
      case DT_STRTAB: table.strings = reinterpret_cast<const char*>(address(*entry)); break;
      case DT_HASH: table.size = reinterpret_cast<const uint32_t*>(address(*entry))[1]; break;
      case DT_GNU_HASH:
        table.size = count_by_gnu_hash(reinterpret_cast<const uint32_t*>(address(*entry)));
        break;
      default: break;
    }
  }
  if (table.symbols == nullptr || table.strings == nullptr) table.size = 0;
  return table;
}

// Levenshtein's distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// A piece of an error message: "; did you mean 'fill'?", a hint at a C++ function that lacks extern "C", or
// nothing.
std::string similar_symbols_text(void* library, std::string_view name) {
  const SymbolTable table = symbol_table(library);
  const std::string mangled = concat("_Z", name.size(), name);
  std::string_view best;
  size_t best_distance = name.size() / 3 + 2;  // farther is not similar
  for (size_t i = 0; i < table.size; ++i) {
    const ElfW(Sym) & symbol = table.symbols[i];
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
    const std::string_view candidate = table.strings + symbol.st_name;
    if (candidate.starts_with(mangled)) {
      return concat(", but the C++ function '", candidate, "': declare it extern \"C\"");
    }
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best.empty() ? "" : concat("; did you mean '", best, "'?");
}

// A piece of an error message: a name without a slash is looked for where the linker looks, and that is not
// the current folder.
std::string here_text(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) return "";
  for (const std::string& file : {name, name + ".so", concat("lib", name, ".so")}) {
    if (access(file.c_str(), F_OK) == 0)
      return concat("; the current folder has that file: write './", file, "'");
  }
  return "; write a path with a slash for a file, as './libx.so' in the current folder";
}

std::string last_loader_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

}  // namespace

void* open_library(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string name = path != nullptr ? path : "";
    const std::string reason = last_loader_error();
    throw_error(Code::kNotFound, "cannot load library '", name, "': ", reason, here_text(name));
  }
  return library;
}

void* find_symbol(void* library, const char* path, const std::string& name) {
  void* const address = dlsym(library, name.c_str());
  if (address != nullptr) return address;
  const std::string where = path != nullptr ? concat("library '", path, "'") : std::string("this process");
  const std::string reason = last_loader_error();
  throw_error(Code::kNotFound, where, " has no function '", name, "'",
              path != nullptr ? similar_symbols_text(library, name) : "", " (", reason, ")");
}

}  // namespace tenon::impl
