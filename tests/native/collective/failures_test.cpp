// What ranks are told when one of them does something else, nothing, or ends: within the deadline, with names.
#include <chrono>
#include <cstring>
#include <future>

#include "ranks.h"

namespace {

constexpr int64_t kSecond = 1000000000;

lk_call all_reduce(float *data, int64_t count) {
  lk_call call{};
  call.operation = LK_ALL_REDUCE;
  call.dtype = LK_F32;
  call.count = count;
  call.input = call.output = data;
  call.factor = 1;
  return call;
}

bool says(const char *text) { return std::strstr(lk_last_error(), text) != nullptr; }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rank 1 makes another call: both are told, with both calls.
void check_desync(int64_t here, int64_t there, int operation) {
  Ranks ranks(3);
  std::atomic<int> desyncs{0}, aborted{0};
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(400000);
    lk_call call = all_reduce(data.data(), rank == 1 ? there : here);
    if (rank == 1) call.operation = operation;
    lk_status status = lk_run(group, &call);
    // A broadcast's root may be through before the others differ: it learns it at its next call.
    if (status == LK_OK) {
      lk_call next = all_reduce(data.data(), 4);
      status = lk_run(group, &next);
    }
    if (status == LK_DESYNC) {
      ++desyncs;
      REQUIRE(says("all_reduce #1") || says("#2") || says("broadcast #1"), "rank %d", rank);
      REQUIRE(says("group 'test'") && says("rank 1"), "rank %d", rank);
    } else {
      REQUIRE(status == LK_ABORTED, "status %s", lk_status_name(status));
      ++aborted;
    }
    lk_call again = all_reduce(data.data(), 4);
    REQUIRE(lk_run(group, &again) == LK_ABORTED, "after a desync");
  });
  REQUIRE(desyncs >= 1, "nobody saw the desync");
}

// The last rank never comes: the others are told its name after the deadline, and not much later.
void check_timeout(int size, int64_t count) {
  Ranks ranks(size, kSecond / 4);
  auto start = std::chrono::steady_clock::now();
  std::atomic<int> timeouts{0};
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(static_cast<size_t>(count));
    lk_call call = all_reduce(data.data(), count);
    if (rank == size - 1) return;
    lk_status status = lk_run(group, &call);
    const std::string name = "rank " + std::to_string(size - 1);
    REQUIRE(status == LK_TIMEOUT || status == LK_ABORTED, "status %s", lk_status_name(status));
    if (status == LK_TIMEOUT) {
      ++timeouts;
      REQUIRE(says("not arrived") && says("has entered no operation of this group yet"), "message");
    }
    REQUIRE(says(name.c_str()) && says("all_reduce #1"), "message");
  });
  REQUIRE(timeouts >= 1, "nobody timed out");
  REQUIRE(seconds_since(start) < 100, "%g s", seconds_since(start));
}

// Rank 1 ends in the midst: the others hear of it at once, although their deadline is far.
void check_end(int64_t count) {
  Ranks ranks(3, 300 * kSecond);
  auto start = std::chrono::steady_clock::now();
  std::atomic<int> lost{0};
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(static_cast<size_t>(count));
    lk_call call = all_reduce(data.data(), count);
    REQUIRE(lk_run(group, &call) == LK_OK, "first");
    if (rank == 1) return ranks.end(1);
    lk_status status = lk_run(group, &call);
    REQUIRE(status == LK_PEER_LOST || status == LK_ABORTED, "status %s", lk_status_name(status));
    REQUIRE(says("rank 1") && says("all_reduce #2"), "message");
    if (status == LK_PEER_LOST) ++lost;
    REQUIRE(status != LK_PEER_LOST || says("; rank 1 was last seen in all_reduce(sum, f32 x "), "message");
    REQUIRE(status != LK_PEER_LOST || says(") #1"), "message");
    uint8_t dead[3];
    lk_group_dead(group, dead);
    REQUIRE(status != LK_PEER_LOST || dead[1], "not marked dead");
  });
  REQUIRE(lost >= 1, "nobody saw it");
  REQUIRE(seconds_since(start) < 100, "%g s", seconds_since(start));
}

