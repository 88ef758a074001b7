// The executor: one call runs all steps of a model for one set of shapes.
//
// A step is a kernel, its buffers, its dims and its task count. Buffers are (base, offset) pairs: bases are the arena,
// the weights, states, inputs and outputs; their addresses come with each run, so that arena growth and new inputs
// cost one addition per buffer (about a microsecond for a whole model) and nothing is ever stale.
//
// A jump is a step without a kernel. It is taken unless the byte in its buffer is not zero, and always if it has none; so
// branches and loops that depend on data stay inside the one call. A check of indices (index_check.h) is a step whose kernel
// is index_check_kernel: it ends the run where an index is out of range.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "thread_pool.h"

namespace lowerkit {

// The ABI of kernels: runs the tasks task_begin .. task_end-1.
using Kernel = void (*)(void *const *buffers, const int64_t *dims, int64_t task_begin, int64_t task_end, void *scratch);

// Bytes of one task of copy_kernel.
constexpr int64_t kCopyTaskBytes = 64 * 1024;

// The built-in kernel: dims[0] bytes of buffers[0] to buffers[1], in tasks of kCopyTaskBytes.
void copy_kernel(void *const *buffers, const int64_t *dims, int64_t task_begin, int64_t task_end, void *scratch);

// Structure of arrays, one entry per step unless said otherwise.
struct StepTableParts {
  std::vector<uint64_t> kernels;       // addresses
  std::vector<int64_t> tasks;
  std::vector<int64_t> buffer_begin;   // steps + 1 entries, into base_index and offsets
  std::vector<int64_t> base_index;
  std::vector<int64_t> offsets;
  std::vector<int64_t> dim_begin;      // steps + 1 entries, into dims
  std::vector<int64_t> dims;
  std::vector<int64_t> targets;        // the step that a jump leads to, -1 for a kernel
  int64_t base_count = 0;
};

// Why a run ended before its last step: element `number` of the indices that step `step` checks is `index`.
struct IndexFault {
  int64_t step;
  int64_t number;
  int64_t index;
};

class StepTable {
 public:
  // Throws std::invalid_argument where the parts contradict each other.
  explicit StepTable(StepTableParts parts);

  size_t steps() const { return parts_.kernels.size(); }

  // Runs the steps. `scratch` holds pool.threads() areas of `scratch_stride` bytes. `nanoseconds`, if not null, gets
  // the time spent in each step added. `on_loop` is called at every jump backwards and may throw, which ends the run:
  // a loop need not end by itself. Not to be called twice at a time.
  // Throws std::overflow_error after `most_turns` jumps backwards: an artifact must not run for ever.
  // Returns the index at which a check ended the run; none where the run came to its end.
  std::optional<IndexFault> run(ThreadPool &pool, const std::vector<uint64_t> &bases, void *scratch,
                                int64_t scratch_stride, int64_t *nanoseconds, void (*on_loop)());

  int64_t most_turns = int64_t{1} << 30;

 private:
  bool is_check(size_t step) const;

  StepTableParts parts_;
  std::vector<void *> pointers_;
  int64_t last_run_nanoseconds_ = -1;
};

}  // namespace lowerkit
