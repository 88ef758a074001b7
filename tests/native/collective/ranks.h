// Ranks as threads of one process, over the C interface: what the native tests of collectives share.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lowerkit_collective.h"

#define REQUIRE(condition, ...)                                            \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                   \
      std::fprintf(stderr, " [%s]\n", lk_last_error());                    \
      std::abort();                                                        \
    }                                                                      \
  } while (0)

// On `hosts` hosts, as evenly as it goes (0: each rank on its own): a memfd for each host, a socket pair for each pair
// of ranks.
class Ranks {
 public:
  explicit Ranks(int size, int64_t timeout = 120000000000, lk_tuning tuning = {}, int hosts = 1)
      : size_(size), hosts_(hosts ? hosts : size), groups_(size_t(size)) {
    std::vector<std::vector<int>> connections(size_t(size), std::vector<int>(size_t(size), -1));
    for (int a = 0; a < size; ++a)
      for (int b = a + 1; b < size; ++b) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
        connections[size_t(a)][size_t(b)] = pair[0];
        connections[size_t(b)][size_t(a)] = pair[1];
      }
    for (int host = 0; host < hosts_; ++host) {
      std::vector<int> local;
      for (int rank = 0; rank < size; ++rank)
        if (rank * hosts_ / size == host) local.push_back(rank);
      const int64_t bytes = lk_segment_bytes(int(local.size()), tuning.tile_bytes);
      int segment = memfd_create("segment", MFD_CLOEXEC);
      REQUIRE(ftruncate(segment, bytes) == 0, "segment");
      for (int rank : local) {
        lk_group_config config{};
        config.name = "test";
        config.rank = rank;
        config.size = size;
        config.local_count = int(local.size());
        config.local_ranks = local.data();
        config.segment_descriptor = local.size() > 1 ? fcntl(segment, F_DUPFD_CLOEXEC, 0) : -1;
        config.connections = connections[size_t(rank)].data();
        config.timeout = timeout;
        config.tuning = tuning;
        REQUIRE(lk_group_create(&config, &groups_[size_t(rank)]) == LK_OK, "rank %d", rank);
      }
      segments_.push_back(segment);
    }
  }
  ~Ranks() {
    for (int rank = 0; rank < size_; ++rank) end(rank);
    for (int segment : segments_) close(segment);
  }

  // The rank's process ends, as far as the others can see.
  void end(int rank) {
    if (groups_[size_t(rank)]) lk_group_destroy(groups_[size_t(rank)]);
    groups_[size_t(rank)] = nullptr;
  }
  lk_group *group(int rank) { return groups_[size_t(rank)]; }
  // Descriptor of the memory that the ranks of a host share.
  int segment(int host = 0) const { return segments_[size_t(host)]; }
  int size() const { return size_; }

  void run(const std::function<void(int, lk_group *)> &body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) threads.emplace_back([&, rank] { body(rank, groups_[size_t(rank)]); });
    for (auto &thread : threads) thread.join();
  }

 private:
  int size_;
  int hosts_;
  std::vector<lk_group *> groups_;
  std::vector<int> segments_;
};
