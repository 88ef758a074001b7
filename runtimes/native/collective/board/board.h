// Collectives among ranks that share memory.
//
// Vocabulary
//   index      position of a rank among the local ranks, 0 .. ranks-1
//   line       what a rank publishes when it enters an operation: sequence, fingerprint, and the data if it is small
//   arrival    a rank has arrived at operation s when its line says s; then it is done with reading operation s-2
//   one-shot   data that fits a fixed area; published by the line
//   tiles      larger data, through a ring of kTiles slots; `written`, `reduced`, `consumed` count them
//
// What keeps memory safe
//   1 lines and one-shot areas alternate between two copies. A rank enters operation s only when all others have
//   arrived
//     at s-1; then nobody reads what it wrote in s-2, and that copy is free.
//   2 a tile slot is written again when every reader of its earlier content has counted it as consumed.
//   3 fingerprints are compared before data is read: ranks that called different operations learn so from each other.
//   4 what another rank wrote is not believed: sizes and offsets are copied and checked before they are used, tile numbers
//     are taken modulo the slots, counters are compared alone. What this rank needs again it keeps in memory of its own.
//
// Bytes moved by each of p ranks (n: its buffer), read and written: one-shot all_reduce (p+3)n, two-shot (5-2/p)n,
// buffers in the arena 2n, all_gather (2p+2)n.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "operation.h"
#include "segment.h"

namespace lowerkit::collective {

struct Pull;

constexpr int64_t kSmallTile = 64 << 10;  // the least bytes of a tile, where tiles have room for them

class Board {
 public:
  // `local_ranks` names the ranks by index; `connections[index]` and `processes[index]` (a pidfd) tell of a rank's death,
  // -1: unwatched.
  Board(Membership &membership, std::vector<int> local_ranks, int index, std::unique_ptr<Segment> segment,
        const lk_tuning &tuning, std::vector<int> connections, std::vector<int> processes);

  // Runs `call`, whose root and parts count by index. Throws Failure, having told the other ranks if all of the group
  // are here.
  void run(Execution &execution, const lk_call &call);

  // Where there are other hosts. Called now and then while this rank sleeps, for what comes from there:
  std::function<void()> on_look;
  // when it has waited long for `rank`, and with itself when it no longer does:
  std::function<void(const Execution &execution, int rank)> on_long_wait;

  // Maps one arena of `bytes` for each rank, in the place of an earlier one. Returns this rank's. No operation runs.
  void *attach_arena(int descriptor, int64_t bytes);
  // The arena of another board of this process, which has all ranks of this one and outlives its use: ranks[r] is rank
  // r's number there. No operation runs.
  void share_arena(const Board &owner, const std::vector<int> &ranks);
  ~Board();

  void report_failure(const char *message) { segment_->report_failure(local_ranks_[size_t(index_)], message); }
  // Throws if the segment says that the group failed.
  void check_failure();
  // Takes over into the membership what the segment and the connection say of `peer`. Does not throw.
  void look_after(int peer);
  int index() const { return index_; }

  const Segment &segment() const { return *segment_; }
  const std::vector<int> &local_ranks() const { return local_ranks_; }

 private:
  // board.cpp: entering, publishing, waiting
  void enter();
  void publish_line(Execution &execution);
  void publish(Counter &counter, uint64_t value);
  void await_line(Execution &execution, int peer, uint64_t sequence);
  void await_all_lines(Execution &execution);
  void await(Execution &execution, int peer, std::atomic<uint64_t> &word, uint64_t target) {
    // A pause lasts as long as a cache line needs to come: the first looks do without, and without the clock.
    for (int look = 0; look < quick_looks_; ++look)
      if (word.load(std::memory_order_acquire) >= target) return;
    await_slowly(execution, peer, word, target);
  }
  void await_slowly(Execution &execution, int peer, std::atomic<uint64_t> &word, uint64_t target);
  void adapt_patience(int64_t slept);
  void await_free_tiles(Execution &execution);
  void check_peer(Execution &execution, int peer, const std::atomic<uint64_t> &word, uint64_t target);
  void check_time(Execution &execution);
  void note_failure();
  bool connection_ended(int peer) const;
  bool process_ended(int peer) const;
  std::string last_seen(int peer) const;
  [[noreturn]] void throw_timeout(const Execution &execution, int peer) const;
  [[noreturn]] void throw_desync(const Execution &execution, int peer, uint64_t sequence) const;
  std::string name_of(const Execution &execution) const;
  int rank_of(int peer) const { return local_ranks_[size_t(peer)]; }

