#include "step_table.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "index_check.h"

namespace lowerkit {
namespace {

struct KernelCall {
  Kernel kernel;
  void *const *buffers;
  const int64_t *dims;
  uint8_t *scratch;
  int64_t scratch_stride;
};

void run_tasks(void *context, int64_t begin, int64_t end, int thread) {
  const KernelCall &call = *static_cast<const KernelCall *>(context);
  call.kernel(call.buffers, call.dims, begin, end, call.scratch + thread * call.scratch_stride);
}

void check_ranges(const std::vector<int64_t> &begin, size_t steps, size_t items, const char *what) {
  const bool shape = begin.size() == steps + 1 && begin.front() == 0 && begin.back() == static_cast<int64_t>(items);
  if (!shape || !std::is_sorted(begin.begin(), begin.end()))
    throw std::invalid_argument(std::string("the step table's ranges of ") + what + " contradict its arrays");
}

}  // namespace

void copy_kernel(void *const *buffers, const int64_t *dims, int64_t task_begin, int64_t task_end, void *) {
  const int64_t begin = task_begin * kCopyTaskBytes, end = std::min(dims[0], task_end * kCopyTaskBytes);
  if (begin < end)
    std::memmove(static_cast<uint8_t *>(buffers[1]) + begin, static_cast<const uint8_t *>(buffers[0]) + begin,
                 static_cast<size_t>(end - begin));
}

StepTable::StepTable(StepTableParts parts) : parts_(std::move(parts)), pointers_(parts_.offsets.size()) {
  const size_t steps = parts_.kernels.size();
  if (parts_.tasks.size() != steps || parts_.targets.size() != steps || parts_.contexts.size() != steps ||
      parts_.base_index.size() != parts_.offsets.size())
    throw std::invalid_argument("the step table's arrays differ in length");
  check_ranges(parts_.buffer_begin, steps, parts_.offsets.size(), "buffers");
  check_ranges(parts_.dim_begin, steps, parts_.dims.size(), "dims");
  for (size_t step = 0; step < steps; ++step) {
    const int64_t target = parts_.targets[step];
    if ((parts_.kernels[step] == 0) != (target >= 0)) throw std::invalid_argument("a step has no kernel");
    if (parts_.contexts[step] >= 0 && (target >= 0 || is_check(step)))
      throw std::invalid_argument("a step is a call and something else");
    if (target > static_cast<int64_t>(steps)) throw std::invalid_argument("a jump leads out of the step table");
    if (target >= 0 && parts_.buffer_begin[step + 1] - parts_.buffer_begin[step] > 1)
      throw std::invalid_argument("a jump has more than one buffer");
    if (is_check(step)) {
      IndexCheck::of(parts_.dims.data() + parts_.dim_begin[step], parts_.dim_begin[step + 1] - parts_.dim_begin[step]);
      if (parts_.buffer_begin[step + 1] - parts_.buffer_begin[step] != 1)
        throw std::invalid_argument("a check of indices has not one buffer");
    }
  }
  for (int64_t base : parts_.base_index)
    if (base < 0 || base >= parts_.base_count)
      throw std::invalid_argument("a buffer refers to base " + std::to_string(base) + " of " +
                                  std::to_string(parts_.base_count));
}

bool StepTable::is_check(size_t step) const {
  return parts_.kernels[step] == reinterpret_cast<uint64_t>(&index_check_kernel);
}

std::optional<StepFault> StepTable::run(ThreadPool &pool, const std::vector<uint64_t> &bases, void *scratch,
                                        int64_t scratch_stride, int64_t *nanoseconds, void (*on_loop)()) {
  if (static_cast<int64_t>(bases.size()) != parts_.base_count)
    throw std::invalid_argument("the run has " + std::to_string(bases.size()) + " bases, the step table " +
                                std::to_string(parts_.base_count));
  for (size_t i = 0; i < pointers_.size(); ++i)
    pointers_[i] = reinterpret_cast<void *>(bases[parts_.base_index[i]] + parts_.offsets[i]);

  ThreadPool::Lease lease(pool, last_run_nanoseconds_);
  using Clock = std::chrono::steady_clock;
  Clock::time_point before = nanoseconds ? Clock::now() : Clock::time_point();
  int64_t turns = 0;
  for (size_t step = 0; step < steps();) {
    if (parts_.targets[step] >= 0) {
      const int64_t buffer = parts_.buffer_begin[step];
      const bool taken = buffer == parts_.buffer_begin[step + 1] || *static_cast<const uint8_t *>(pointers_[buffer]) == 0;
      const size_t next = taken ? static_cast<size_t>(parts_.targets[step]) : step + 1;
      if (next <= step) {
        if (++turns > most_turns)
          throw std::overflow_error("its loops have not ended after " + std::to_string(most_turns) + " turns");
        on_loop();
      }
      step = next;
      continue;
    }
    if (is_check(step)) {
      const void *indices = pointers_[parts_.buffer_begin[step]];
      const IndexCheck check = IndexCheck::of(parts_.dims.data() + parts_.dim_begin[step],
                                              parts_.dim_begin[step + 1] - parts_.dim_begin[step]);
      const int64_t fault = check.first_fault(indices, lease);
      if (fault >= 0) return StepFault{static_cast<int64_t>(step), 0, fault, check.value(indices, fault)};
    } else if (parts_.contexts[step] >= 0) {
      const Call call = reinterpret_cast<Call>(parts_.kernels[step]);
      const int64_t status = call(static_cast<uint64_t>(parts_.contexts[step]),
                                  pointers_.data() + parts_.buffer_begin[step],
                                  parts_.dims.data() + parts_.dim_begin[step]);
      if (status != 0) return StepFault{static_cast<int64_t>(step), status, 0, 0};
    } else {
      KernelCall call{reinterpret_cast<Kernel>(parts_.kernels[step]), pointers_.data() + parts_.buffer_begin[step],
                parts_.dims.data() + parts_.dim_begin[step], static_cast<uint8_t *>(scratch),
                      scratch_stride};
      lease.run(parts_.tasks[step], run_tasks, &call);
    }
    if (nanoseconds) {
      const Clock::time_point after = Clock::now();
      nanoseconds[step] += std::chrono::duration_cast<std::chrono::nanoseconds>(after - before).count();
      before = after;
    }
    ++step;
  }
  last_run_nanoseconds_ = lease.elapsed_nanoseconds();
  return std::nullopt;
}

}  // namespace lowerkit
