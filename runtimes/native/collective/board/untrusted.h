// Values that another rank wrote: whatever they are, this rank stays within its memory.
#pragma once

#include <cstring>

namespace lowerkit::collective {

// A copy of what lies in shared memory. What is checked is then what is used, although the other rank may write again.
template <class Value>
Value fetched(const Value &shared) {
  Value copy;
  std::memcpy(static_cast<void *>(&copy), &shared, sizeof(Value));
  asm volatile("" ::: "memory");  // the compiler may not read again
  return copy;
}

}  // namespace lowerkit::collective
