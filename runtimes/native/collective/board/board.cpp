#include "board.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "untrusted.h"
#include "interruption.h"
#include "shared_futex.h"

namespace lowerkit::collective {
namespace {

constexpr int64_t kOneShotLimit = 16 << 10;
constexpr int64_t kStreamingLimit = 1 << 20;
constexpr int kQuickLooks = 300;  // about half a microsecond
constexpr int64_t kSpin = 20000;
constexpr int64_t kQuickYield = 2500;  // giving way takes longer where another thread ran
constexpr int64_t kShortSleep = 200000;
// How often a crowded rank gives way before it sleeps. Each time puts it a whole time slice behind the others in the
// scheduler's books: who gave way a thousand times cannot run for a millisecond after its turn has come.
constexpr int kYields = 16;
constexpr int64_t kCheckEvery = 20000000;  // how often a sleeper looks whether the rank it waits for is alive

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::string in_seconds(int64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", double(nanoseconds) * 1e-9);
  return text;
}

int64_t chosen(int64_t tuned, int64_t standard) { return tuned > 0 ? tuned : standard; }

}  // namespace

Board::Board(Membership &membership, std::vector<int> local_ranks, int index, std::unique_ptr<Segment> segment,
             const lk_tuning &tuning, std::vector<int> connections, std::vector<int> processes)
    : membership_(membership),
      local_ranks_(std::move(local_ranks)),
      index_(index),
      ranks_(int(local_ranks_.size())),
      segment_(std::move(segment)),
      connections_(std::move(connections)),
      processes_(std::move(processes)),
      one_shot_limit_(std::clamp(chosen(tuning.one_shot_limit, kOneShotLimit), kLinePayload, kOneShotBytes)),
      streaming_limit_(chosen(tuning.streaming_limit, kStreamingLimit)),
      spin_nanoseconds_(chosen(tuning.spin_nanoseconds, kSpin)),
      patience_(spin_nanoseconds_),
      arrived_(size_t(ranks_), 0),
      unread_(size_t(ranks_), 0),
      sources_(size_t(ranks_)),
      rounds_(size_t(ranks_), 0),
      table_(size_t(ranks_), 0),
      arena_inputs_(size_t(ranks_), -1),
      arena_outputs_(size_t(ranks_), -1) {
  segment_->add_processors();
}

Board::~Board() { release_arena(); }

void Board::release_arena() {
  if (!arenas_.empty() && !shares_arena_) munmap(arenas_[0], size_t(arena_bytes_) * size_t(ranks_));
  arenas_.clear();
  shares_arena_ = false;
}

void Board::share_arena(const Board &owner, const std::vector<int> &ranks) {
  const std::vector<int> &there = owner.local_ranks_;
  std::vector<uint8_t *> shared;
  for (int rank : local_ranks_) {
    const auto found = std::find(there.begin(), there.end(), ranks[size_t(rank)]);
    if (found == there.end() || owner.arenas_.empty())
      throw Failure(LK_INVALID, "group '" + owner.membership_.name + "' has no arena of rank " +
                                    std::to_string(ranks[size_t(rank)]));
    shared.push_back(owner.arenas_[size_t(found - there.begin())]);
  }
  release_arena();
  arenas_ = std::move(shared);
  arena_bytes_ = owner.arena_bytes_;
  shares_arena_ = true;
}

void *Board::attach_arena(int descriptor, int64_t bytes) {
  if (bytes <= 0 || bytes % kPage || bytes > INT64_MAX / ranks_)
    throw Failure(LK_INVALID, "an arena is a positive multiple of 4096 bytes for each rank");
  release_arena();
  void *mapped = mmap(nullptr, size_t(bytes) * size_t(ranks_), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED)
    throw Failure(LK_RESOURCES, "cannot map an arena of " + std::to_string(bytes) + " bytes for each of " +
                                    std::to_string(ranks_) + " ranks: " + std::strerror(errno));
  // The peers' pages are mapped now and not at the first operation on each of them, which would take twice as long.
  // Kernels before 5.14 refuse: there the first operations map them.
  madvise(mapped, size_t(bytes) * size_t(ranks_), MADV_POPULATE_WRITE);
  arena_bytes_ = bytes;
  for (int i = 0; i < ranks_; ++i) arenas_.push_back(static_cast<uint8_t *>(mapped) + int64_t(i) * bytes);
  return arenas_[size_t(index_)];
}

void Board::run(Execution &execution, const lk_call &call) {
  try {
    membership_.check();
    check_failure();
    entered_ = false;
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != index_ && arrived_[size_t(peer)] < sequence_) await_line(execution, peer, sequence_);
    enter();
    switch (call.operation) {
      case LK_BARRIER:
        return barrier(execution);
      case LK_BROADCAST:
        return broadcast(execution, call);
      case LK_REDUCE:
      case LK_ALL_REDUCE:
        return all_reduce(execution, call);
      case LK_SCATTER:
        return scatter(execution, call);
      case LK_GATHER:
        return gather(execution, call);
      case LK_ALL_GATHER:
        return all_gather(execution, call);
      case LK_REDUCE_SCATTER:
        return reduce_scatter(execution, call);
      case LK_ALL_TO_ALL:
        return all_to_all(execution, call);
      default:
        throw Failure(LK_INVALID, "no such operation on a board");
    }
  } catch (const Failure &failure) {
    // Where there are other hosts the group knows better whom to blame, and reports it.
    if (failure.status() != LK_ABORTED && ranks_ == membership_.size) report_failure(failure.what());
    throw;
  }
}

