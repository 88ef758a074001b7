// Operations that move data without arithmetic. All are one scheme: a rank lays out what it has, publishes it, and
// pulls what is meant for it.
//
//   line      one cache line carries sequence, fingerprint and data: one synchronisation, one transfer
//   one-shot  the data lies in the one-shot area before the line is published
//   tiles     round t: wait until the readers have consumed round t-4, write a tile, count it; then read the tile of
//             every rank that has one in this round, and count the round as consumed
//
// Where every reader gets bytes of its own, a table of their sizes says where each lies; it is in the line if it fits.
#include <algorithm>
#include <cstring>

#include "board.h"
#include "copy.h"
#include "untrusted.h"

namespace lowerkit::collective {

struct Pull {
  // What this rank gives: to every reader the same bytes, or to each its part. Null: it gives nothing.
  const void *shared = nullptr;
  int64_t shared_bytes = 0;
  const lk_part *parts = nullptr;
  int64_t element = 1;  // bytes, for the counts of parts

  // Who gives parts of different readers' own (then a table of their sizes leads the data).
  bool per_reader = false;
  // Whether ranks may differ in how many bytes they give: then sizes are compared before data is read.
  bool sizes_vary = false;

  int writer = -1;  // the only rank that gives; -1: all do
  int reader = -1;  // the only rank that reads; -1: all do

  // Where this rank puts what peer gives: for one writer `target`, else target_parts[peer].
  void *target = nullptr;
  int64_t target_bytes = 0;
  const lk_part *target_parts = nullptr;

  bool gives(int index) const { return writer < 0 || writer == index; }
  bool reads(int index) const { return reader < 0 || reader == index; }
  void *target_of(int peer) const { return target_parts ? target_parts[peer].data : target; }
  int64_t bytes_from(int peer) const { return target_parts ? target_parts[peer].count * element : target_bytes; }
};

namespace {

// Parts of up to this many bytes together lie close: cache lines that need not come cost more than shared ones.
constexpr int64_t kClose = 1 << 10;

int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
int64_t in_lines(int64_t bytes) { return rounded(bytes, kCacheLine); }

// How the parts that `writer` has for the other ranks lie, which writer and reader both know from their sizes.
struct Parts {
  Parts(const int64_t *sizes, int writer, int ranks) : sizes_(sizes), writer_(writer) {
    int64_t close = 0, apart = 0;
    for (int reader = 0; reader < ranks; ++reader) {
      if (reader == writer) continue;
      close += rounded(sizes[reader], 8);
      apart += in_lines(sizes[reader]);
      most = std::max(most, sizes[reader]);
    }
    unit_ = close <= kClose ? 8 : kCacheLine;
    const int64_t total = close <= kClose ? close : apart, table = ranks * int64_t(sizeof(int64_t));
    if (table + total <= kLinePayload)
      place = Place::kLine;
    else
      place = (table <= kLinePayload ? 0 : in_lines(table)) + total <= kOneShotBytes ? Place::kOneShot : Place::kTiles;
    const bool after_table = place == Place::kLine || table > kLinePayload;
    begin_ = !after_table ? 0 : place == Place::kLine ? table : in_lines(table);
  }
  // In the line's payload, or in the one-shot area.
  int64_t offset(int reader) const {
    int64_t offset = begin_;
    for (int other = 0; other < reader; ++other)
      if (other != writer_) offset += rounded(sizes_[other], unit_);
    return offset;
  }

  Place place;
  int64_t most = 0;  // that one reader gets

