// Collectives as steps of a compiled program: every operation in every phase, groups that end before their steps, runs
// that end before what they started, and arenas that are replaced.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <thread>
#include <vector>

#include "check.h"
#include "ranks.h"

namespace {

constexpr int64_t kSecond = 1000000000;
const int64_t kCounts[] = {0, 1, 37, 5000, 200000};

struct Dims {
  int64_t values[7];
  Dims(int64_t phase, int64_t operation, int64_t count, int64_t ranks, int64_t root = 0)
      : values{phase, operation, LK_I32, LK_SUM, count, ranks, root} {}
};

int64_t call(lk_step *step, const Dims &dims, void *input, void *output) {
  void *const buffers[] = {input, output};
  return lk_step_call(reinterpret_cast<uint64_t>(step), buffers, dims.values);
}

std::vector<int32_t> filled(int64_t count, int32_t value) { return std::vector<int32_t>(size_t(count), value); }

bool among(int64_t operation, std::initializer_list<int64_t> operations) {
  return std::find(operations.begin(), operations.end(), operation) != operations.end();
}

// Input and output of an operation at `rank`, and whether the output is right. The last rank is the root.
struct Case {
  Case(int64_t operation, int rank, int ranks, int64_t count)
      : operation(operation), rank(rank), ranks(ranks), count(count) {
    const int64_t whole = count * ranks;
    input = filled(among(operation, {LK_REDUCE_SCATTER, LK_ALL_TO_ALL}) ? whole : count, 0);
    for (size_t i = 0; i < input.size(); ++i) input[i] = value(rank, int64_t(i));
    output = filled(among(operation, {LK_ALL_GATHER, LK_ALL_TO_ALL}) ? whole : count, -1);
  }
  static int32_t value(int rank, int64_t at) { return int32_t(at * 7 + rank * 1000); }
  int32_t sum(int64_t at) const {
    int32_t total = 0;
    for (int peer = 0; peer < ranks; ++peer) total += value(peer, at);
    return total;
  }
  int32_t expected(int64_t at) const {
    switch (operation) {
      case LK_ALL_GATHER:
        return value(int(at / count), at % count);
      case LK_ALL_TO_ALL:
        return value(int(at / count), rank * count + at % count);
      case LK_REDUCE_SCATTER:
        return sum(rank * count + at);
      case LK_BROADCAST:
        return value(ranks - 1, at);
      case LK_REDUCE:
        return rank == ranks - 1 ? sum(at) : 0;
      default:
        return sum(at);
    }
  }
  bool right() const {
    for (size_t i = 0; i < output.size(); ++i)
      if (output[i] != expected(int64_t(i))) return false;
    return true;
  }
  int64_t run(lk_step *step, int64_t phase) {
    const bool rooted = among(operation, {LK_BROADCAST, LK_REDUCE});
    return call(step, {phase, operation, count, ranks, rooted ? ranks - 1 : 0}, input.data(), output.data());
  }
  const int64_t operation;
  const int rank;
  const int ranks;
  const int64_t count;
  std::vector<int32_t> input, output;
};

void every_operation(int ranks, int hosts) {
  Ranks groups(ranks, 120 * kSecond, {}, hosts);
  groups.run([&](int rank, lk_group *group) {
    lk_step *step = nullptr;
    CHECK(lk_step_create(group, &step) == LK_OK);
    for (int64_t count : kCounts)
      for (int64_t operation :
           {LK_ALL_REDUCE, LK_ALL_GATHER, LK_REDUCE_SCATTER, LK_ALL_TO_ALL, LK_BROADCAST, LK_REDUCE}) {
        CHECK(lk_step_begin(step) == LK_OK);
        Case once(operation, rank, ranks, count), first(operation, rank, ranks, count),
            second(operation, rank, ranks, count);
        CHECK(once.run(step, LK_STEP_RUN) == LK_OK);
        CHECK(once.right());
        for (Case *each : {&first, &second}) CHECK(each->run(step, LK_STEP_START) == LK_OK);
        for (Case *each : {&second, &first}) CHECK(each->run(step, LK_STEP_DONE) == LK_OK);
        CHECK(first.right() && second.right());
      }
    lk_step_release(step);
  });
}

TEST(every_operation_in_every_phase) {
  every_operation(1, 1);
  every_operation(3, 1);
  every_operation(4, 2);
  every_operation(2, 0);
}

// Two messages from each rank to the next are under way; the ends of the second come first.
void messages(int ranks, int hosts) {
  Ranks groups(ranks, 120 * kSecond, {}, hosts);
  groups.run([&](int rank, lk_group *group) {
    lk_step *step = nullptr;
    CHECK(lk_step_create(group, &step) == LK_OK);
    const int after = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int64_t count : kCounts) {
      std::vector<int32_t> sent[2], received[2];
      int32_t token = 0;
      for (int i : {0, 1}) {
        sent[i] = filled(count, 10 * rank + i);
        received[i] = filled(count, -1);
      }
      auto send = [&](int64_t phase, int i) {
        return call(step, {phase, LK_SEND, count, ranks, after}, sent[i].data(), &token);
      };
      auto receive = [&](int64_t phase, int i) {
        return call(step, {phase, LK_RECEIVE, count, ranks, before}, received[i].data(), received[i].data());
      };
      for (int i : {0, 1}) CHECK(send(LK_STEP_START, i) == LK_OK);
      if (rank % 2) {
        for (int i : {0, 1}) CHECK(receive(LK_STEP_RUN, i) == LK_OK);
      } else {
        for (int i : {0, 1}) CHECK(receive(LK_STEP_START, i) == LK_OK);
        for (int i : {1, 0}) CHECK(receive(LK_STEP_DONE, i) == LK_OK);
      }
      for (int i : {1, 0}) CHECK(send(LK_STEP_DONE, i) == LK_OK);
      CHECK(token == 0);
      for (int i : {0, 1}) CHECK(received[i] == filled(count, 10 * before + i));
    }
    lk_step_release(step);
  });
}