// --- publishing

void Board::enter() {
  ++sequence_;
  entered_ = true;
  arrived_[size_t(index_)] = sequence_;
  Announcement &own = announcement();
  own.written = written_;
  own.consumed = consumed_;
  own.place = Place::kLine;
  own.bytes = 0;
  own.arena_input = own.arena_output = -1;
}

void Board::publish_line(Execution &execution) {
  RankBlock &block = segment_->block(index_);
  announcement().descriptor = execution.descriptor;
  announcement().number = uint32_t(execution.sequence);
  Line &line = block.lines[sequence_ & 1];
  fingerprints_[sequence_ & 1] = execution.fingerprint;
  line.fingerprint = execution.fingerprint;
  line.sequence.store(sequence_, std::memory_order_seq_cst);
  if (block.sleepers.load(std::memory_order_seq_cst)) wake_all(line.sequence);
  execution.begin();
}

void Board::publish(Counter &counter, uint64_t value) {
  counter.value.store(value, std::memory_order_seq_cst);
  if (segment_->block(index_).sleepers.load(std::memory_order_seq_cst)) wake_all(counter.value);
}

// --- waiting

void Board::await_line(Execution &execution, int peer, uint64_t sequence) {
  Line &line = segment_->block(peer).lines[sequence & 1];
  await(execution, peer, line.sequence, sequence);
  arrived_[size_t(peer)] = sequence;
  if (line.fingerprint != fingerprints_[sequence & 1]) throw_desync(execution, peer, sequence);
}

void Board::await_all_lines(Execution &execution) {
  for (int step = 1; step < ranks_; ++step) await_line(execution, (index_ + step) % ranks_, sequence_);
}

void Board::await_free_tiles(Execution &execution) {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (!unread_[size_t(peer)]) continue;
    await(execution, peer, segment_->block(peer).consumed.value, unread_[size_t(peer)]);
    unread_[size_t(peer)] = 0;
  }
}

