// Operations that reduce. Every element is reduced by one rank alone or by all in the same order (that of the ranks),
// so that all ranks hold the same bits.
//
//   line, one-shot   all_reduce of up to one_shot_limit: each rank copies its input in, publishes, and reduces all
//   inputs staged two-shot  up to the one-shot area: copy the others' slices in, publish; reduce the own slice into the
//   area,
//                    count it; copy the others' reduced slices out
//   tiles            the same, tile by tile: while tile t is copied in, tile t-1 is reduced and tile t-2 copied out
//   arena            all buffers lie in the arena: rank i reduces slice i out of all of them and stores it into all of
//   them
#include <algorithm>
#include <cstring>

#include "board.h"
#include "copy.h"
#include "untrusted.h"
#include "reduce.h"

namespace lowerkit::collective {
namespace {

constexpr int64_t kArenaBlock = 16 << 10;  // reduced in the first cache, then stored to all ranks

// `count` elements in `ranks` slices that begin on cache lines; the last ones may be short or empty.
struct Slices {
  Slices(int64_t count, int ranks, int64_t element)
      : count_(count),
        size_((((count + ranks - 1) / ranks) * element + kCacheLine - 1) / kCacheLine * kCacheLine / element) {}

  int64_t begin(int slice) const { return std::min(count_, slice * size_); }
  int64_t length(int slice) const { return begin(slice + 1) - begin(slice); }

