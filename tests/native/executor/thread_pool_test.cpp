// The thread pool where the system does not run its workers: they are held right before and in the middle of a claim.
#include "thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>
#include <vector>

using lowerkit::ThreadPool;

namespace {

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition);  \
      std::_Exit(1);                                                            \
    }                                                                           \
  } while (false)

void sleep_for(int64_t microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

const std::thread::id caller = std::this_thread::get_id();
std::atomic<int> to_hold{0};   // so many of the workers that come by next are held
std::atomic<int> holding{0};   // so many are
std::atomic<int> laziness{0};  // each thread that comes by sleeps for up to as many microseconds

}  // namespace

void around_claim() {
  if (const int most = laziness.load()) {
    thread_local std::mt19937 random(std::hash<std::thread::id>()(std::this_thread::get_id()));
    if (random() % 8 == 0) sleep_for(random() % static_cast<unsigned>(most));
  }
  if (std::this_thread::get_id() == caller) return;
  for (int wanted = to_hold.load(); wanted > 0;) {
    if (!to_hold.compare_exchange_weak(wanted, wanted - 1)) continue;
    for (holding.fetch_add(1); to_hold.load() >= 0;) sleep_for(100);
    holding.fetch_sub(1);
    return;
  }
}

namespace {

// While it lives, `workers` of the pool's run nothing: they have seen a job and not claimed a share of it.
struct Held {
  Held(ThreadPool &pool, int workers) {
    to_hold.store(workers);
    while (holding.load() != workers) {
      ThreadPool::Lease lease(pool);
      lease.run(pool.threads(), [](void *, int64_t, int64_t, int thread) { if (thread == 0) sleep_for(100); }, nullptr);
    }
  }
  ~Held() {
    to_hold.store(-1);
    while (holding.load()) sleep_for(100);
    to_hold.store(0);
  }
};

// A job that counts how often each of its tasks ran, by which threads, in which ranges.
struct Tally {
  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<int>> by_thread;
  std::vector<std::pair<int64_t, int64_t>> ranges;  // by the task that a range begins with

  Tally(int64_t tasks, int threads) : runs(tasks), by_thread(threads), ranges(tasks) {}

  static void count(void *context, int64_t begin, int64_t end, int thread) {
    Tally &tally = *static_cast<Tally *>(context);
    CHECK(0 <= begin && begin < end && end <= static_cast<int64_t>(tally.runs.size()));
    for (int64_t task = begin; task < end; ++task) tally.runs[task].fetch_add(1, std::memory_order_relaxed);
    tally.by_thread[thread].fetch_add(1, std::memory_order_relaxed);
    tally.ranges[begin] = {begin, end};
  }

  void run(ThreadPool &pool) {
    ThreadPool::Lease lease(pool);
    lease.run(static_cast<int64_t>(runs.size()), count, this);
  }

  bool each_ran(int times) const {
    for (const std::atomic<int> &task : runs)
      if (task.load(std::memory_order_relaxed) != times) return false;
    return true;
  }
};

void a_worker_that_does_not_run_holds_nothing_up() {
  for (int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    for (int workers : {1, threads - 1}) {
      Held held(pool, workers);
      Tally tally(17, threads);
      for (int round = 0; round < 200; ++round) tally.run(pool);  // for ever, if it waited
      CHECK(tally.each_ran(200));
      if (workers == threads - 1) CHECK(tally.by_thread[0].load() == 200 * threads);
    }
  }
}

void a_worker_that_runs_again_takes_part_again() {
  ThreadPool pool(2);
  { Held held(pool, 1); }
  Tally tally(2, 2);
  const auto wait = [](void *context, int64_t begin, int64_t end, int thread) {
    if (thread == 0) sleep_for(2000);
    Tally::count(context, begin, end, thread);
  };
  for (int round = 0; round < 2000 && !tally.by_thread[1].load(); ++round) {
    ThreadPool::Lease lease(pool);
    lease.run(2, wait, &tally);
  }
  CHECK(tally.by_thread[1].load());
}

void a_claimed_share_is_waited_for() {
  ThreadPool pool(3);
  int shares_of_workers = 0;
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> finished{0}, by_workers{0};
    std::pair<std::atomic<int> *, std::atomic<int> *> context{&finished, &by_workers};
    const auto slow = [](void *given, int64_t, int64_t, int thread) {
      auto &[done, workers] = *static_cast<std::pair<std::atomic<int> *, std::atomic<int> *> *>(given);
      sleep_for(thread == 0 ? 500 : 3000);
      workers->fetch_add(thread != 0);
      done->fetch_add(1);
    };
    ThreadPool::Lease lease(pool);
    lease.run(3, slow, &context);
    CHECK(finished.load() == 3);
    shares_of_workers += by_workers.load();
  }
  CHECK(shares_of_workers > 0);
}

// Jobs of all sizes, each with memory of its own, while every thread dawdles at its claims.
void late_workers_take_nothing_of_jobs_that_are_over() {
  const int threads = 4;
  ThreadPool pool(threads);
  laziness.store(60);
  std::mt19937 random(2);
  for (int round = 0; round < 4000; ++round) {
    const int64_t tasks = random() % 11;
    Tally tally(tasks, threads);
    tally.run(pool);
    CHECK(tally.each_ran(1));
    const int64_t base = tasks / threads, extra = tasks % threads;
    for (int64_t share = 0, begin = 0; share < threads && begin < tasks; ++share) {
      const int64_t end = begin + base + (share < extra ? 1 : 0);
      CHECK((tally.ranges[begin] == std::pair<int64_t, int64_t>{begin, end}));
      begin = end;
    }
  }
  laziness.store(0);
}

void small_work_wakes_nobody() {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    sleep_for(5000);  // all workers sleep
    Tally tally(3, 3);
    ThreadPool::Lease lease(pool, 1000);
    lease.run(3, Tally::count, &tally);
    CHECK(tally.each_ran(1));
    if (lease.elapsed_nanoseconds() < 50'000) CHECK(tally.by_thread[0].load() == 3);
  }
  // Work that lasts longer than was expected wakes them all the same.
  Tally tally(3, 3);
  const auto slow = [](void *context, int64_t begin, int64_t end, int thread) {
    sleep_for(300);
    Tally::count(context, begin, end, thread);
  };
  sleep_for(5000);
  ThreadPool::Lease lease(pool, 1000);
  for (int round = 0; round < 2000 && tally.by_thread[0].load() == 3 * round; ++round) lease.run(3, slow, &tally);
  CHECK(tally.by_thread[1].load() + tally.by_thread[2].load() > 0);
}

}  // namespace

int main() {
  a_worker_that_does_not_run_holds_nothing_up();
  a_worker_that_runs_again_takes_part_again();
  a_claimed_share_is_waited_for();
  late_workers_take_nothing_of_jobs_that_are_over();
  small_work_wakes_nobody();
  std::puts("ok");
  return 0;
}
