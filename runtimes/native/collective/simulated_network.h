// A network among ranks that are threads of one process, for tests and simulation: with latency, reordering, loss,
// partitions and death.
//
// What happens to a frame depends on the seed, its source, its destination and its number on that way, and on nothing
// else: no run differs from another by the luck of threads. Frames of one message key stay in order; others may
// overtake them.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "doorbell.h"
#include "link.h"

namespace lowerkit::collective {

struct NetworkRules {
  uint64_t seed = 1;
  int64_t latency = 0;    // of each frame, nanoseconds
  int64_t jitter = 0;     // on top of it: uniform from 0 up to this
  double overtaking = 0;  // probability that a frame is held up for `hold_up` more
  int64_t hold_up = 200000;
  double loss = 0;      // probability that a frame never arrives
  int dying_rank = -1;  // dies as it sends its frame of number `dies_at`, from 0 on; that one is lost
  uint64_t dies_at = 0;
  std::vector<int> island;  // cut off from the other ranks: frames between them, from number `cut_at` of their way on
  uint64_t cut_at = 0;
};

// Thrown in the thread of a rank that died: no Failure, because a dead rank handles none.
class RankDied : public std::runtime_error {
 public:
  explicit RankDied(int rank) : std::runtime_error("rank " + std::to_string(rank) + " died in the simulation") {}
};

class SimulatedNetwork {
 public:
  SimulatedNetwork(int size, NetworkRules rules);
  ~SimulatedNetwork();

  // The network must outlive its links.
  std::unique_ptr<Link> link(int own, int peer);
  // All links of a rank, as a Messenger wants them.
  std::vector<std::unique_ptr<Link>> links(int own);
  Doorbell &doorbell(int rank);

  struct Fate {
    bool lost;
    int64_t delay;
  };
  Fate fate(int source, int destination, uint64_t number) const;

  struct Way;
  struct Rank;

 private:
  const int size_;
  const NetworkRules rules_;
  std::vector<std::unique_ptr<Way>> ways_;
  std::unique_ptr<Rank[]> ranks_;
};

}  // namespace lowerkit::collective