// Spin (or, if crowded, give way) for a while; then sleep in the kernel. Sleeper and publisher follow Dekker: the
// sleeper announces itself, then reads the word once more; the publisher writes the word, then reads the announcement.
void Board::await_slowly(Execution &execution, int peer, std::atomic<uint64_t> &word, uint64_t target) {
  execution.begin();
  if (!settled_) {
    // A rank may be bound to one processor and the next to another: what counts is how many they have together.
    crowded_ = ranks_ > segment_->processors();
    quick_looks_ = crowded_ ? 1 : kQuickLooks;
    settled_ = *std::min_element(arrived_.begin(), arrived_.end()) > 0;
  }
  const int64_t start = monotonic_nanoseconds();
  int64_t now = start;
  bool arrived = false;
  for (int yields = 0; crowded_ && !arrived && yields < kYields; ++yields) {
    sched_yield();
    arrived = word.load(std::memory_order_acquire) >= target;
  }
  while (!crowded_ && !arrived && now - start < patience_) {
    for (int i = 0; i < 32 && !arrived; ++i) {
      pause_briefly();
      arrived = word.load(std::memory_order_acquire) >= target;
    }
    if (arrived) break;
    now = monotonic_nanoseconds();
    if (now - start <= alone_) continue;
    // The scheduler may have put the rank waited for on this very processor: it cannot come while this one spins. Where
    // another thread ran, it gets the processor at once the next time.
    const int64_t before = now;
    sched_yield();
    arrived = word.load(std::memory_order_acquire) >= target;
    now = monotonic_nanoseconds();
    alone_ = now - before > kQuickYield ? 0 : kAlone;
  }
  const int64_t asleep = now;
  const bool slept = !arrived;
  bool told = false;
  std::atomic<uint32_t> &sleepers = segment_->block(peer).sleepers;
  while (!arrived) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    uint64_t value = word.load(std::memory_order_seq_cst);
    if (value < target) sleep_while(word, value, std::clamp<int64_t>(execution.deadline.at - now, 1000, kCheckEvery));
    sleepers.fetch_sub(1, std::memory_order_relaxed);
    arrived = word.load(std::memory_order_acquire) >= target;
    now = monotonic_nanoseconds();
    if (arrived) break;
    check_peer(execution, peer, word, target);
    if (on_long_wait && !told && now - start >= execution.deadline.until_told()) {
      told = true;
      on_long_wait(execution, rank_of(peer));
    }
  }
  if (told) on_long_wait(execution, membership_.rank);
  now = monotonic_nanoseconds();
  if (slept && !crowded_) adapt_patience(now - asleep);
  execution.waiting.add(now - start, rank_of(peer));
}

// To be woken takes tens of microseconds, longer than ranks usually spin: while one wakes the other falls asleep, and
// so on with every operation. Who slept shortly therefore spins longer the next time; who slept long was right to
// sleep.
void Board::adapt_patience(int64_t slept) {
  patience_ = slept < kShortSleep ? std::max(patience_, spin_nanoseconds_ + 2 * slept) : spin_nanoseconds_;
}

void Board::note_failure() {
  const auto failure = segment_->reported_failure();
  if (!failure) return;
  const bool of_group = failure->rank() >= 0 && failure->rank() < membership_.size;
  membership_.abort(LK_ABORTED, failure->what(), of_group ? failure->rank() : -1);
}

void Board::check_failure() {
  note_failure();
  membership_.check();
}

void Board::look_after(int peer) {
  note_failure();
  if (connection_ended(peer)) membership_.mark_dead(rank_of(peer));
}

bool Board::process_ended(int peer) const {
  pollfd process{processes_[size_t(peer)], POLLIN, 0};
  return process.fd >= 0 && poll(&process, 1, 0) > 0 && (process.revents & POLLIN);
}