TEST(messages_in_their_order) {
  messages(2, 1);
  messages(3, 1);
  messages(4, 2);
  messages(2, 0);
}

TEST(messages_of_another_size) {
  for (const int64_t expected : {5, 20}) {
    Ranks groups(2);
    groups.run([&](int rank, lk_group *group) {
      lk_step *step = nullptr;
      CHECK(lk_step_create(group, &step) == LK_OK);
      std::vector<int32_t> data = filled(20, 1);
      if (rank == 0) {
        call(step, {LK_STEP_RUN, LK_SEND, 10, 2, 1}, data.data(), nullptr);
      } else {
        CHECK(call(step, {LK_STEP_RUN, LK_RECEIVE, expected, 2, 0}, data.data(), data.data()) == LK_DESYNC);
        CHECK(std::strstr(lk_last_error(), "rank 0") && std::strstr(lk_last_error(), "40"));
      }
      lk_step_release(step);
    });
  }
}

// What another rank told is known without an operation.
TEST(a_group_that_another_rank_aborted) {
  for (const int hosts : {1, 2}) {
    Ranks groups(2, 120 * kSecond, {}, hosts);
    CHECK(lk_group_look(groups.group(1)) == LK_OK);
    lk_group_abort(groups.group(0), "enough");
    lk_status status = LK_OK;
    for (int turn = 0; turn < 24000 && status == LK_OK; ++turn) {
      status = lk_group_look(groups.group(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    CHECK(status == LK_ABORTED);
    CHECK(std::strstr(lk_last_error(), "enough"));
  }
}

TEST(what_no_step_can_be) {
  Ranks groups(1);
  lk_step *step = nullptr;
  CHECK(lk_step_create(groups.group(0), &step) == LK_OK);
  std::vector<int32_t> data = filled(8, 1);
  CHECK(call(step, {LK_STEP_RUN, LK_ALL_REDUCE, 8, 2}, data.data(), data.data()) == LK_INVALID);
  CHECK(std::strstr(lk_last_error(), "2 ranks in a group of 1"));
  CHECK(call(step, {LK_STEP_DONE, LK_ALL_REDUCE, 8, 1}, data.data(), data.data()) == LK_INVALID);
  CHECK(std::strstr(lk_last_error(), "none has started"));
  CHECK(call(step, {LK_STEP_RUN, LK_ALL_REDUCE, 4, 1}, data.data(), data.data() + 2) == LK_INVALID);
  CHECK(call(step, {LK_STEP_RUN, 77, 8, 1}, data.data(), data.data()) == LK_INVALID);
  CHECK(call(step, {LK_STEP_RUN, LK_ALL_REDUCE, 8, 1}, data.data(), data.data()) == LK_OK);
  lk_step_release(step);
}

TEST(a_group_that_ends_before_its_steps) {
  Ranks groups(2);
  lk_step *idle = nullptr, *busy = nullptr;
  CHECK(lk_step_create(groups.group(0), &idle) == LK_OK);
  CHECK(lk_step_create(groups.group(0), &busy) == LK_OK);
  std::vector<int32_t> input = filled(1000, 1), output = filled(1000, 2);
  CHECK(call(busy, {LK_STEP_START, LK_ALL_REDUCE, 1000, 2}, input.data(), output.data()) == LK_OK);
  groups.end(0);
  for (lk_step *step : {idle, busy}) {
    CHECK(lk_step_begin(step) == LK_ABORTED);
    CHECK(std::strstr(lk_last_error(), "closed on this rank"));
    CHECK(call(step, {LK_STEP_RUN, LK_ALL_REDUCE, 1000, 2}, input.data(), output.data()) == LK_ABORTED);
    CHECK(lk_step_settle(step, nullptr) == LK_OK);
    CHECK(lk_step_settle(step, "again") == LK_OK);
    lk_step_release(step);
  }
  lk_step_release(nullptr);
}

// The other rank never comes: what was started must be over before its memory is given back.
TEST(runs_that_end_before_what_they_started) {
  for (const bool released : {false, true}) {
    Ranks groups(2);
    lk_step *step = nullptr;
    CHECK(lk_step_create(groups.group(0), &step) == LK_OK);
    {
      std::vector<int32_t> input = filled(100000, 1), output = filled(100000, 2);
      CHECK(call(step, {LK_STEP_START, LK_ALL_REDUCE, 100000, 2}, input.data(), output.data()) == LK_OK);
      CHECK(call(step, {LK_STEP_START, LK_ALL_REDUCE, 50000, 2}, output.data(), input.data()) == LK_OK);
      if (released)
        lk_step_release(step);
      else
        CHECK(lk_step_settle(step, "the run has ended") == LK_OK);
    }
    char reason[256];
    CHECK(lk_group_aborted(groups.group(0), reason, sizeof(reason)));
    CHECK(std::strstr(reason, released ? "given back" : "the run has ended"));
    if (!released) {
      CHECK(lk_step_begin(step) == LK_ABORTED);
      lk_step_release(step);
    }
    std::vector<int32_t> data = filled(100000, 1);
    lk_call late{};
    late.operation = LK_ALL_REDUCE;
    late.dtype = LK_I32;
    late.count = 100000;
    late.input = late.output = data.data();
    const lk_status status = lk_run(groups.group(1), &late);
    CHECK(status == LK_ABORTED || status == LK_PEER_LOST);
  }
}

// Without a reason it waits for the other ranks, and the group goes on.
TEST(what_was_started_may_come_to_its_end) {
  Ranks groups(2);
  groups.run([&](int rank, lk_group *group) {
    lk_step *step = nullptr;
    CHECK(lk_step_create(group, &step) == LK_OK);
    Case first(LK_ALL_REDUCE, rank, 2, 3000), second(LK_ALL_REDUCE, rank, 2, 3000);
    if (rank) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(call(step, {LK_STEP_START, LK_ALL_REDUCE, 3000, 2}, first.input.data(), first.output.data()) == LK_OK);
    CHECK(lk_step_settle(step, nullptr) == LK_OK);
    CHECK(first.right());
    CHECK(lk_step_begin(step) == LK_OK);
    CHECK(call(step, {LK_STEP_RUN, LK_ALL_REDUCE, 3000, 2}, second.input.data(), second.output.data()) == LK_OK);
    CHECK(second.right());
    lk_step_release(step);
  });
}

TEST(an_arena_that_takes_the_place_of_another) {
  constexpr int kRanks = 3;
  Ranks groups(kRanks);
  const int64_t sizes[] = {int64_t(1) << 20, int64_t(1) << 22, int64_t(1) << 21};
  int memory[3];
  for (int i = 0; i < 3; ++i) {
    memory[i] = memfd_create("arena", MFD_CLOEXEC);
    REQUIRE(ftruncate(memory[i], kRanks * sizes[i]) == 0, "arena");
  }
  groups.run([&](int rank, lk_group *group) {
    lk_step *step = nullptr;
    CHECK(lk_step_create(group, &step) == LK_OK);
    for (int i = 0; i < 3; ++i) {
      void *own = nullptr;
      CHECK(lk_group_attach_arena(group, memory[i], sizes[i], &own) == LK_OK);
      const int64_t count = sizes[i] / 8;
      auto *input = static_cast<int32_t *>(own), *output = input + count;
      for (int round = 0; round < 3; ++round) {
        for (int64_t at = 0; at < count; ++at) input[at] = Case::value(rank, at) + round;
        CHECK(call(step, {LK_STEP_RUN, LK_ALL_REDUCE, count, kRanks}, input, output) == LK_OK);
        bool right = true;
        for (int64_t at = 0; at < count; ++at)
          right = right && output[at] == 3 * int32_t(at * 7 + 1000 + round);
        CHECK(right);
      }
    }
    lk_step_release(step);
  });
  for (int descriptor : memory) close(descriptor);
}

// A group with the same ranks in the opposite order, and one that has an arena of its own before.
TEST(an_arena_of_another_group) {
  constexpr int kRanks = 3;
  constexpr int64_t kBytes = int64_t(1) << 21;
  Ranks whole(kRanks), reversed(kRanks);
  int memory[2];
  for (int &descriptor : memory) {
    descriptor = memfd_create("arena", MFD_CLOEXEC);
    REQUIRE(ftruncate(descriptor, kRanks * kBytes) == 0, "arena");
  }
  const int32_t ranks[kRanks] = {2, 1, 0};
  whole.run([&](int rank, lk_group *group) {
    lk_group *other = reversed.group(kRanks - 1 - rank);
    CHECK(lk_group_share_arena(other, group, ranks) == LK_INVALID);
    void *own = nullptr, *replaced = nullptr;
    CHECK(lk_group_attach_arena(other, memory[1], kBytes, &replaced) == LK_OK);
    CHECK(lk_group_attach_arena(group, memory[0], kBytes, &own) == LK_OK);
    const int32_t none[kRanks] = {0, 1, 7};
    CHECK(lk_group_share_arena(other, group, none) == LK_INVALID);
    CHECK(std::strstr(lk_last_error(), "rank 7"));
    CHECK(lk_group_share_arena(other, group, ranks) == LK_OK);
    lk_step *step = nullptr;
    CHECK(lk_step_create(other, &step) == LK_OK);
    const int64_t count = kBytes / 8;
    auto *input = static_cast<int32_t *>(own), *output = input + count;
    for (int round = 0; round < 3; ++round) {
      for (int64_t at = 0; at < count; ++at) input[at] = Case::value(rank, at) + round;
      CHECK(call(step, {LK_STEP_RUN, LK_ALL_REDUCE, count, kRanks}, input, output) == LK_OK);
      bool right = true;
      for (int64_t at = 0; at < count; ++at) right = right && output[at] == 3 * int32_t(at * 7 + 1000 + round);
      CHECK(right);
    }
    lk_step_release(step);
  });
  for (int descriptor : memory) close(descriptor);
}

}  // namespace

int main(int count, char **arguments) { return check::run(count > 1 ? arguments[1] : ""); }
