// Groups of a simulation over the C interface: the same moments in every run, whatever the machine's threads do;
// deaths, partitions, ranks that compute for too long, and groups that end while others wait.
#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "lowerkit_collective.h"
#include "simulation/simulated_ranks.h"

namespace {

constexpr int64_t kSecond = 1000000000;

struct Simulated {
  Simulated(int ranks, lk_simulation_rules rules, int64_t timeout = 300 * kSecond)
      : size(ranks), groups(size_t(ranks)), logs(size_t(ranks)), statuses(size_t(ranks), LK_OK) {
    if (!rules.patience) rules.patience = 120 * kSecond;
    CHECK(lk_simulation_create(size, &rules, &simulation) == LK_OK);
    std::vector<int32_t> members;
    for (int rank = 0; rank < size; ++rank) members.push_back(rank);
    for (int rank = 0; rank < size; ++rank)
      CHECK(lk_simulation_group(simulation, "world", size, members.data(), rank, timeout, &groups[size_t(rank)]) ==
            LK_OK);
  }
  ~Simulated() { lk_simulation_release(simulation); }

  // What a rank returns is its status; its records are its log.
  void run(const std::function<lk_status(int rank, lk_group *)> &body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        lk_group *group = groups[size_t(rank)];
        statuses[size_t(rank)] = body(rank, group);
        log(rank, group);
        lk_group_destroy(group);
      });
    for (std::thread &thread : threads) thread.join();
  }
  void log(int rank, lk_group *group) {
    std::vector<lk_record> records(1024);
    records.resize(size_t(lk_group_records(group, records.data(), 1024)));
    for (const lk_record &record : records)
      for (int64_t number : {int64_t(record.sequence), int64_t(record.operation), record.started, record.finished,
                             record.waited, int64_t(record.waited_for), int64_t(record.status), record.tag})
        logs[size_t(rank)] += std::to_string(number) + " ";
  }

  const int size;
  lk_simulation *simulation = nullptr;
  std::vector<lk_group *> groups;
  std::vector<std::string> logs;
  std::vector<lk_status> statuses;
};

lk_simulation_rules rough(uint64_t seed) {
  lk_simulation_rules rules{};
  rules.seed = seed;
  rules.latency = 30000;
  rules.jitter = 50000;
  rules.overtaking = 0.2;
  rules.hold_up = 200000;
  return rules;
}

lk_call sum(std::vector<float> &data) {
  lk_call call{};
  call.operation = LK_ALL_REDUCE;
  call.count = int64_t(data.size());
  call.input = call.output = data.data();
  return call;
}

lk_call message(int operation, int peer, int64_t tag, std::vector<float> &data) {
  lk_call call = sum(data);
  call.operation = operation;
  call.root = peer;
  call.tag = tag;
  return call;
}

// Work behind the caller, messages of all lengths from any source, looks.
lk_status busy(int rank, lk_group *group, int size) {
  for (int step = 0; step < 4; ++step) {
    std::vector<float> data(size_t(1 + step * 30000), float(rank));
    lk_call call = sum(data);
    lk_work *behind = nullptr;
    CHECK(lk_start(group, &call, &behind) == LK_OK);
    std::vector<float> text(step % 2 ? 40000 : 3, float(rank));
    if (rank == step % size) {
      for (int i = 1; i < size; ++i) {
        lk_call taken = message(LK_RECEIVE, LK_ANY_SOURCE, step, text);
        CHECK(lk_run(group, &taken) == LK_OK);
      }
    } else {
      lk_call sent = message(LK_SEND, step % size, step, text);
      lk_work *work = nullptr;
      CHECK(lk_start(group, &sent, &work) == LK_OK);
      while (lk_work_test(work) == LK_PENDING) {
      }
      CHECK(lk_work_wait(work, 0) == LK_OK);
      lk_work_release(work);
    }
    CHECK(lk_work_wait(behind, 0) == LK_OK);
    lk_work_release(behind);
    CHECK(data.back() == float(size * (size - 1) / 2));
  }
  return LK_OK;
}

lk_status rounds(lk_group *group, int count) {
  std::vector<float> data(5);
  for (int i = 0; i < count; ++i) {
    lk_call call = sum(data);
    lk_status status = lk_run(group, &call);
    if (status != LK_OK) return status;
  }
  return LK_OK;
}

}  // namespace

TEST(a_seed_gives_the_same_moments) {
  std::vector<std::vector<std::string>> runs;
  for (uint64_t seed : {3, 3, 3, 4}) {
    Simulated world(4, rough(seed));
    world.run([](int rank, lk_group *group) { return busy(rank, group, 4); });
    runs.push_back(world.logs);
  }
  CHECK(runs[0] == runs[1] && runs[0] == runs[2]);
  CHECK(runs[0] != runs[3]);
}

TEST(a_death_at_any_frame_is_the_same_in_every_run) {
  for (int64_t frame : {0, 1, 2, 7, 40}) {
    std::vector<std::vector<std::string>> runs;
    for (int run = 0; run < 2; ++run) {
      const int64_t deaths[] = {-1, frame, -1};
      lk_simulation_rules rules = rough(9);
      rules.dies_at = deaths;
      Simulated world(3, rules);
      world.run([](int, lk_group *group) {
        std::vector<float> data(3);
        lk_call call = sum(data);
        lk_work *works[4];
        for (lk_work *&work : works)
          if (lk_start(group, &call, &work) != LK_OK) work = nullptr;
        lk_status status = rounds(group, 60);
        for (lk_work *work : works)
          if (work) lk_work_release(work);
        return status;
      });
      CHECK(world.statuses[1] == LK_DIED);
      CHECK(world.statuses[0] == LK_PEER_LOST || world.statuses[0] == LK_ABORTED);
      CHECK(world.statuses[2] == LK_PEER_LOST || world.statuses[2] == LK_ABORTED);
      runs.push_back({world.logs[0], world.logs[2]});
    }
    CHECK(runs[0] == runs[1]);
  }
}

