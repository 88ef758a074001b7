// The executor: one call runs all steps of a model for one set of shapes.
//
// A step is a kernel, its buffers, its dims and its task count. Buffers are (base, offset) pairs: bases are the arena,
// the weights, states, inputs and outputs; their addresses come with each run, so that arena growth and new inputs
// cost one addition per buffer (about a microsecond for a whole model) and nothing is ever stale.
//
// A jump is a step without a kernel. It is taken unless the byte in its buffer is not zero, and always if it has none; so
// branches and loops that depend on data stay inside the one call. A check of indices (index_check.h) is a step whose kernel
// is index_check_kernel: it ends the run where an index is out of range. A call is a step that may fail: the launch of a
// device, a copy between memories, a collective. It runs on the caller's thread, and a status other than 0 ends the run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "thread_pool.h"

namespace lowerkit {

// The ABI of kernels: runs the tasks task_begin .. task_end-1.
using Kernel = void (*)(void *const *buffers, const int64_t *dims, int64_t task_begin, int64_t task_end, void *scratch);

// The ABI of calls: returns 0, or a status that ends the run. `context` is what the table holds for the step.
using Call = int64_t (*)(uint64_t context, void *const *buffers, const int64_t *dims);

// Bytes of one task of copy_kernel.
constexpr int64_t kCopyTaskBytes = 64 * 1024;

// The built-in kernel: dims[0] bytes of buffers[0] to buffers[1], in tasks of kCopyTaskBytes.
void copy_kernel(void *const *buffers, const int64_t *dims, int64_t task_begin, int64_t task_end, void *scratch);

// Structure of arrays, one entry per step unless said otherwise.
struct StepTableParts {
  std::vector<uint64_t> kernels;       // addresses, of kernels or calls
  std::vector<int64_t> tasks;
  std::vector<int64_t> buffer_begin;   // steps + 1 entries, into base_index and offsets
  std::vector<int64_t> base_index;
  std::vector<int64_t> offsets;
  std::vector<int64_t> dim_begin;      // steps + 1 entries, into dims
  std::vector<int64_t> dims;
  std::vector<int64_t> targets;        // the step that a jump leads to, -1 for a kernel
  std::vector<int64_t> contexts;       // what a call is handed, -1 for all other steps
  int64_t base_count = 0;
};

// Why a run ended before its last step. A call returned `status`; where that is 0, `step` checks indices, of which element
// `number` is `index`.
struct StepFault {
  int64_t step;
  int64_t status;
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
  // Returns why a step ended the run, none where the run came to its end. The table can run again in either case.
  std::optional<StepFault> run(ThreadPool &pool, const std::vector<uint64_t> &bases, void *scratch,
                                int64_t scratch_stride, int64_t *nanoseconds, void (*on_loop)());

  int64_t most_turns = int64_t{1} << 30;

 private:
  bool is_check(size_t step) const;

  StepTableParts parts_;
  std::vector<void *> pointers_;
  int64_t last_run_nanoseconds_ = -1;
};

}  // namespace lowerkit
