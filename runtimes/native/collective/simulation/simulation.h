// Groups whose ranks are threads of one process: their clock, and a network for each group.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "simulated_network.h"
#include "simulated_ranks.h"

namespace lowerkit::collective {

class Simulation {
 public:
  // The rules hold for the ranks of the simulation, at once or (`ruled` is false) from SimulatedRanks::begin_rules on;
  // `patience` is in nanoseconds of real time.
  Simulation(int size, NetworkRules rules, int64_t patience, bool ruled = true);

  SimulatedRanks ranks;

  // The network of a group; all members get the same one, each once. Throws Failure(LK_INVALID) where a member does not
  // fit to what the others said, or had it before.
  std::shared_ptr<SimulatedNetwork> network(const std::string &name, const std::vector<int> &members, int rank);

 private:
  struct Waiting {
    std::shared_ptr<SimulatedNetwork> network;
    std::vector<int> members;
    std::vector<int> given;
  };

  const NetworkRules rules_;
  Wires wires_;
  std::mutex mutex_;
  std::map<std::string, Waiting> waiting_;  // until all members have it
};

// A rank has a group of the simulation.
class Presence {
 public:
  Presence() = default;
  Presence(std::shared_ptr<Simulation> simulation, int number) : simulation_(std::move(simulation)), number_(number) {
    simulation_->ranks.enter(number_);
  }
  ~Presence() {
    if (simulation_) simulation_->ranks.leave(number_);
  }
  Presence(const Presence &) = delete;
  Presence &operator=(const Presence &) = delete;

  SimulatedRanks *ranks() const { return simulation_ ? &simulation_->ranks : nullptr; }
  int number() const { return number_; }

 private:
  const std::shared_ptr<Simulation> simulation_;
  const int number_ = 0;
};

}  // namespace lowerkit::collective