TEST(a_partition_of_hours_takes_no_time) {
  const uint8_t island[] = {0, 0, 1};
  lk_simulation_rules rules = rough(1);
  rules.island = island;
  rules.cut_at = 4;
  Simulated world(3, rules, 7200 * kSecond);
  world.run([](int, lk_group *group) { return rounds(group, 20); });
  for (lk_status status : world.statuses) CHECK(status == LK_TIMEOUT || status == LK_ABORTED || status == LK_PEER_LOST);
  CHECK(lk_simulation_now(world.simulation) > 7200 * kSecond);
}

TEST(a_rank_that_computes_too_long_is_left_behind) {
  lk_simulation_rules rules = rough(1);
  rules.patience = kSecond;
  Simulated world(2, rules);
  std::promise<void> done;
  // Rank 1 computes until rank 0, which the machine may hold up for less than a second, has gone on without it.
  world.run([&](int rank, lk_group *group) {
    if (rank == 1) done.get_future().wait();
    const lk_status status = rounds(group, 1);
    if (rank == 0) done.set_value();
    return status;
  });
  CHECK(world.statuses[0] == LK_TIMEOUT);
  CHECK(world.statuses[1] == LK_ABORTED || world.statuses[1] == LK_PEER_LOST);
  uint8_t absent[2];
  lk_simulation_absent(world.simulation, absent);
  CHECK(!absent[0] && absent[1]);
}

TEST(groups_end_while_their_work_waits) {
  Simulated world(3, rough(2));
  world.run([](int rank, lk_group *group) {
    std::vector<float> data(50000);
    lk_call call = sum(data), sent = message(LK_SEND, (rank + 1) % 3, 5, data);
    lk_work *work = nullptr, *behind = nullptr;
    CHECK(lk_start(group, &sent, &work) == LK_OK);
    if (rank != 1) CHECK(lk_start(group, &call, &behind) == LK_OK);
    // Rank 1 leaves at once; the others wait for it.
    lk_status status = behind ? lk_work_wait(behind, 0) : LK_OK;
    CHECK(rank == 1 || status == LK_PEER_LOST || status == LK_ABORTED);
    lk_work_release(work);
    if (behind) lk_work_release(behind);
    return status;
  });
}

TEST(an_abort_from_another_thread_ends_a_wait) {
  Simulated world(2, rough(2), 3600 * kSecond);
  std::promise<void> done;
  const std::shared_future<void> aborted = done.get_future().share();
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    lk_group_abort(world.groups[0], "enough");
    done.set_value();
  });
  // Rank 1 computes: time stands still, and only the abort can end what rank 0 does.
  world.run([&](int rank, lk_group *group) {
    if (rank == 1) aborted.wait();
    const lk_status status = rounds(group, 1);
    aborted.wait();  // a group is not destroyed while another thread is in a call of it
    return status;
  });
  other.join();
  CHECK(world.statuses[0] == LK_ABORTED && world.statuses[1] == LK_ABORTED);
}

// As a rank tells of one that did not hold the clock up while it did so: a dead one, or one that computed for too long.
TEST(an_event_of_the_past_does_not_hold_up_the_clock) {
  lowerkit::collective::SimulatedRanks ranks(1, {}, 120 * kSecond);
  ranks.enter(0);
  const int64_t until = ranks.now() + 1000;
  std::atomic<int> looks{0};
  auto wait = [&] {
    while (ranks.now() < until && looks++ < 100) ranks.sleep(0, until);
  };
  std::thread behind = ranks.start_thread(0, wait);
  ranks.event(0, ranks.now());
  wait();
  ranks.leave(0);
  behind.join();
  CHECK(ranks.now() == until && looks < 100);
}

TEST(rules_and_ranks_that_make_no_sense_are_refused) {
  lk_simulation *none = nullptr;
  lk_simulation_rules rules = rough(1);
  CHECK(lk_simulation_create(2, &rules, &none) == LK_INVALID);  // no patience
  rules.patience = kSecond;
  CHECK(lk_simulation_create(0, &rules, &none) == LK_INVALID);
  rules.loss = 2;
  CHECK(lk_simulation_create(2, &rules, &none) == LK_INVALID);
  rules.loss = 0;
  CHECK(lk_simulation_create(2, &rules, &none) == LK_OK);
  const int32_t members[] = {0, 1}, others[] = {0, 2};
  lk_group *group = nullptr, *again = nullptr;
  CHECK(lk_simulation_group(none, "g", 2, others, 0, kSecond, &again) == LK_INVALID);
  CHECK(lk_simulation_group(none, "g", 2, members, 2, kSecond, &again) == LK_INVALID);
  CHECK(lk_simulation_group(none, "h", 2, members, 0, 0, &again) == LK_INVALID);  // no timeout
  CHECK(lk_simulation_group(none, "g", 2, members, 0, kSecond, &group) == LK_OK);
  CHECK(lk_simulation_group(none, "g", 2, members, 0, kSecond, &again) == LK_INVALID);
  lk_group_destroy(group);
  CHECK(lk_simulation_sleep(none, 5, kSecond) == LK_INVALID);
  lk_simulation_release(none);
}

int main(int count, char **arguments) { return check::run(count > 1 ? arguments[1] : ""); }
