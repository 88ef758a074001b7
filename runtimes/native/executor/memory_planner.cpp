#include "memory_planner.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace lowerkit {
namespace {

constexpr int64_t kLimit = int64_t{1} << 62;

struct Placed {
  int64_t begin;
  int64_t end;
  int64_t first;
  int64_t last;
};

void check(const std::vector<LiveBuffer> &buffers, int64_t alignment) {
  if (alignment <= 0 || alignment > 4096 || (alignment & (alignment - 1)) != 0)
    throw std::invalid_argument("the alignment must be a power of two up to 4096, not " + std::to_string(alignment));
  int64_t total = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const LiveBuffer &buffer = buffers[i];
    if (buffer.size < 0 || buffer.first > buffer.last)
      throw std::invalid_argument("buffer " + std::to_string(i) + " has size " + std::to_string(buffer.size) +
                                  " and lives from step " + std::to_string(buffer.first) + " to " +
                                  std::to_string(buffer.last));
    if (buffer.size > kLimit - alignment - total)
      throw std::invalid_argument("the buffers together do not fit 2^62 bytes");
    total += buffer.size + alignment;
  }
}

}  // namespace

MemoryPlan plan_memory(const std::vector<LiveBuffer> &buffers, int64_t alignment) {
  check(buffers, alignment);
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (buffers[a].size != buffers[b].size) return buffers[a].size > buffers[b].size;
    if (buffers[a].first != buffers[b].first) return buffers[a].first < buffers[b].first;
    return a < b;
  });

  MemoryPlan plan;
  plan.offsets.assign(buffers.size(), 0);
  std::vector<Placed> placed;  // sorted by begin
  placed.reserve(buffers.size());
  for (size_t index : order) {
    const LiveBuffer &buffer = buffers[index];
    const int64_t size = (buffer.size + alignment - 1) & -alignment;
    if (size == 0) continue;  // nothing to read or write: offset 0 is as good as any
    int64_t best = -1, best_gap = 0, free_from = 0;
    for (const Placed &other : placed) {
      if (other.last < buffer.first || buffer.last < other.first) continue;
      const int64_t gap = other.begin - free_from;
      if (gap >= size && (best < 0 || gap < best_gap)) {
        best = free_from;
        best_gap = gap;
      }
      free_from = std::max(free_from, other.end);
    }
    const int64_t offset = best >= 0 ? best : free_from;
    plan.offsets[index] = offset;
    plan.total = std::max(plan.total, offset + size);
    const Placed entry{offset, offset + size, buffer.first, buffer.last};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), entry,
                                   [](const Placed &a, const Placed &b) { return a.begin < b.begin; }),
                  entry);
  }
  return plan;
}

}  // namespace lowerkit
