#include "segment.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "untrusted.h"
#include "interruption.h"

namespace lowerkit::collective {
namespace {

constexpr uint64_t kMagic = 0x4c4b434f4c4c0001u;  // "LKCOLL", layout 1
constexpr int32_t kVersion = 1;

int64_t whole_pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

static_assert(sizeof(SegmentHeader) <= kPage);

int64_t Segment::block_bytes() { return whole_pages(sizeof(RankBlock)); }

int64_t Segment::rank_bytes(int64_t tile_bytes) { return block_bytes() + 2 * kOneShotBytes + kTiles * tile_bytes; }

int64_t Segment::ring_bytes(int ranks) {
  return std::clamp<int64_t>((int64_t(2) << 20) / ranks, 32 << 10, 512 << 10) / kPage * kPage;
}

int64_t Segment::bytes(int ranks, int64_t tile_bytes) {
  return kPage + int64_t(ranks) * rank_bytes(tile_bytes) + int64_t(ranks) * (ranks - 1) * ring_bytes(ranks);
}

uint8_t *Segment::ring(int from, int to) const {
  int64_t pair = int64_t(from) * (ranks_ - 1) + (to > from ? to - 1 : to);
  return base_ + kPage + int64_t(ranks_) * rank_bytes(tile_bytes_) + pair * ring_bytes(ranks_);
}

Segment::Segment(int descriptor, int ranks, int index, int64_t tile_bytes, Deadline deadline)
    : size_(bytes(ranks, tile_bytes)), ranks_(ranks), tile_bytes_(tile_bytes) {
  void *mapped = mmap(nullptr, size_t(size_), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED)
    throw Failure(LK_RESOURCES,
                  "cannot map " + std::to_string(size_) + " bytes of shared memory: " + std::strerror(errno));
  madvise(mapped, size_t(size_), MADV_POPULATE_WRITE);  // else the first operations fault page after page
  madvise(mapped, size_t(size_), MADV_DONTFORK);        // a child is no rank
  base_ = static_cast<uint8_t *>(mapped);
  SegmentHeader &shared = header();
  if (index == 0) {
    shared.ranks = ranks;
    shared.version = kVersion;
    shared.tile_bytes = tile_bytes;
    shared.magic.store(kMagic, std::memory_order_release);
    return;
  }
  while (shared.magic.load(std::memory_order_acquire) == 0) {
    if (deadline.passed(monotonic_nanoseconds())) {
      munmap(mapped, size_t(size_));
      throw Failure(LK_TIMEOUT, "the first local rank has not prepared the shared segment");
    }
    if (interrupted()) {
      munmap(mapped, size_t(size_));
      throw Failure(LK_INTERRUPTED, "interrupted while the first local rank prepared the shared segment");
    }
    sched_yield();
  }
  const int32_t version = fetched(shared.version), there = fetched(shared.ranks);
  const int64_t tile_there = fetched(shared.tile_bytes);
  if (shared.magic.load(std::memory_order_acquire) != kMagic || version != kVersion || there != ranks ||
      tile_there != tile_bytes) {
    std::string message = "local ranks disagree on the shared segment: " + std::to_string(there) +
                          " ranks with tiles of " + std::to_string(tile_there) + " bytes there, " +
                          std::to_string(ranks) + " and " + std::to_string(tile_bytes) +
                          " here; all ranks need the same version and tuning";
    munmap(mapped, size_t(size_));
    throw Failure(LK_DESYNC, message);
  }
}

Segment::~Segment() {
  if (base_) munmap(base_, size_t(size_));
}

void Segment::add_processors() const {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return;
  for (int cpu = 0; cpu < std::min(CPU_SETSIZE, kProcessorWords * 64); ++cpu)
    if (CPU_ISSET(cpu, &set)) header().processors[cpu / 64].fetch_or(uint64_t(1) << (cpu % 64));
}

int Segment::processors() const {
  int count = 0;
  for (const auto &word : header().processors) count += __builtin_popcountll(word.load(std::memory_order_relaxed));
  return count;
}

void Segment::report_failure(int rank, const char *message) const {
  SegmentHeader &shared = header();
  uint32_t none = 0;
  if (!shared.failed.compare_exchange_strong(none, 1)) return;
  shared.failed_rank = rank;
  std::strncpy(shared.failure, message, sizeof(shared.failure) - 1);
  shared.failed.store(2, std::memory_order_release);
}

std::optional<Failure> Segment::reported_failure() const {
  const SegmentHeader &shared = header();
  if (shared.failed.load(std::memory_order_acquire) != 2) return std::nullopt;
  char text[sizeof(shared.failure)];
  std::memcpy(text, shared.failure, sizeof(text));
  const int rank = fetched(shared.failed_rank);
  return Failure(LK_ABORTED, "rank " + std::to_string(rank) + ": " + std::string(text, strnlen(text, sizeof(text))),
                 rank);
}

}  // namespace lowerkit::collective