 private:
  int64_t count_;
  int64_t size_;
};

// Elements of one tile: few for short buffers so that the phases of several tiles overlap.
int64_t tile_elements(int64_t count, int ranks, int64_t element, int64_t tile_bytes) {
  const int64_t unit = ranks * kCacheLine;
  const int64_t most = tile_bytes / unit * unit;
  const int64_t bytes =
      std::clamp(count * element / kTiles / unit * unit, std::min(kSmallTile / unit * unit, most), most);
  return std::max(bytes, unit) / element;
}

}  // namespace

void Board::all_reduce(Execution &execution, const lk_call &call) {
  const int64_t bytes = call.count * kDtypeBytes[call.dtype];
  if (bytes > one_shot_limit_ && !arenas_.empty() && call.operation == LK_ALL_REDUCE && all_in_arena(execution, call))
    return all_reduce_arena(execution, call);
  // Once asked about the arena, the lines are out: data can follow through tiles only.
  const bool published = bytes > one_shot_limit_ && !arenas_.empty() && call.operation == LK_ALL_REDUCE;
  if (!published && bytes <= kOneShotBytes - ranks_ * kCacheLine) return all_reduce_staged(execution, call);
  if (!published) publish_line(execution);
  await_all_lines(execution);
  all_reduce_tiles(execution, call);
}

void Board::all_reduce_staged(Execution &execution, const lk_call &call) {
  const int64_t element = kDtypeBytes[call.dtype];
  const int64_t bytes = call.count * element;
  const bool premultiplied = call.reduction == LK_PREMUL_SUM;
  const bool reads = call.operation == LK_ALL_REDUCE || call.root == index_;
  const bool two_shot = bytes > one_shot_limit_;
  RankBlock &own = segment_->block(index_);
  uint8_t *area = bytes <= kLinePayload ? own.lines[sequence_ & 1].payload : segment_->one_shot(index_, sequence_);
  if (premultiplied) {
    reduce(area, &call.input, &call.factor, 1, call.count, call.dtype, LK_SUM);
  } else if (bytes && (!two_shot || bytes <= kLinePayload)) {
    std::memcpy(area, call.input, size_t(bytes));
  }
  const Slices slices(call.count, ranks_, element);
  if (two_shot && !premultiplied)
    for (int slice = 0; slice < ranks_; ++slice)
      if (slice != index_)
        copy(area + slices.begin(slice) * element,
             static_cast<const uint8_t *>(call.input) + slices.begin(slice) * element, slices.length(slice) * element,
             false);
  publish_line(execution);
  if (!two_shot && !reads) return;

  await_all_lines(execution);
  const int64_t first = two_shot ? slices.begin(index_) : 0;
  const int64_t length = two_shot ? slices.length(index_) : call.count;
  for (int peer = 0; peer < ranks_; ++peer) {
    const uint8_t *base = bytes <= kLinePayload ? segment_->block(peer).lines[sequence_ & 1].payload
                                                : segment_->one_shot(peer, sequence_);
    if (peer == index_ && !premultiplied) base = static_cast<const uint8_t *>(call.input);
    sources_[size_t(peer)] = base + first * element;
  }
  uint8_t *target = two_shot ? area : static_cast<uint8_t *>(call.output);
  reduce(target + first * element, sources_.data(), nullptr, ranks_, length, call.dtype, call.reduction);
  if (call.reduction == LK_AVG) divide(target + first * element, ranks_, length, call.dtype);
  if (!two_shot) return;

  const uint64_t reduced = ++reduced_;
  publish(own.reduced, reduced);
  if (!reads) return;
  for (int step = 0; step < ranks_; ++step) {
    const int peer = (index_ + step) % ranks_;
    if (peer != index_) await(execution, peer, segment_->block(peer).reduced.value, reduced);
    copy(static_cast<uint8_t *>(call.output) + slices.begin(peer) * element,
         segment_->one_shot(peer, sequence_) + slices.begin(peer) * element, slices.length(peer) * element, false);
  }
}

void Board::all_reduce_tiles(Execution &execution, const lk_call &call) {
  const int64_t element = kDtypeBytes[call.dtype];
  const int64_t unit = tile_elements(call.count, ranks_, element, segment_->tile_bytes());
  const int64_t rounds = (call.count + unit - 1) / unit;
  const bool premultiplied = call.reduction == LK_PREMUL_SUM;
  const bool reads = call.operation == LK_ALL_REDUCE || call.root == index_;
  const bool streaming = call.count * element >= streaming_limit_;
  const auto *input = static_cast<const uint8_t *>(call.input);
  auto *output = static_cast<uint8_t *>(call.output);
  RankBlock &own = segment_->block(index_);
  const uint64_t written = written_, reduced = reduced_;
  await_free_tiles(execution);

  auto slices_of = [&](int64_t round) { return Slices(std::min(unit, call.count - round * unit), ranks_, element); };
  for (int64_t round = 0; round < rounds + 2; ++round) {
    if (round < rounds) {
      for (int peer = 0; round >= kTiles && peer < ranks_; ++peer)
        if (peer != index_)
          await(execution, peer, segment_->block(peer).consumed.value,
                segment_->block(peer).announcements[sequence_ & 1].consumed + uint64_t(round - kTiles + 1));
      uint8_t *tile = segment_->tile(index_, written_);
      const Slices slices = slices_of(round);
      const uint8_t *from = input + round * unit * element;
      if (premultiplied) {
        const void *source = from;
        reduce(tile, &source, &call.factor, 1, std::min(unit, call.count - round * unit), call.dtype, LK_SUM);
      } else {
        for (int slice = 0; slice < ranks_; ++slice)
          if (slice != index_)
            copy(tile + slices.begin(slice) * element, from + slices.begin(slice) * element,
                 slices.length(slice) * element, false);
      }
      publish(own.written, ++written_);
    }
    if (round >= 1 && round - 1 < rounds) {
      const int64_t current = round - 1;
      const Slices slices = slices_of(current);
      const int64_t first = slices.begin(index_) * element;
      uint8_t *tile = segment_->tile(index_, written + uint64_t(current));
      for (int peer = 0; peer < ranks_; ++peer) {
        if (peer == index_) {
          sources_[size_t(peer)] = premultiplied ? tile + first : input + current * unit * element + first;
          continue;
        }
        const uint64_t number = segment_->block(peer).announcements[sequence_ & 1].written + uint64_t(current);
        await(execution, peer, segment_->block(peer).written.value, number + 1);
        sources_[size_t(peer)] = segment_->tile(peer, number) + first;
      }
      reduce(tile + first, sources_.data(), nullptr, ranks_, slices.length(index_), call.dtype, call.reduction);
      if (call.reduction == LK_AVG) divide(tile + first, ranks_, slices.length(index_), call.dtype);
      publish(own.reduced, ++reduced_);
    }
    if (round < 2) continue;
    const int64_t current = round - 2;
    const Slices slices = slices_of(current);
    for (int step = 0; reads && step < ranks_; ++step) {
      const int peer = (index_ + step) % ranks_;
      if (peer != index_) await(execution, peer, segment_->block(peer).reduced.value, reduced + uint64_t(current) + 1);
      const uint64_t number =
          (peer == index_ ? written : segment_->block(peer).announcements[sequence_ & 1].written) + uint64_t(current);
      copy(output + (current * unit + slices.begin(peer)) * element,
           segment_->tile(peer, number) + slices.begin(peer) * element, slices.length(peer) * element, streaming);
    }
    publish(own.consumed, ++consumed_);
  }
  for (int peer = 0; peer < ranks_; ++peer)
    if (peer != index_)
      unread_[size_t(peer)] = segment_->block(peer).announcements[sequence_ & 1].consumed + uint64_t(rounds);
}

int64_t Board::offset_in_arena(const void *data, int64_t bytes) const {
  if (arenas_.empty()) return -1;
  const auto *address = static_cast<const uint8_t *>(data);
  const uint8_t *own = arenas_[size_t(index_)];
  return address >= own && address + bytes <= own + arena_bytes_ ? address - own : -1;
}

int64_t Board::checked_offset(const Execution &execution, int peer, int64_t offset, int64_t bytes) const {
  if (offset != -1 && (offset < 0 || offset > arena_bytes_ - bytes))
    throw_damaged(execution, peer, "offsets in the arena");
  return offset;
}

// Publishes the line, with the offsets of this rank's buffers, and awaits those of all.
bool Board::all_in_arena(Execution &execution, const lk_call &call) {
  const int64_t bytes = call.count * kDtypeBytes[call.dtype];
  Announcement &own = announcement();
  const int64_t input = offset_in_arena(call.input, bytes), output = offset_in_arena(call.output, bytes);
  own.arena_input = input;
  own.arena_output = output;
  bool all = call.reduction != LK_PREMUL_SUM;
  publish_line(execution);
  await_all_lines(execution);
  arena_inputs_[size_t(index_)] = input;
  arena_outputs_[size_t(index_)] = output;
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = size_t(peer);
    if (peer != index_) {
      const Announcement &theirs = segment_->block(peer).announcements[sequence_ & 1];
      arena_inputs_[at] = checked_offset(execution, peer, fetched(theirs.arena_input), bytes);
      arena_outputs_[at] = checked_offset(execution, peer, fetched(theirs.arena_output), bytes);
    }
    all = all && arena_inputs_[at] >= 0 && arena_outputs_[at] >= 0;
  }
  return all;
}