 private:
  const int64_t *const sizes_;
  const int writer_;
  int64_t unit_;
  int64_t begin_;
};

// Of data that all readers share: enough tiles that reading one overlaps writing the next.
int64_t shared_unit(int64_t bytes, int64_t tile_bytes) {
  return std::clamp(in_lines((bytes + kTiles - 1) / kTiles), std::min(kSmallTile, tile_bytes), tile_bytes);
}

int64_t part_unit(int ranks, int64_t tile_bytes) { return tile_bytes / ranks / kCacheLine * kCacheLine; }

int64_t rounds_of(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit; }

// No part is larger than a process's memory; up to here sums of sizes do not overflow.
constexpr int64_t kMostPart = int64_t(1) << 47;
// How many tiles a rank counts as read that hold nothing for it before it looks at the clock.
constexpr int64_t kTilesUnlooked = 1024;

}  // namespace

void Board::barrier(Execution &execution) {
  publish_line(execution);
  await_all_lines(execution);
}

void Board::broadcast(Execution &execution, const lk_call &call) {
  Pull plan;
  plan.writer = call.root;
  plan.shared = call.root == index_ ? call.output : nullptr;
  plan.shared_bytes = plan.target_bytes = call.count * kDtypeBytes[call.dtype];
  plan.target = call.output;
  pull(execution, plan);
}

void Board::gather(Execution &execution, const lk_call &call) {
  Pull plan;
  plan.element = kDtypeBytes[call.dtype];
  plan.reader = call.root;
  plan.sizes_vary = true;
  plan.shared = call.input;
  plan.shared_bytes = call.count * plan.element;
  plan.target_parts = call.root == index_ ? call.parts : nullptr;
  pull(execution, plan);
}

void Board::all_gather(Execution &execution, const lk_call &call) {
  Pull plan;
  plan.element = kDtypeBytes[call.dtype];
  plan.shared = call.input;
  plan.shared_bytes = call.count * plan.element;
  plan.target_parts = call.parts;
  pull(execution, plan);
}

void Board::scatter(Execution &execution, const lk_call &call) {
  Pull plan;
  plan.element = kDtypeBytes[call.dtype];
  plan.writer = call.root;
  plan.per_reader = true;
  plan.sizes_vary = true;
  plan.parts = call.root == index_ ? call.parts : nullptr;
  plan.target = call.output;
  plan.target_bytes = call.count * plan.element;
  pull(execution, plan);
}

void Board::all_to_all(Execution &execution, const lk_call &call) {
  Pull plan;
  plan.element = kDtypeBytes[call.dtype];
  plan.per_reader = true;
  plan.sizes_vary = true;
  plan.parts = call.input_parts;
  plan.target_parts = call.parts;
  pull(execution, plan);
}

// Decides where this rank's data lies, and puts it there unless it goes through tiles.
void Board::stage(Pull &plan) {
  place_ = Place::kLine;
  bytes_ = 0;
  if (!plan.gives(index_)) return;
  Announcement &own = announcement();
  uint8_t *area = segment_->one_shot(index_, sequence_);
  if (!plan.per_reader) {
    own.bytes = bytes_ = plan.shared_bytes;
    if (plan.shared_bytes <= kLinePayload) {
      if (plan.shared_bytes)  // of nothing there may be no address
        std::memcpy(segment_->block(index_).lines[sequence_ & 1].payload, plan.shared, size_t(plan.shared_bytes));
    } else if (plan.shared_bytes <= kOneShotBytes) {
      place_ = Place::kOneShot;
      std::memcpy(area, plan.shared, size_t(plan.shared_bytes));
    } else {
      place_ = Place::kTiles;
    }
    own.place = place_;
    return;
  }
  uint8_t *payload = segment_->block(index_).lines[sequence_ & 1].payload;
  for (int reader = 0; reader < ranks_; ++reader)
    table_[size_t(reader)] = plan.parts[reader].count * plan.element;
  std::memcpy(ranks_ * 8 <= kLinePayload ? payload : area, table_.data(), table_.size() * sizeof(int64_t));
  const Parts parts(table_.data(), index_, ranks_);
  own.bytes = bytes_ = parts.most;
  own.place = place_ = parts.place;
  if (place_ == Place::kTiles) return;
  for (int reader = 0; reader < ranks_; ++reader)
    if (reader != index_ && table_[size_t(reader)])
      std::memcpy((place_ == Place::kLine ? payload : area) + parts.offset(reader), plan.parts[reader].data,
                  size_t(table_[size_t(reader)]));
}

void Board::check_bytes(const Execution &execution, int peer, int64_t there, int64_t here) const {
  if (there == here) return;
  throw Failure(LK_DESYNC,
                name_of(execution) + ": rank " + std::to_string(rank_of(peer)) + " sends " + std::to_string(there) +
                    " bytes, rank " + std::to_string(membership_.rank) + " expects " + std::to_string(here),
                rank_of(peer));
}

// Copies the sizes of `peer`'s parts. Offsets follow from all of them: none may be one that no part has.
void Board::read_table(const Execution &execution, int peer) {
  const uint8_t *payload = segment_->block(peer).lines[sequence_ & 1].payload;
  const uint8_t *there = ranks_ * 8 <= kLinePayload ? payload : segment_->one_shot(peer, sequence_);
  std::memcpy(table_.data(), there, table_.size() * sizeof(int64_t));
  asm volatile("" ::: "memory");  // the compiler may not read again
  uint64_t all = 0;
  for (int64_t size : table_) all |= uint64_t(size);
  if (all >= uint64_t(kMostPart)) throw_damaged(execution, peer, "the sizes of its parts");
}

// Awaits `peer`, compares sizes and reads what needs no tiles. Leaves in rounds_[peer] how many tiles it has for us.
void Board::read_staged(Execution &execution, Pull &plan, int peer) {
  await_line(execution, peer, sequence_);
  const RankBlock &block = segment_->block(peer);
  const uint8_t *area = segment_->one_shot(peer, sequence_);
  const int64_t expected = plan.bytes_from(peer);
  void *target = plan.target_of(peer);
  if (!plan.per_reader) {
    if (plan.sizes_vary) check_bytes(execution, peer, fetched(block.announcements[sequence_ & 1].bytes), expected);
    if (expected <= kLinePayload)
      copy(target, block.lines[sequence_ & 1].payload, expected, false);
    else if (expected <= kOneShotBytes)
      copy(target, area, expected, false);
    else
      rounds_[size_t(peer)] = rounds_of(expected, shared_unit(expected, segment_->tile_bytes()));
    return;
  }
  read_table(execution, peer);
  check_bytes(execution, peer, table_[size_t(index_)], expected);
  const Parts parts(table_.data(), peer, ranks_);
  if (parts.place == Place::kTiles)
    // As many as its largest part takes: the writer waits until all have counted them.
    rounds_[size_t(peer)] = rounds_of(parts.most, part_unit(ranks_, segment_->tile_bytes()));
  else
    copy(target, (parts.place == Place::kLine ? block.lines[sequence_ & 1].payload : area) + parts.offset(index_),
         expected, false);
}

void Board::write_tile(const Pull &plan, int64_t round) {
  uint8_t *tile = segment_->tile(index_, written_);
  if (!plan.per_reader) {
    const int64_t unit = shared_unit(plan.shared_bytes, segment_->tile_bytes());
    copy(tile, static_cast<const uint8_t *>(plan.shared) + round * unit,
         std::min(unit, plan.shared_bytes - round * unit), false);
    return;
  }
  const int64_t unit = part_unit(ranks_, segment_->tile_bytes());
  for (int reader = 0; reader < ranks_; ++reader) {
    const int64_t bytes = plan.parts[reader].count * plan.element - round * unit;
    if (reader != index_)
      copy(tile + reader * unit, static_cast<const uint8_t *>(plan.parts[reader].data) + round * unit,
           std::min(unit, bytes), false);
  }
}

void Board::pull(Execution &execution, Pull &plan) {
  if (plan.gives(index_)) await_free_tiles(execution);
  stage(plan);
  publish_line(execution);

  int64_t own_rounds = 0;
  if (plan.gives(index_) && place_ == Place::kTiles) {
    const int64_t unit = plan.per_reader ? part_unit(ranks_, segment_->tile_bytes())
                                         : shared_unit(plan.shared_bytes, segment_->tile_bytes());
    own_rounds = rounds_of(bytes_, unit);
  }
  if (plan.reads(index_) && plan.gives(index_)) {  // from itself
    const void *own = plan.per_reader ? plan.parts[index_].data : plan.shared;
    const int64_t bytes = plan.per_reader ? plan.parts[index_].count * plan.element : plan.shared_bytes;
    check_bytes(execution, index_, bytes, plan.bytes_from(index_));
    if (bytes && plan.target_of(index_) != own) std::memmove(plan.target_of(index_), own, size_t(bytes));
  }
  int64_t rounds = own_rounds;
  int64_t reading_rounds = 0;
  for (int step = 1; step < ranks_; ++step) {
    const int peer = (index_ + step) % ranks_;
    rounds_[size_t(peer)] = 0;
    if (plan.reads(index_) && plan.gives(peer)) read_staged(execution, plan, peer);
    reading_rounds = std::max(reading_rounds, rounds_[size_t(peer)]);
  }
  rounds = std::max(rounds, reading_rounds);
  if (rounds == 0) return;

  if (own_rounds)  // the readers' counters are known from their lines on
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != index_ && plan.reads(peer)) await_line(execution, peer, sequence_);
  const int64_t unit = plan.per_reader ? part_unit(ranks_, segment_->tile_bytes()) : 0;
  RankBlock &own = segment_->block(index_);
  for (int64_t round = 0; round < rounds; ++round) {
    if (round < own_rounds) {
      if (round >= kTiles)
        for (int peer = 0; peer < ranks_; ++peer)
          if (peer != index_ && plan.reads(peer)) {
            const RankBlock &block = segment_->block(peer);
            await(execution, peer, segment_->block(peer).consumed.value,
                  block.announcements[sequence_ & 1].consumed + uint64_t(round - kTiles + 1));
          }
      write_tile(plan, round);
      publish(own.written, ++written_);
    }
    if (round >= reading_rounds) continue;
    if (round % kTilesUnlooked == kTilesUnlooked - 1) check_time(execution);
    for (int step = 1; step < ranks_; ++step) {
      const int peer = (index_ + step) % ranks_;
      const int64_t bytes = plan.bytes_from(peer);
      const int64_t step_bytes = unit ? unit : shared_unit(bytes, segment_->tile_bytes());
      if (round >= rounds_[size_t(peer)] || round * step_bytes >= bytes) continue;
      const uint64_t number = segment_->block(peer).announcements[sequence_ & 1].written + uint64_t(round);
      await(execution, peer, segment_->block(peer).written.value, number + 1);
      copy(static_cast<uint8_t *>(plan.target_of(peer)) + round * step_bytes,
           segment_->tile(peer, number) + index_ * unit, std::min(step_bytes, bytes - round * step_bytes),
           bytes >= streaming_limit_);
    }
    publish(own.consumed, ++consumed_);
  }
  if (own_rounds)
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != index_ && plan.reads(peer))
        unread_[size_t(peer)] = segment_->block(peer).announcements[sequence_ & 1].consumed + uint64_t(own_rounds);
}

}  // namespace lowerkit::collective
