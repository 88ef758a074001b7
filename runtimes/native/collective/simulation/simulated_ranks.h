// Ranks that are threads of one process, on a clock of their own: it stands still while any rank computes, and goes on
// to the next event when all of them wait.
//
//   turn    of the threads of one rank (its caller, and those behind the caller) one runs at a time, in the order in
//   which
//           they became ready
//   event   a moment at which the sleeping threads of a rank look again
//   absent  a rank whose caller computed for longer than `patience`: time goes on without it, until it calls again
//
// What a rank does at one moment the others see at later ones only. So whatever order the host runs the threads in,
// every run with the same rules and the same program has the same outcome, at the same moments.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lowerkit::collective {

// Thrown in the threads of a rank that died: no Failure, because a dead rank handles none.
class RankDied : public std::runtime_error {
 public:
  explicit RankDied(int rank) : std::runtime_error("rank " + std::to_string(rank) + " died in the simulation") {}
};

class SimulatedRanks {
 public:
  // Moments are nanoseconds; the first one is not 0, which means "not yet" in records.
  static constexpr int64_t kStart = 1000000000;

  // Rank r dies as it sends its frame of number deaths[r], from 0 on. `patience` is in nanoseconds of real time.
  // `ruled`: the rules hold at once.
  SimulatedRanks(int size, std::map<int, uint64_t> deaths, int64_t patience, bool ruled = true);

  const int size;
  int64_t now() const { return now_.load(std::memory_order_acquire); }

  // Gives up the turn until `until`, an event or wake(); returns with the turn. Throws RankDied.
  void sleep(int rank, int64_t until);
  void event(int rank, int64_t at);
  // All threads of the rank that sleep look again now.
  void wake(int rank);

  // The rank has one group more, or less; with the last one its caller leaves, and holds nobody up.
  void enter(int rank);
  void leave(int rank);
  // A thread behind the caller. `body` must not throw.
  std::thread start_thread(int rank, std::function<void()> body);

  // Counts a frame that the rank sends. Throws RankDied where it dies of that, or is dead. False: the rules of the
  // network do not hold yet for what it sends, and the frame is not counted.
  bool send_frame(int rank, uint64_t bytes);
  // The rules hold for what the rank sends from now on.
  void begin_rules(int rank);
  // Frames, and their bytes, that the rank sent since the rules hold.
  std::pair<uint64_t, uint64_t> sent(int rank) const;
  // Throws RankDied.
  void check_alive(int rank) const;
  bool died(int rank) const;
  // Whether others can know it.
  bool seen_dead(int rank) const;
  std::vector<int> absent() const;

 private:
  struct Sleeper {
    int64_t until = INT64_MAX;
    bool granted = false;
    std::condition_variable changed;
  };
  struct Rank {
    bool occupied = true;  // a thread has the turn
    bool absent = false;
    bool was_absent = false;
    int64_t since = 0;  // real time: of the turn
    int groups = 0;
    std::vector<Sleeper *> sleeping;
    std::deque<Sleeper *> ready;
    int64_t next_event = INT64_MAX;
    bool alarm = false;  // woken while nobody slept
    bool ruled = true;
    uint64_t frames = 0;
    uint64_t bytes = 0;
    int64_t died_at = INT64_MAX;
  };

  void await_turn(std::unique_lock<std::mutex> &lock, Sleeper &self);
  void pass_turn(Rank &rank);
  void make_ready(Rank &rank, int64_t until);
  void advance_if_idle();
  void find_absent();
  void die(int rank);

  const std::map<int, uint64_t> deaths_;
  const int64_t patience_;
  mutable std::mutex mutex_;
  std::atomic<int64_t> now_{kStart};
  std::vector<Rank> ranks_;
};

// A condition variable of a group's. In a simulation its threads wait on the clock of the ranks.
class Condition {
 public:
  explicit Condition(SimulatedRanks *ranks = nullptr, int rank = 0) : ranks_(ranks), rank_(rank) {}

  template <class Predicate>
  void wait(std::unique_lock<std::mutex> &lock, Predicate holds) {
    if (!ranks_) return changed_.wait(lock, holds);
    while (!holds()) sleep(lock, INT64_MAX);
  }
  template <class Predicate>
  bool wait_for(std::unique_lock<std::mutex> &lock, int64_t nanoseconds, Predicate holds) {
    if (!ranks_) return changed_.wait_for(lock, std::chrono::nanoseconds(nanoseconds), holds);
    const int64_t until = ranks_->now() + nanoseconds;
    while (!holds() && ranks_->now() < until) sleep(lock, until);
    return holds();
  }
  void notify_all() {
    if (ranks_) return ranks_->wake(rank_);
    changed_.notify_all();
  }

 private:
  void sleep(std::unique_lock<std::mutex> &lock, int64_t until) {
    lock.unlock();
    ranks_->sleep(rank_, until);
    lock.lock();
  }

  SimulatedRanks *const ranks_;
  const int rank_;
  std::condition_variable changed_;
};

}  // namespace lowerkit::collective