void Board::all_reduce_arena(Execution &execution, const lk_call &call) {
  const int64_t element = kDtypeBytes[call.dtype];
  const Slices slices(call.count, ranks_, element);
  const int64_t end = (slices.begin(index_) + slices.length(index_)) * element;
  const bool streaming = call.count * element >= streaming_limit_;
  for (int64_t offset = slices.begin(index_) * element; offset < end; offset += kArenaBlock) {
    const int64_t bytes = std::min(kArenaBlock, end - offset);
    for (int peer = 0; peer < ranks_; ++peer)
      sources_[size_t(peer)] =
          arenas_[size_t(peer)] + arena_inputs_[size_t(peer)] + offset;
    alignas(kCacheLine) uint8_t block[kArenaBlock];
    reduce(block, sources_.data(), nullptr, ranks_, bytes / element, call.dtype, call.reduction);
    if (call.reduction == LK_AVG) divide(block, ranks_, bytes / element, call.dtype);
    for (int step = 0; step < ranks_; ++step) {
      const int peer = (index_ + step) % ranks_;
      copy(arenas_[size_t(peer)] + arena_outputs_[size_t(peer)] + offset, block, bytes, streaming);
    }
  }
  const uint64_t reduced = ++reduced_;
  publish(segment_->block(index_).reduced, reduced);
  for (int step = 1; step < ranks_; ++step) {
    const int peer = (index_ + step) % ranks_;
    await(execution, peer, segment_->block(peer).reduced.value, reduced);
  }
}

