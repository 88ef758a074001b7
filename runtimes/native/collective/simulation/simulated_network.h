// A network among ranks that are threads of one process, for tests and simulation: with latency, bandwidth, reordering,
// loss, partitions and death.
//
// What happens to a frame depends on the seed, its source, its destination and its number on that way, and on nothing
// else. Frames of one message key stay in order; others may overtake them. Moments are those of the machine's clock,
// or, where the network is given its ranks, those of theirs: then no run differs from another by the luck of threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "doorbell.h"
#include "messenger/link.h"
#include "simulated_ranks.h"
#include "simulated_wires.h"

namespace lowerkit::collective {

struct NetworkRules {
  uint64_t seed = 1;
  int64_t latency = 0;    // of each frame, nanoseconds
  int64_t jitter = 0;     // on top of it: uniform from 0 up to this
  double bandwidth = 0;   // of each way, bytes a second; messages wait for those before them. 0: no limit
  double overtaking = 0;  // probability that a frame is held up for `hold_up` more
  int64_t hold_up = 200000;
  double loss = 0;                 // probability that a frame never arrives
  std::map<int, uint64_t> deaths;  // a rank dies as it sends its frame of that number, from 0 on; that one is lost
  std::vector<int> island;  // cut off from the other ranks: frames between them, from number `cut_at` of their way on
  uint64_t cut_at = 0;
};

class SimulatedNetwork {
 public:
  // `ranks` (null: the machine's clock) and `wires` (null: its own) outlive the network; members[r] is the number there
  // of rank r. Deaths are theirs.
  SimulatedNetwork(int size, NetworkRules rules, SimulatedRanks *ranks = nullptr, std::vector<int> members = {},
                   Wires *wires = nullptr);
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

  int64_t now() const;
  // When the last byte of a message that is sent now has left.
  int64_t transmit(int source, int destination, uint64_t bytes);

  struct Way;
  struct Rank;

 private:
  const int size_;
  const NetworkRules rules_;
  SimulatedRanks *const simulated_;
  const std::vector<int> members_;
  Wires own_wires_;
  Wires *const wires_;
  std::vector<std::unique_ptr<Way>> ways_;
  std::unique_ptr<Rank[]> ranks_;
};

}  // namespace lowerkit::collective
