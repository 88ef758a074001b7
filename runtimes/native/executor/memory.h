// Zeroed, page-aligned memory from the kernel: arenas, scratch, states.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowerkit {

class Memory {
 public:
  // Throws std::bad_alloc. Zero bytes are served as one page, so that the address is always valid.
  explicit Memory(size_t size);
  ~Memory();
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;

  uint8_t *data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t *data_;
  size_t size_;
  size_t mapped_;
};

}  // namespace lowerkit
