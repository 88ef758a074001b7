#include "index_check.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace lowerkit {
namespace {

constexpr int64_t kHeader = 5;
constexpr int64_t kTaskElements = 16 * 1024;
constexpr int64_t kBlockElements = 1024;

bool outside(const IndexCheck &check, int64_t index, int64_t extent) {
  return (index < (check.wraps ? -extent : 0)) | (index >= extent);
}

template <typename Element>
int64_t first_outside(const IndexCheck &check, const Element *indices, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block += kBlockElements) {
    const int64_t last = std::min(end, block + kBlockElements);
    if (check.extent_count == 1) {  // whether at all, without a branch, then which
      const int64_t extent = check.extents[0];
      bool any = false;
      for (int64_t i = block; i < last; ++i) any |= outside(check, indices[i], extent);
      if (!any) continue;
    }
    for (int64_t i = block; i < last; ++i)
      if (outside(check, indices[i], check.extents[i % check.extent_count]) &&
          !(check.has_exempt && indices[i] == check.exempt))
        return i;
  }
  return end;
}

struct Search {
  const IndexCheck &check;
  const void *indices;
  std::atomic<int64_t> first;
};

void search_tasks(void *context, int64_t begin, int64_t end, int) {
  Search &search = *static_cast<Search *>(context);
  const int64_t from = begin * kTaskElements, to = std::min(search.check.count, end * kTaskElements);
  int64_t found = to;
  switch (search.check.item_bytes) {
    case 1: found = first_outside(search.check, static_cast<const int8_t *>(search.indices), from, to); break;
    case 2: found = first_outside(search.check, static_cast<const int16_t *>(search.indices), from, to); break;
    case 4: found = first_outside(search.check, static_cast<const int32_t *>(search.indices), from, to); break;
    default: found = first_outside(search.check, static_cast<const int64_t *>(search.indices), from, to);
  }
  if (found == to) return;
  int64_t known = search.first.load(std::memory_order_relaxed);
  while (found < known && !search.first.compare_exchange_weak(known, found, std::memory_order_relaxed)) {
  }
}

}  // namespace

IndexCheck IndexCheck::of(const int64_t *dims, int64_t size) {
  if (size <= kHeader) throw std::invalid_argument("a check of indices has no extent");
  IndexCheck check{dims[0], dims[1], dims[2] != 0, dims[3] != 0, dims[4], dims + kHeader, size - kHeader};
  const bool known = check.item_bytes == 1 || check.item_bytes == 2 || check.item_bytes == 4 || check.item_bytes == 8;
  if (!known || check.count < 0) throw std::invalid_argument("a check of indices reads elements of no known size");
  if (std::any_of(check.extents, check.extents + check.extent_count, [](int64_t extent) { return extent < 0; }))
    throw std::invalid_argument("a check of indices has a negative extent");
  return check;
}

int64_t IndexCheck::first_fault(const void *indices, ThreadPool::Lease &lease) const {
  Search search{*this, indices, {count}};
  lease.run((count + kTaskElements - 1) / kTaskElements, search_tasks, &search);
  const int64_t first = search.first.load(std::memory_order_relaxed);
  return first == count ? -1 : first;
}

int64_t IndexCheck::value(const void *indices, int64_t number) const {
  switch (item_bytes) {
    case 1: return static_cast<const int8_t *>(indices)[number];
    case 2: return static_cast<const int16_t *>(indices)[number];
    case 4: return static_cast<const int32_t *>(indices)[number];
    default: return static_cast<const int64_t *>(indices)[number];
  }
}

void index_check_kernel(void *const *, const int64_t *, int64_t, int64_t, void *) {}

}  // namespace lowerkit