  // board_pull.cpp: operations that move data without arithmetic
  void barrier(Execution &execution);
  void broadcast(Execution &execution, const lk_call &call);
  void scatter(Execution &execution, const lk_call &call);
  void gather(Execution &execution, const lk_call &call);
  void all_gather(Execution &execution, const lk_call &call);
  void all_to_all(Execution &execution, const lk_call &call);
  void pull(Execution &execution, Pull &pull);
  void stage(Pull &pull);
  void read_staged(Execution &execution, Pull &pull, int peer);
  void write_tile(const Pull &pull, int64_t round);
  void check_bytes(const Execution &execution, int peer, int64_t there, int64_t here) const;
  void read_table(const Execution &execution, int peer);
  [[noreturn]] void throw_damaged(const Execution &execution, int peer, const char *what) const;

  // board_reduce.cpp: operations that reduce
  void all_reduce(Execution &execution, const lk_call &call);
  void reduce_scatter(Execution &execution, const lk_call &call);
  void all_reduce_staged(Execution &execution, const lk_call &call);
  void all_reduce_tiles(Execution &execution, const lk_call &call);
  void release_arena();
  void all_reduce_arena(Execution &execution, const lk_call &call);
  void reduce_scatter_tiles(Execution &execution, const lk_call &call);
  bool all_in_arena(Execution &execution, const lk_call &call);
  int64_t offset_in_arena(const void *data, int64_t bytes) const;
  int64_t checked_offset(const Execution &execution, int peer, int64_t offset, int64_t bytes) const;

  Announcement &announcement() { return segment_->block(index_).announcements[sequence_ & 1]; }

  Membership &membership_;
  const std::vector<int> local_ranks_;
  const int index_;
  const int ranks_;
  std::unique_ptr<Segment> segment_;
  const std::vector<int> connections_;
  const std::vector<int> processes_;
  int64_t one_shot_limit_;
  int64_t streaming_limit_;
  int64_t spin_nanoseconds_;
  int64_t patience_;  // how long this rank spins at present
  static constexpr int64_t kAlone = 10000;
  int64_t alone_ = kAlone;  // how long a spinning rank keeps its processor to itself, in nanoseconds
  int quick_looks_ = 1;
  bool crowded_ = true;   // more local ranks than processors: nobody spins
  bool settled_ = false;  // that is known for good: all ranks have said where they may run

  uint64_t sequence_ = 0;
  bool entered_ = false;  // whether this rank's line of the running operation is its own to write
  uint64_t fingerprints_[2] = {0, 0};
  std::vector<uint64_t> arrived_;  // by peer: the last operation it is known to have entered
  std::vector<uint64_t> unread_;   // by peer: `consumed` at which it has read all my tiles
  std::vector<const void *> sources_;
  std::vector<int64_t> rounds_;
  Place place_ = Place::kLine;              // where this rank's data lies
  int64_t bytes_ = 0;                       // that each reader gets, see Announcement
  std::vector<int64_t> table_;              // sizes of one rank's parts, by reader
  std::vector<int64_t> arena_inputs_;       // of the running operation, by rank; checked
  std::vector<int64_t> arena_outputs_;
  uint64_t written_ = 0;
  uint64_t reduced_ = 0;
  uint64_t consumed_ = 0;

  std::vector<uint8_t *> arenas_;
  bool shares_arena_ = false;  // it is another board's
  int64_t arena_bytes_ = 0;
};

}  // namespace lowerkit::collective