bool Board::connection_ended(int peer) const {
  // A child that the rank forked may hold its connections for as long as it lives.
  if (process_ended(peer)) return true;
  int connection = connections_[size_t(peer)];
  if (connection < 0) return false;
  char byte;
  ssize_t got = recv(connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void Board::check_peer(Execution &execution, int peer, const std::atomic<uint64_t> &word, uint64_t target) {
  if (on_look) on_look();
  check_failure();
  if (connection_ended(peer)) {
    membership_.mark_dead(rank_of(peer));
    // What it published before its end counts.
    if (word.load(std::memory_order_acquire) >= target) return;
    const std::string name = "rank " + std::to_string(rank_of(peer));
    throw Failure(LK_PEER_LOST,
                  name_of(execution) + ": " + name + " has ended (its " +
                      (process_ended(peer) ? "process is gone)" : "connection is closed)") + last_seen(peer),
                  rank_of(peer));
  }
  if (interrupted())
    throw Failure(LK_INTERRUPTED,
                  name_of(execution) + ": interrupted while it waited for rank " + std::to_string(rank_of(peer)),
                  membership_.rank);
  if (execution.deadline.passed(monotonic_nanoseconds())) throw_timeout(execution, peer);
}

// For loops that may wait for nobody.
void Board::check_time(Execution &execution) {
  execution.begin();
  check_failure();
  if (execution.deadline.passed(monotonic_nanoseconds()))
    throw Failure(LK_TIMEOUT, name_of(execution) + ": not done within " + in_seconds(execution.deadline.timeout));
}

// --- errors

std::string Board::name_of(const Execution &execution) const {
  return to_string(execution.descriptor, execution.sequence, membership_.name, membership_.rank);
}

// An error may be noticed in a later operation than the one that the rank did not come to.
std::string Board::last_seen(int peer) const {
  const RankBlock &block = segment_->block(peer);
  const uint64_t last = std::max(block.lines[0].sequence.load(std::memory_order_acquire),
                                 block.lines[1].sequence.load(std::memory_order_acquire));
  const std::string name = "; rank " + std::to_string(rank_of(peer));
  if (last == 0) return name + " has entered no operation of this group yet";
  const Announcement announced = fetched(block.announcements[last & 1]);
  return name + " was last seen in " + to_string(announced.descriptor) + " #" + std::to_string(announced.number);
}

void Board::throw_timeout(const Execution &execution, int peer) const {
  std::string missing;
  for (int other = 0; other < ranks_; ++other) {
    if (other == index_) continue;
    const RankBlock &block = segment_->block(other);
    if (block.lines[sequence_ & 1].sequence.load(std::memory_order_acquire) >= sequence_) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank_of(other));
  }
  std::string message = name_of(execution) + ": waited " + in_seconds(execution.deadline.timeout) + " for rank " +
                        std::to_string(rank_of(peer));
  if (missing.empty()) {
    message += ", which entered it but does not go on";
  } else {
    message += "; not arrived: rank " + missing + last_seen(peer);
  }
  throw Failure(LK_TIMEOUT, message, rank_of(peer));
}

void Board::throw_desync(const Execution &execution, int peer, uint64_t sequence) const {
  auto call_of = [&](int index) {
    const Announcement announced = fetched(segment_->block(index).announcements[sequence & 1]);
    return to_string(announced.descriptor) + " #" + std::to_string(announced.number);
  };
  const std::string here = call_of(index_), there = call_of(peer);
  std::string message = name_of(execution) + ": the ranks called different operations";
  if (!entered_) message += " before this one";
  message += ": rank " + std::to_string(membership_.rank) + " " + here + ", rank " + std::to_string(rank_of(peer)) +
             " " + there;
  if (here == there) message += " with parts of other sizes";
  throw Failure(LK_DESYNC, message, rank_of(peer));
}

void Board::throw_damaged(const Execution &execution, int peer, const char *what) const {
  throw Failure(LK_PROTOCOL,
                name_of(execution) + ": in the memory of rank " + std::to_string(rank_of(peer)) + " " + what +
                    " are none that a rank writes; something in its process, or in another local rank's, wrote there",
                rank_of(peer));
}

}  // namespace lowerkit::collective
