#include "simulation.h"

#include <algorithm>
#include <cmath>

#include "failure.h"

namespace lowerkit::collective {
namespace {

uint64_t hash_of(const std::string &name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char byte : name) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

void check(const NetworkRules &rules, int size, int64_t patience) {
  auto probability = [](double value) { return value >= 0 && value <= 1; };
  auto known = [&](int rank) { return rank >= 0 && rank < size; };
  const bool times = rules.latency >= 0 && rules.jitter >= 0 && rules.hold_up >= 0 && patience > 0;
  bool ranks = std::all_of(rules.island.begin(), rules.island.end(), known);
  for (const auto &death : rules.deaths) ranks = ranks && known(death.first);
  if (size < 1) throw Failure(LK_INVALID, "a simulation of " + std::to_string(size) + " ranks");
  const bool width = rules.bandwidth >= 0 && std::isfinite(rules.bandwidth);
  if (!width) throw Failure(LK_INVALID, "a bandwidth is a number of bytes a second, or 0: no limit");
  if (!times) throw Failure(LK_INVALID, "the times of a simulation are not negative, and its patience is above zero");
  if (!probability(rules.loss) || !probability(rules.overtaking))
    throw Failure(LK_INVALID, "probabilities are from 0 to 1");
  if (!ranks) throw Failure(LK_INVALID, "a rank that is not one of 0 to " + std::to_string(size - 1));
}

}  // namespace

Simulation::Simulation(int size, NetworkRules rules, int64_t patience, bool ruled)
    : ranks((check(rules, size, patience), size), rules.deaths, patience, ruled),
      rules_(std::move(rules)),
      wires_(rules_.bandwidth) {}

std::shared_ptr<SimulatedNetwork> Simulation::network(const std::string &name, const std::vector<int> &members,
                                                      int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  Waiting &waiting = waiting_[name];
  if (!waiting.network) {
    NetworkRules rules = rules_;
    rules.seed ^= hash_of(name);
    rules.deaths.clear();  // they are the ranks'
    rules.island.clear();
    for (size_t member = 0; member < members.size(); ++member)
      if (std::count(rules_.island.begin(), rules_.island.end(), members[member])) rules.island.push_back(int(member));
    waiting.members = members;
    waiting.network = std::make_shared<SimulatedNetwork>(int(members.size()), rules, &ranks, members, &wires_);
  }
  if (waiting.members != members || std::count(waiting.given.begin(), waiting.given.end(), rank))
    throw Failure(LK_INVALID, "group '" + name + "' of the simulation: rank " + std::to_string(rank) +
                                  " was in it before, or names other members than the others");
  waiting.given.push_back(rank);
  auto network = waiting.network;
  if (waiting.given.size() == members.size()) waiting_.erase(name);
  return network;
}

}  // namespace lowerkit::collective
