#include "memory.h"

#include <sys/mman.h>

#include <new>

namespace lowerkit {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

Memory::Memory(size_t size) : size_(size) {
  const size_t granule = size >= kHugePage ? kHugePage : 4096;
  if (size > SIZE_MAX - 2 * kHugePage) throw std::bad_alloc();
  mapped_ = size == 0 ? granule : (size + granule - 1) / granule * granule;
  void *address = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  // Fewer TLB misses when a kernel walks a large activation; a hint, so its failure does not matter.
  if (mapped_ >= kHugePage) madvise(address, mapped_, MADV_HUGEPAGE);
  data_ = static_cast<uint8_t *>(address);
}

Memory::~Memory() { munmap(data_, mapped_); }

}  // namespace lowerkit
