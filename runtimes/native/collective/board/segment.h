// The memory that the local ranks of a group share, and where everything lies in it.
//
//   header            layout numbers, and the group's failure if there is one
//   one block a rank  written by that rank alone (but for `sleepers`):
//     lines[2]        one cache line an operation, even and odd ones in turn: sequence, fingerprint, up to 48 bytes of
//     data announcements   what the rank called, where its data lies and its counters stand counters        tiles
//     written, reduced and consumed so far one-shot[2]     data of operations that fit, even and odd ones in turn
//     tiles[4]        a ring for larger ones
//   rings             one byte ring for each ordered pair, for messages
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "doorbell.h"
#include "operation.h"

namespace lowerkit::collective {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kLinePayload = 48;
constexpr int kProcessorWords = 16;
constexpr int kTiles = 4;
constexpr int64_t kOneShotBytes = 64 << 10;
constexpr int64_t kDefaultTileBytes = 512 << 10;

struct alignas(kCacheLine) Line {
  std::atomic<uint64_t> sequence;
  uint64_t fingerprint;
  uint8_t payload[kLinePayload];
};
static_assert(sizeof(Line) == kCacheLine);

// Where the data of a rank lies: in its line, in its one-shot area, or in tiles that follow one another.
enum class Place : int32_t { kLine = 0, kOneShot = 1, kTiles = 2 };

struct alignas(2 * kCacheLine) Announcement {
  Descriptor descriptor;
  uint64_t written;  // the rank's counters before the operation
  uint64_t consumed;
  int64_t arena_input;  // offset of the buffer in the rank's arena, -1 if it lies elsewhere
  int64_t arena_output;
  int64_t bytes;  // that each reader gets; where each gets its own: the most that one does
  Place place;
  uint32_t number;  // of the operation in the group, modulo 2^32
};
static_assert(sizeof(Announcement) == 2 * kCacheLine);

struct alignas(kCacheLine) Counter {
  std::atomic<uint64_t> value;
};

struct RankBlock {
  Line lines[2];
  Announcement announcements[2];
  Counter written;                                     // tiles whose data lies ready
  Counter reduced;                                     // tiles whose own slice is reduced
  Counter consumed;                                    // rounds of tiles that this rank has read
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;  // ranks asleep on one of the above
  Doorbell doorbell;                                   // rung when bytes for this rank lie in a ring
};

struct SegmentHeader {
  std::atomic<uint64_t> magic;
  int32_t ranks;
  int32_t version;
  int64_t tile_bytes;
  std::atomic<uint64_t> processors[kProcessorWords];  // a bit for each that some rank may run on
  alignas(kCacheLine) std::atomic<uint32_t> failed;   // 0 no, 1 being written, 2 yes
  int32_t failed_rank;
  char failure[512];
};

class Segment {
 public:
  static int64_t bytes(int ranks, int64_t tile_bytes);
  static int64_t ring_bytes(int ranks);

  // Maps `descriptor` (and leaves it open). Rank 0 of the local ranks writes the header, the others await it. Throws
  // Failure: LK_RESOURCES if the mapping fails, LK_DESYNC if layouts differ, LK_TIMEOUT.
  Segment(int descriptor, int ranks, int index, int64_t tile_bytes, Deadline deadline);
  ~Segment();
  Segment(const Segment &) = delete;
  Segment &operator=(const Segment &) = delete;

  SegmentHeader &header() const { return *reinterpret_cast<SegmentHeader *>(base_); }
  RankBlock &block(int index) const { return *reinterpret_cast<RankBlock *>(rank_base(index)); }
  uint8_t *one_shot(int index, uint64_t sequence) const {
    return rank_base(index) + block_bytes() + int64_t(sequence & 1) * kOneShotBytes;
  }
  uint8_t *tile(int index, uint64_t number) const {
    return rank_base(index) + block_bytes() + 2 * kOneShotBytes + int64_t(number % kTiles) * tile_bytes_;
  }
  // Memory of the ring that carries bytes from one rank to another; zeroed at the start.
  uint8_t *ring(int from, int to) const;

  // Adds the processors that this thread may run on; counts those of all ranks that did so before.
  void add_processors() const;
  int processors() const;

  int ranks() const { return ranks_; }
  int64_t tile_bytes() const { return tile_bytes_; }

  // Tells all ranks of a failure; the first one stays. Callable by any thread.
  void report_failure(int rank, const char *message) const;
  // What some rank reported. Its rank is whatever stands there.
  std::optional<Failure> reported_failure() const;

 private:
  static int64_t block_bytes();
  static int64_t rank_bytes(int64_t tile_bytes);
  uint8_t *rank_base(int index) const { return base_ + kPage + int64_t(index) * rank_bytes(tile_bytes_); }

  uint8_t *base_ = nullptr;
  int64_t size_ = 0;
  int ranks_;
  int64_t tile_bytes_;
};

}  // namespace lowerkit::collective