// What had arrived before a rank ended is still delivered: a non-root of reduce may leave at once.
void check_early_leaver() {
  Ranks ranks(3, 120 * kSecond);
  ranks.run([&](int rank, lk_group *group) {
    float data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    lk_call call = all_reduce(data, 8);
    call.operation = LK_REDUCE;
    call.root = 0;
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    REQUIRE(lk_run(group, &call) == LK_OK, "reduce");
    if (rank == 1) ranks.end(1);
    REQUIRE(rank != 0 || data[7] == 3, "%g", double(data[7]));
  });
}

void check_abort() {
  Ranks ranks(2, 300 * kSecond);
  auto start = std::chrono::steady_clock::now();
  std::promise<void> waits;
  ranks.run([&](int rank, lk_group *group) {
    float data[8] = {};
    lk_call call = all_reduce(data, 8);
    if (rank == 1) {
      waits.get_future().wait();  // not for a time: rank 0 may be that late
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      lk_group_abort(group, "the user wants it");
    } else {
      lk_work *work;
      REQUIRE(lk_start(group, &call, &work) == LK_OK, "start");
      REQUIRE(lk_work_wait(work, kSecond / 50) == LK_TIMEOUT, "wait");
      waits.set_value();
      REQUIRE(lk_work_wait(work, 0) == LK_ABORTED, "abort");
      REQUIRE(says("the user wants it"), "message");
      lk_work_release(work);
    }
    REQUIRE(lk_run(group, &call) == LK_ABORTED, "after the abort");
  });
  REQUIRE(seconds_since(start) < 100, "%g s", seconds_since(start));
}

void check_invalid() {
  Ranks ranks(2);
  float data[8] = {};
  lk_call call = all_reduce(data, 8);
  call.dtype = 77;
  call.timeout = -1;
  REQUIRE(lk_run(ranks.group(0), &call) == LK_INVALID && says("unknown type 77") && says("negative timeout"), "both");
  call = all_reduce(nullptr, 8);
  REQUIRE(lk_run(ranks.group(0), &call) == LK_INVALID && says("no input") && says("no output"), "buffers");
  call = all_reduce(data, 8);
  call.reduction = LK_BXOR;
  REQUIRE(lk_run(ranks.group(0), &call) == LK_INVALID && says("bxor of f32"), "bitwise");
  call.operation = LK_BROADCAST;
  call.root = 2;
  REQUIRE(lk_run(ranks.group(0), &call) == LK_INVALID && says("rank 2 is not in the group"), "root");
  ranks.run([&](int rank, lk_group *group) {  // nothing was sent: the group is unharmed
    float own = float(rank);
    lk_call good = all_reduce(&own, 1);
    REQUIRE(lk_run(group, &good) == LK_OK && own == 1, "unharmed");
  });
}

// Each rank has 3 elements for the other, but rank 1 expects 2.
void check_uneven_mismatch() {
  Ranks ranks(2, 120 * kSecond);
  ranks.run([&](int rank, lk_group *group) {
    float data[16] = {};
    lk_part given[2] = {{data, 3}, {data + 4, 3}};
    lk_part taken[2] = {{data + 8, 3}, {data + 12, 3}};
    if (rank == 1) taken[0].count = 2;
    lk_call call{};
    call.operation = LK_ALL_TO_ALL;
    call.input_parts = given;
    call.parts = taken;
    lk_status status = lk_run(group, &call);
    if (rank == 1) REQUIRE(status == LK_DESYNC && says("rank 0 sends 12 bytes, rank 1 expects 8"), "message");
    // Rank 0 was through with its own part: its next call tells.
    if (status == LK_OK) {
      lk_call barrier{};
      barrier.operation = LK_BARRIER;
      REQUIRE(lk_run(group, &barrier) == LK_ABORTED, "rank 0");
    }
  });
}

}  // namespace

int main() {
  for (int64_t count : {4, 3000, 12000, 400000}) {
    check_desync(count, count - 1, LK_ALL_REDUCE);
    check_desync(count, count, LK_BROADCAST);
    check_timeout(3, count);
    check_end(count);
  }
  check_early_leaver();
  check_abort();
  check_invalid();
  check_uneven_mismatch();
  std::puts("failures told");
}
