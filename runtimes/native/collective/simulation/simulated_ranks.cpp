#include "simulated_ranks.h"

#include <algorithm>
#include <chrono>

#include "clock.h"

namespace lowerkit::collective {

SimulatedRanks::SimulatedRanks(int ranks, std::map<int, uint64_t> deaths, int64_t patience, bool ruled)
    : size(ranks), deaths_(std::move(deaths)), patience_(patience), ranks_(size_t(ranks)) {
  for (Rank &rank : ranks_) {
    rank.since = monotonic_nanoseconds();
    rank.ruled = ruled;
  }
}

void SimulatedRanks::sleep(int number, int64_t until) {
  std::unique_lock<std::mutex> lock(mutex_);
  Rank &rank = ranks_[size_t(number)];
  if (rank.died_at != INT64_MAX) throw RankDied(number);
  rank.absent = false;
  Sleeper self;
  self.until = std::min(until, rank.next_event);
  const bool again = rank.alarm || self.until <= now();
  rank.alarm = false;
  (again ? rank.ready.push_back(&self) : rank.sleeping.push_back(&self));
  pass_turn(rank);
  advance_if_idle();
  await_turn(lock, self);
  if (rank.died_at != INT64_MAX) throw RankDied(number);
}

void SimulatedRanks::await_turn(std::unique_lock<std::mutex> &lock, Sleeper &self) {
  while (!self.granted)
    if (self.changed.wait_for(lock, std::chrono::nanoseconds(patience_)) == std::cv_status::timeout) find_absent();
}

// With the lock held, as all below that say nothing else.
void SimulatedRanks::pass_turn(Rank &rank) {
  rank.occupied = !rank.ready.empty();
  if (!rank.occupied) return;
  Sleeper *next = rank.ready.front();
  rank.ready.pop_front();
  rank.since = monotonic_nanoseconds();
  next->granted = true;
  next->changed.notify_one();
}

// Those that sleep until `until` or for less, in the order in which they fell asleep.
void SimulatedRanks::make_ready(Rank &rank, int64_t until) {
  auto awake = std::stable_partition(rank.sleeping.begin(), rank.sleeping.end(),
                                     [&](const Sleeper *sleeper) { return sleeper->until > until; });
  rank.ready.insert(rank.ready.end(), awake, rank.sleeping.end());
  rank.sleeping.erase(awake, rank.sleeping.end());
  if (!rank.occupied) pass_turn(rank);
}

void SimulatedRanks::advance_if_idle() {
  for (;;) {
    int64_t next = INT64_MAX;
    for (const Rank &rank : ranks_) {
      if (rank.occupied && !rank.absent) return;
      for (const Sleeper *sleeper : rank.sleeping) next = std::min(next, sleeper->until);
    }
    if (next == INT64_MAX) return;
    now_.store(std::max(now(), next), std::memory_order_release);
    for (Rank &rank : ranks_) {
      if (rank.next_event <= now()) rank.next_event = INT64_MAX;
      make_ready(rank, now());
    }
  }
}

void SimulatedRanks::find_absent() {
  const int64_t real = monotonic_nanoseconds();
  for (Rank &rank : ranks_)
    if (rank.occupied && !rank.absent && real - rank.since >= patience_) rank.absent = rank.was_absent = true;
  advance_if_idle();
}

void SimulatedRanks::event(int number, int64_t at) {
  std::lock_guard<std::mutex> lock(mutex_);
  Rank &rank = ranks_[size_t(number)];
  // The clock may have gone on since a rank that holds nobody up, an absent or a dead one, looked at it. An event that
  // is over would never be: the threads of this rank would look in turns, and no time would pass.
  at = std::max(at, now() + 1);
  // Also for a thread of the rank that is about to sleep and has looked already.
  rank.next_event = std::min(rank.next_event, at);
  for (Sleeper *sleeper : rank.sleeping) sleeper->until = std::min(sleeper->until, at);
  advance_if_idle();
}

void SimulatedRanks::wake(int number) {
  std::lock_guard<std::mutex> lock(mutex_);
  Rank &rank = ranks_[size_t(number)];
  rank.alarm = true;
  make_ready(rank, INT64_MAX);
}

void SimulatedRanks::enter(int number) {
  std::lock_guard<std::mutex> lock(mutex_);
  Rank &rank = ranks_[size_t(number)];
  if (rank.groups++ || rank.died_at != INT64_MAX) return;
  rank.occupied = true;
  rank.absent = false;
  rank.since = monotonic_nanoseconds();
}

void SimulatedRanks::leave(int number) {
  std::lock_guard<std::mutex> lock(mutex_);
  Rank &rank = ranks_[size_t(number)];
  if (--rank.groups || rank.died_at != INT64_MAX) return;
  pass_turn(rank);
  advance_if_idle();
}

std::thread SimulatedRanks::start_thread(int number, std::function<void()> body) {
  auto ticket = std::make_shared<Sleeper>();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Rank &rank = ranks_[size_t(number)];
    ticket->granted = rank.died_at != INT64_MAX;
    if (!ticket->granted) rank.ready.push_back(ticket.get());
  }
  return std::thread([this, number, ticket, body = std::move(body)] {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      await_turn(lock, *ticket);
    }
    body();
    std::lock_guard<std::mutex> lock(mutex_);
    Rank &rank = ranks_[size_t(number)];
    if (rank.died_at == INT64_MAX) pass_turn(rank);
    advance_if_idle();
  });
}

bool SimulatedRanks::send_frame(int number, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Rank &rank = ranks_[size_t(number)];
  const auto death = deaths_.find(number);
  if (rank.ruled && rank.died_at == INT64_MAX && death != deaths_.end() && rank.frames >= death->second) die(number);
  if (rank.died_at != INT64_MAX) throw RankDied(number);
  if (!rank.ruled) return false;
  ++rank.frames;
  rank.bytes += bytes;
  return true;
}

void SimulatedRanks::begin_rules(int number) {
  std::lock_guard<std::mutex> lock(mutex_);
  ranks_[size_t(number)].ruled = true;
}

std::pair<uint64_t, uint64_t> SimulatedRanks::sent(int number) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Rank &rank = ranks_[size_t(number)];
  return {rank.frames, rank.bytes};
}

// Its threads have no turns any more: each ends by itself.
void SimulatedRanks::die(int number) {
  Rank &dying = ranks_[size_t(number)];
  dying.died_at = now();
  make_ready(dying, INT64_MAX);
  for (Sleeper *sleeper : dying.ready) {
    sleeper->granted = true;
    sleeper->changed.notify_one();
  }
  dying.ready.clear();
  dying.occupied = false;
  for (Rank &rank : ranks_) {
    rank.next_event = std::min(rank.next_event, now() + 1);
    for (Sleeper *sleeper : rank.sleeping) sleeper->until = std::min(sleeper->until, now() + 1);
  }
  advance_if_idle();
}

void SimulatedRanks::check_alive(int number) const {
  if (died(number)) throw RankDied(number);
}

bool SimulatedRanks::died(int number) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ranks_[size_t(number)].died_at != INT64_MAX;
}

bool SimulatedRanks::seen_dead(int number) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ranks_[size_t(number)].died_at < now();
}

std::vector<int> SimulatedRanks::absent() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int> found;
  for (int rank = 0; rank < size; ++rank)
    if (ranks_[size_t(rank)].was_absent) found.push_back(rank);
  return found;
}

}  // namespace lowerkit::collective