void Board::reduce_scatter(Execution &execution, const lk_call &call) {
  const int64_t element = kDtypeBytes[call.dtype];
  int64_t total = 0;
  for (int part = 0; part < ranks_; ++part)
    total += (call.parts[part].count * element + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (total > kOneShotBytes) {
    publish_line(execution);
    await_all_lines(execution);
    return reduce_scatter_tiles(execution, call);
  }
  uint8_t *area = segment_->one_shot(index_, sequence_);
  int64_t offset = 0, own_offset = 0;
  for (int part = 0; part < ranks_; ++part) {
    const int64_t bytes = call.parts[part].count * element;
    const void *source = call.parts[part].data;
    if (part == index_) own_offset = offset;
    if (call.reduction == LK_PREMUL_SUM)
      reduce(area + offset, &source, &call.factor, 1, call.parts[part].count, call.dtype, LK_SUM);
    else if (part != index_)
      copy(area + offset, source, bytes, false);
    offset += (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  publish_line(execution);
  await_all_lines(execution);
  for (int peer = 0; peer < ranks_; ++peer)
    sources_[size_t(peer)] = peer == index_ && call.reduction != LK_PREMUL_SUM
                                 ? call.parts[index_].data
                                 : segment_->one_shot(peer, sequence_) + own_offset;
  reduce(call.output, sources_.data(), nullptr, ranks_, call.count, call.dtype, call.reduction);
  if (call.reduction == LK_AVG) divide(call.output, ranks_, call.count, call.dtype);
}

void Board::reduce_scatter_tiles(Execution &execution, const lk_call &call) {
  const int64_t element = kDtypeBytes[call.dtype];
  const int64_t slot = segment_->tile_bytes() / ranks_ / kCacheLine * kCacheLine;
  const int64_t unit = slot / element;
  int64_t most = 0;
  for (int part = 0; part < ranks_; ++part) most = std::max(most, call.parts[part].count);
  const int64_t rounds = (most + unit - 1) / unit;
  const bool premultiplied = call.reduction == LK_PREMUL_SUM;
  RankBlock &own = segment_->block(index_);
  const uint64_t written = written_;
  await_free_tiles(execution);
  auto *output = static_cast<uint8_t *>(call.output);
  for (int64_t round = 0; round < rounds + 1; ++round) {
    if (round < rounds) {
      for (int peer = 0; round >= kTiles && peer < ranks_; ++peer)
        if (peer != index_)
          await(execution, peer, segment_->block(peer).consumed.value,
                segment_->block(peer).announcements[sequence_ & 1].consumed + uint64_t(round - kTiles + 1));
      uint8_t *tile = segment_->tile(index_, written_);
      for (int part = 0; part < ranks_; ++part) {
        const int64_t length = std::min(unit, call.parts[part].count - round * unit);
        if (length <= 0) continue;
        const void *source = static_cast<const uint8_t *>(call.parts[part].data) + round * unit * element;
        if (premultiplied)
          reduce(tile + part * slot, &source, &call.factor, 1, length, call.dtype, LK_SUM);
        else if (part != index_)
          copy(tile + part * slot, source, length * element, false);
      }
      publish(own.written, ++written_);
    }
    if (round == 0) continue;
    const int64_t current = round - 1;
    const int64_t length = std::min(unit, call.count - current * unit);
    for (int peer = 0; length > 0 && peer < ranks_; ++peer) {
      if (peer == index_) {
        sources_[size_t(peer)] = premultiplied
                                     ? segment_->tile(index_, written + uint64_t(current)) + index_ * slot
                                     : static_cast<const uint8_t *>(call.parts[index_].data) + current * unit * element;
        continue;
      }
      const uint64_t number = segment_->block(peer).announcements[sequence_ & 1].written + uint64_t(current);
      await(execution, peer, segment_->block(peer).written.value, number + 1);
      sources_[size_t(peer)] = segment_->tile(peer, number) + index_ * slot;
    }
    if (length > 0) {
      reduce(output + current * unit * element, sources_.data(), nullptr, ranks_, length, call.dtype, call.reduction);
      if (call.reduction == LK_AVG) divide(output + current * unit * element, ranks_, length, call.dtype);
    }
    publish(own.consumed, ++consumed_);
  }
  for (int peer = 0; peer < ranks_; ++peer)
    if (peer != index_)
      unread_[size_t(peer)] = segment_->block(peer).announcements[sequence_ & 1].consumed + uint64_t(rounds);
}

}  // namespace lowerkit::collective
