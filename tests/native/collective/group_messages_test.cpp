// Sends and receives of a group, between ranks that share memory and between ranks that have sockets alone.
#include <chrono>
#include <cstring>
#include <numeric>

#include "ranks.h"

namespace {

lk_call message(int operation, int peer, std::vector<int32_t> &data, int64_t tag = 0) {
  lk_call call{};
  call.operation = operation;
  call.dtype = LK_I32;
  call.count = int64_t(data.size());
  call.root = peer;
  call.tag = tag;
  call.input = call.output = data.data();
  return call;
}

bool says(const char *text) { return std::strstr(lk_last_error(), text) != nullptr; }

// Everyone sends to everyone before anyone receives: nothing may depend on the order of the calls.
void check_all_pairs(Ranks &ranks, size_t count) {
  const int size = ranks.size();
  ranks.run([&](int rank, lk_group *group) {
    const std::vector<int32_t> empty(count);
    std::vector<std::vector<int32_t>> outgoing(static_cast<size_t>(size), empty);
    std::vector<std::vector<int32_t>> incoming = outgoing;
    std::vector<lk_work *> works;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      std::iota(outgoing[size_t(peer)].begin(), outgoing[size_t(peer)].end(), rank * 1000 + peer);
      lk_call call = message(LK_SEND, peer, outgoing[size_t(peer)], 7);
      works.push_back(nullptr);
      REQUIRE(lk_start(group, &call, &works.back()) == LK_OK, "send");
    }
    for (int peer = size - 1; peer >= 0; --peer) {
      if (peer == rank) continue;
      lk_call call = message(LK_RECEIVE, peer, incoming[size_t(peer)], 7);
      REQUIRE(lk_run(group, &call) == LK_OK, "receive");
      for (size_t i = 0; i < count; ++i)
        REQUIRE(incoming[size_t(peer)][i] == peer * 1000 + rank + int32_t(i), "from %d, element %zu", peer, i);
    }
    for (lk_work *work : works) {
      REQUIRE(lk_work_wait(work, 0) == LK_OK, "wait");
      lk_work_release(work);
    }
  });
}

// A long send that nobody waits for yet, then a collective: the receiver takes the message first.
void check_progress_behind(Ranks &ranks) {
  ranks.run([&](int rank, lk_group *group) {
    std::vector<int32_t> data(500000, rank + 1);
    lk_work *work = nullptr;
    lk_call send = message(LK_SEND, 1, data);
    if (rank == 0) REQUIRE(lk_start(group, &send, &work) == LK_OK, "send");
    lk_call receive = message(LK_RECEIVE, LK_ANY_SOURCE, data);
    if (rank == 1) REQUIRE(lk_run(group, &receive) == LK_OK && data.back() == 1, "receive");
    lk_call barrier{};
    barrier.operation = LK_BARRIER;
    REQUIRE(lk_run(group, &barrier) == LK_OK, "barrier");
    if (work) {
      REQUIRE(lk_work_wait(work, 0) == LK_OK, "wait");
      lk_work_release(work);
    }
  });
}

void check_tags_and_sources(Ranks &ranks) {
  ranks.run([&](int rank, lk_group *group) {
    std::vector<int32_t> one(1, rank), other(1, rank + 100), got(1);
    if (rank) {
      lk_call first = message(LK_SEND, 0, one, 1), second = message(LK_SEND, 0, other, 2);
      REQUIRE(lk_run(group, &first) == LK_OK && lk_run(group, &second) == LK_OK, "send");
      return;
    }
    int seen = 0;
    for (int i = 1; i < ranks.size(); ++i) {  // the second tag first
      lk_call call = message(LK_RECEIVE, LK_ANY_SOURCE, got, 2);
      lk_work *work;
      REQUIRE(lk_start(group, &call, &work) == LK_OK && lk_work_wait(work, 0) == LK_OK, "receive");
      int32_t source;
      int64_t bytes;
      lk_work_received(work, &source, &bytes);
      lk_work_release(work);
      REQUIRE(bytes == 4 && got[0] == source + 100, "source %d", source);
      seen |= 1 << source;
    }
    REQUIRE(seen == (1 << ranks.size()) - 2, "sources %x", unsigned(seen));
    for (int i = 1; i < ranks.size(); ++i) {
      lk_call call = message(LK_RECEIVE, i, got, 1);
      REQUIRE(lk_run(group, &call) == LK_OK && got[0] == i, "tag 1");
    }
  });
}

void check_end(Ranks &ranks) {
  auto start = std::chrono::steady_clock::now();
  ranks.run([&](int rank, lk_group *group) {
    std::vector<int32_t> data(100);
    lk_call receive = message(LK_RECEIVE, 1, data);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return ranks.end(1);
    }
    lk_status status = lk_run(group, &receive);
    REQUIRE(status == LK_PEER_LOST && says("rank 1"), "status %s", lk_status_name(status));
  });
  REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(100), "slow");
}

void check_timeout(Ranks &ranks) {
  ranks.run([&](int rank, lk_group *group) {
    std::vector<int32_t> data(100);
    if (rank) return;
    lk_call receive = message(LK_RECEIVE, 1, data, 3);
    receive.timeout = 50000000;
    REQUIRE(lk_run(group, &receive) == LK_TIMEOUT && says("rank 1"), "message");
    lk_work *work;
    REQUIRE(lk_start(group, &receive, &work) == LK_OK, "start");
    REQUIRE(lk_work_wait(work, 1000000) == LK_TIMEOUT, "impatient");
    REQUIRE(lk_work_wait(work, 0) == LK_TIMEOUT && says("rank 1"), "message");
    lk_work_release(work);
  });
  check_tags_and_sources(ranks);  // the group is unharmed
}

}  // namespace

int main() {
  for (int hosts : {1, 0, 2})
    for (int size : {2, 3, 5}) {
      Ranks ranks(size, 120000000000, {}, hosts);
      for (size_t count : {1, 1000, 16384, 20000, 300000}) check_all_pairs(ranks, count);
      check_progress_behind(ranks);
      check_tags_and_sources(ranks);
      check_timeout(ranks);
      check_end(ranks);
    }
  std::puts("messages delivered");
}
