// Places buffers into one arena such that buffers that live at the same time never overlap.
//
// Vocabulary: a buffer lives from step `first` to step `last`, both inclusive; two buffers conflict when these
// intervals meet; a gap is free space between the conflicting buffers placed already.
//
// Steps: largest buffer first (ties: earliest first step, then number, so the result is deterministic); into the
// smallest gap that holds it; else behind the last conflicting buffer. O(n^2) for n buffers, n is a few thousands.
#pragma once

#include <cstdint>
#include <vector>

namespace lowerkit {

struct LiveBuffer {
  int64_t size;
  int64_t first;
  int64_t last;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // one per buffer, multiples of the alignment
  int64_t total = 0;             // bytes of the arena
};

// Throws std::invalid_argument for a negative size, first > last, an alignment that is no power of two, or a total
// beyond 2^62 bytes.
MemoryPlan plan_memory(const std::vector<LiveBuffer> &buffers, int64_t alignment);

}  // namespace lowerkit
