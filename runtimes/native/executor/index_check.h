// The check of indices: a built-in kind of step that ends a run where an index is out of range.
#pragma once

#include <cstdint>
#include <vector>

#include "thread_pool.h"

namespace lowerkit {

// What a check looks at, as the dims of its step state it: count, bytes of an element (1, 2, 4, 8; signed), whether an
// index below 0 counts from the end, whether there is an exempt value, that value, then one extent or more. Element i is
// in range if it is from 0 (-extent) to extent - 1 for extent number i modulo their count, or the exempt value.
struct IndexCheck {
  int64_t count;
  int64_t item_bytes;
  bool wraps;
  bool has_exempt;
  int64_t exempt;
  const int64_t *extents;
  int64_t extent_count;

  // Throws std::invalid_argument where the dims are none of a check.
  static IndexCheck of(const int64_t *dims, int64_t size);

  // The number of the first element that is out of range, -1 where there is none.
  int64_t first_fault(const void *indices, ThreadPool::Lease &lease) const;
  int64_t value(const void *indices, int64_t number) const;
};

// Stands for a check among the kernels of a step table; it is never called.
void index_check_kernel(void *const *buffers, const int64_t *dims, int64_t task_begin, int64_t task_end, void *scratch);

}  // namespace lowerkit
