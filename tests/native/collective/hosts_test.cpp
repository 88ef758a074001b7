// Groups across hosts: numbers begin where they begin on one host, and whoever gives up first, in memory or among
// hosts, names the rank that all of them wait for.
#include <cstring>

#include "ranks.h"

namespace {

constexpr int64_t kSecond = 1000000000;

lk_call all_reduce(std::vector<float> &data, int reduction = LK_SUM) {
  lk_call call{};
  call.operation = LK_ALL_REDUCE;
  call.dtype = LK_F32;
  call.reduction = reduction;
  call.count = int64_t(data.size());
  call.input = call.output = data.data();
  call.factor = 1;
  return call;
}

bool says(const char *text) { return std::strstr(lk_last_error(), text) != nullptr; }

// The first operation is #1 in the flight recorder and in errors, and there is no other.
void check_numbers(int size, int hosts) {
  Ranks ranks(size, 120 * kSecond, {}, hosts);
  ranks.run([&](int rank, lk_group *group) {
    for (size_t count : {1, 30000, 5}) {
      std::vector<float> data(count, 1);
      lk_call call = all_reduce(data);
      REQUIRE(lk_run(group, &call) == LK_OK && data.back() == float(size), "rank %d", rank);
    }
    lk_record records[8];
    REQUIRE(lk_group_records(group, records, 8) == 3, "rank %d", rank);
    for (uint64_t i = 0; i < 3; ++i)
      REQUIRE(records[i].sequence == i + 1 && records[i].operation == LK_ALL_REDUCE, "rank %d", rank);
    if (rank == size - 1) return;
    lk_call barrier{};
    barrier.operation = LK_BARRIER;
    barrier.timeout = kSecond / 4;
    lk_run(group, &barrier);
    REQUIRE(says("barrier #4 of group 'test'"), "rank %d", rank);
  });
}

// In their very first call, on whose behalf they learn of their hosts, all compare themselves with all.
void check_first_call(int hosts) {
  Ranks ranks(4, 120 * kSecond, {}, hosts);
  std::atomic<int> desyncs{0};
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(rank == 2 ? 4 : 3);
    lk_call call = all_reduce(data);
    const lk_status status = lk_run(group, &call);
    REQUIRE(status == LK_DESYNC || status == LK_ABORTED, "rank %d: %s", rank, lk_status_name(status));
    REQUIRE(says("all_reduce #1 (sum, f32 x 3)") || says("all_reduce #1 (sum, f32 x 4)"), "rank %d", rank);
    REQUIRE(says("rank 2"), "rank %d", rank);
    desyncs += status == LK_DESYNC;
  });
  REQUIRE(desyncs >= 1, "nobody saw it");
}

// Parts may differ in length between ranks, also in the first call.
void check_first_call_with_parts(int hosts) {
  Ranks ranks(3, 120 * kSecond, {}, hosts);
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> own(size_t(rank) + 1, float(rank)), all(6);
    const lk_part parts[3] = {{all.data(), 1}, {all.data() + 1, 2}, {all.data() + 3, 3}};
    lk_call call{};
    call.operation = LK_ALL_GATHER;
    call.count = rank + 1;
    call.input = own.data();
    call.parts = parts;
    REQUIRE(lk_run(group, &call) == LK_OK, "rank %d", rank);
    REQUIRE((all == std::vector<float>{0, 1, 1, 2, 2, 2}), "rank %d", rank);
  });
}

// Ranks 0 to 2 are on one host; rank 3, alone or with rank 4 on the other, never comes. Rank 0 waits for it, and 1 and
// 2 wait for rank 0, in memory. Rank 1 gives up first: it must not blame rank 0, and neither must rank 2, which it
// tells.
void check_blame_across_hosts(int operation) {
  Ranks ranks(5, 300 * kSecond, {}, 2);
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(3);
    lk_call call = all_reduce(data);
    REQUIRE(lk_run(group, &call) == LK_OK, "rank %d", rank);
    if (rank >= 3) return;
    call.operation = operation;
    if (rank == 0) call.timeout = 200 * kSecond;  // after a second it tells for whom it waits
    if (rank == 1) call.timeout = 5 * kSecond / 2;
    const lk_status status = lk_run(group, &call);
    REQUIRE(status == (rank == 1 ? LK_TIMEOUT : LK_ABORTED), "rank %d: %s", rank, lk_status_name(status));
    REQUIRE(says("rank 0 waits for rank 3 in #2"), "rank %d", rank);
  });
}

// The other way round: rank 1 does not come, rank 0 waits for it in memory, and rank 2, on the other host, for rank 0.
void check_blame_within_a_host() {
  Ranks ranks(3, 300 * kSecond, {}, 2);
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(3);
    // A mean is a sum among the hosts: who tells that it waits in it must not seem to be in another operation.
    lk_call call = all_reduce(data, LK_AVG);
    REQUIRE(lk_run(group, &call) == LK_OK, "rank %d", rank);
    if (rank == 1) return;
    call.timeout = rank ? 5 * kSecond / 2 : 200 * kSecond;  // as above
    const lk_status status = lk_run(group, &call);
    REQUIRE(status == (rank == 2 ? LK_TIMEOUT : LK_ABORTED), "rank %d: %s", rank, lk_status_name(status));
    REQUIRE(says("rank 0 waits for rank 1 in #2"), "rank %d", rank);
  });
}

// Who hears of an end, maybe in a later operation than the one that is missing, says how far the other one came.
void check_last_seen(int hosts) {
  Ranks ranks(3, 120 * kSecond, {}, hosts);
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(3);
    lk_call call = all_reduce(data);
    REQUIRE(lk_run(group, &call) == LK_OK && lk_run(group, &call) == LK_OK, "rank %d", rank);
    if (rank == 2) return ranks.end(2);
    const lk_status status = lk_run(group, &call);
    REQUIRE(status == LK_PEER_LOST || status == LK_ABORTED, "rank %d: %s", rank, lk_status_name(status));
    REQUIRE(says("rank 2 was last seen in ") && says("#2") && says("all_reduce #3"), "rank %d", rank);
  });
}

// Ranks 0 and 1 share memory. One waits there, in a barrier, and the other for a message of the reduction that it is
// in: only that the first tells what it waits in ends this before the deadline.
// If `late`, rank 0 hears of it while it still waits for rank 2 in the operation before.
void check_desync_between_memory_and_messages(int other, bool first_call, bool late = false) {
  Ranks ranks(3, 300 * kSecond, {}, 2);
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(3);
    lk_call call = all_reduce(data);
    // Who is slow may hear of the failure before it is through with an operation that went well.
    lk_status status = first_call ? LK_OK : lk_run(group, &call);
    call.timeout = 120 * kSecond;
    if (late) {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      call.operation = LK_REDUCE;
      if (status == LK_OK) status = lk_run(group, &call);
    }
    call.operation = rank == 1 ? LK_BARRIER : other;
    const auto start = std::chrono::steady_clock::now();
    if (status == LK_OK) status = lk_run(group, &call);
    lk_call barrier{};
    barrier.operation = LK_BARRIER;
    if (status == LK_OK) status = lk_run(group, &barrier);
    REQUIRE(status == LK_DESYNC || status == LK_ABORTED, "rank %d: %s", rank, lk_status_name(status));
    REQUIRE(says("rank 1") && says("barrier") && says(first_call ? "#1" : late ? "#3" : "#2"), "rank %d", rank);
    REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(100), "rank %d", rank);
  });
}

// Rank 1 calls a barrier where rank 0 sends to it: in memory it meets rank 0 in a later barrier, which is another one.
void check_operations_that_meet_by_chance() {
  Ranks ranks(3, 120 * kSecond, {}, 2);
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(3);
    lk_call call = all_reduce(data);
    lk_status status = lk_run(group, &call);
    call.operation = rank == 1 ? LK_BARRIER : LK_REDUCE;
    call.root = 1;
    if (status == LK_OK) status = lk_run(group, &call);
    lk_call barrier{};
    barrier.operation = LK_BARRIER;
    if (status == LK_OK) status = lk_run(group, &barrier);
    if (rank == 2 && status == LK_OK) status = lk_run(group, &barrier);
    REQUIRE(status == LK_DESYNC || status == LK_ABORTED, "rank %d: %s", rank, lk_status_name(status));
    REQUIRE(says("barrier() #2") && says("#3"), "rank %d", rank);
  });
}

// Who was waited for and came after all is not blamed for what comes later.
void check_forgiven() {
  Ranks ranks(3, 300 * kSecond, {}, 2);
  ranks.run([&](int rank, lk_group *group) {
    std::vector<float> data(3);
    lk_call call = all_reduce(data);
    REQUIRE(lk_run(group, &call) == LK_OK, "rank %d", rank);
    call.timeout = 200 * kSecond;
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1400));  // rank 0 tells after a second
    REQUIRE(lk_run(group, &call) == LK_OK, "rank %d", rank);
    if (rank == 0) return;
    call.timeout = kSecond / 2;
    const lk_status status = lk_run(group, &call);
    REQUIRE(status == LK_TIMEOUT || status == LK_ABORTED, "rank %d: %s", rank, lk_status_name(status));
    REQUIRE(says("rank 0") && !says("waits for"), "rank %d", rank);
  });
}

}  // namespace

int main() {
  for (int hosts : {1, 2, 0}) {
    check_numbers(2, hosts);
    check_numbers(5, hosts);
  }
  for (int hosts : {1, 2, 0}) check_first_call(hosts);
  for (int hosts : {1, 2, 0}) check_first_call_with_parts(hosts);
  check_blame_across_hosts(LK_BARRIER);
  check_blame_across_hosts(LK_ALL_REDUCE);
  check_blame_within_a_host();
  for (int hosts : {1, 2, 0}) check_last_seen(hosts);
  for (int other : {LK_REDUCE, LK_BROADCAST, LK_ALL_REDUCE}) {
    check_desync_between_memory_and_messages(other, false);
    check_desync_between_memory_and_messages(other, true);
  }
  check_desync_between_memory_and_messages(LK_REDUCE, false, true);
  check_operations_that_meet_by_chance();
  check_forgiven();
  std::puts("hosts told apart");
}
