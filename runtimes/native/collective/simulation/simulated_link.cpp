#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "clock.h"
#include "simulated_network.h"

namespace lowerkit::collective {
namespace {

uint64_t mixed(uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

double unit(uint64_t value) { return double(value >> 11) * 0x1p-53; }

bool same_key(const FrameHeader &one, const FrameHeader &other) {
  return one.scope == other.scope && one.sequence == other.sequence && one.tag == other.tag;
}

}  // namespace

// From one rank to another.
struct SimulatedNetwork::Way {
  struct Packet {
    FrameHeader header;
    std::vector<char> payload;
    int64_t due;
    bool lost;  // stays in the queue as a gap
  };

  std::mutex mutex;
  std::deque<Packet> packets;
  uint64_t sent = 0;
  int64_t closed_at = INT64_MAX;
};

// What the machine's clock and the ranks' own have in common: who is told of what, and when it can be seen.
struct SimulatedNetwork::Rank {
  Doorbell doorbell;
  SimulatedRanks *ranks = nullptr;
  int number = 0;  // among them
  bool dies = false;
  uint64_t dies_at = 0;
  std::atomic<uint64_t> sent{0};
  std::atomic<bool> died{false};

  // Throws RankDied. False: the rules do not hold yet for what it sends.
  bool send_frame(int own, Rank &peer, uint64_t bytes) {
    if (ranks) return ranks->send_frame(number, bytes);
    if (dies && !died && sent++ >= dies_at) {
      died = true;
      peer.doorbell.ring();
    }
    if (died) throw RankDied(own);
    return true;
  }
  bool gone() const { return ranks && ranks->died(number); }
  bool dead() const { return ranks ? ranks->seen_dead(number) : died.load(); }
  // It has to look at `moment`.
  void tell(int64_t moment) {
    if (ranks)
      ranks->event(number, moment);
    else
      doorbell.ring();
  }
};

namespace {

class SimulatedLink final : public Link {
 public:
  SimulatedLink(SimulatedNetwork &network, int own, int peer, int size, SimulatedNetwork::Rank &self,
                SimulatedNetwork::Rank &other, SimulatedNetwork::Way &out, SimulatedNetwork::Way &in)
      : Link(peer), network_(network), own_(own), size_(size), self_(self), other_(other), out_(out), in_(in) {}
  ~SimulatedLink() override { close(); }

  void send(const FrameHeader &header, const void *payload, void *owner) override {
    const uint64_t size = sizeof header + payload_bytes(header);
    const bool ruled = self_.send_frame(own_, other_, size);
    auto bytes = static_cast<const char *>(payload);
    std::vector<char> content(bytes, bytes + (bytes ? payload_bytes(header) : 0));
    SimulatedNetwork::Way::Packet packet{header, std::move(content), 0, false};
    packet.header.source = own_;
    packet.header.counter = 0;  // frames overtake each other: their numbers say nothing here
    int64_t due = 0;
    {
      std::lock_guard<std::mutex> held(out_.mutex);
      const auto fate = ruled ? network_.fate(own_, peer, out_.sent++) : SimulatedNetwork::Fate{false, 0};
      // Never at the moment at which it is sent: the receiver may have looked already.
      const int64_t left = ruled ? network_.transmit(own_, peer, size) : network_.now();
      const int64_t delay = std::max<int64_t>(fate.delay, 1);
      due = left < INT64_MAX - delay ? left + delay : INT64_MAX;
      for (const auto &earlier : out_.packets)
        if (same_key(earlier.header, packet.header)) due = std::max(due, earlier.due);
      packet.due = due;
      packet.lost = fate.lost;
      if (out_.closed_at == INT64_MAX) out_.packets.push_back(std::move(packet));
    }
    other_.tell(due);
    if (owner) owners_.push_back(owner);
  }

  bool withdraw(void *owner) override {
    owners_.erase(std::remove(owners_.begin(), owners_.end(), owner), owners_.end());
    return false;
  }

  bool flush(FrameSink &sink) override {
    bool moved = !owners_.empty();
    while (!owners_.empty()) {
      void *owner = owners_.front();
      owners_.pop_front();
      sink.frame_sent(peer, owner);
    }
    return moved;
  }

  bool progress(FrameSink &sink) override {
    if (self_.died) throw RankDied(own_);
    // Read first: what the peer sent before is then seen.
    bool over = other_.dead() || closed();
    bool moved = false;
    refused_ = false;
    while (!refused_ && deliver_one(sink)) moved = true;
    moved |= flush(sink);
    if (over && !moved && !refused_ && empty())
      throw Failure(LK_PEER_LOST, "the connection to rank " + std::to_string(peer) + " ended: it was closed", peer);
    return moved;
  }

  void close() override {
    // Its death is known from the moment after it; when its threads end here is the machine's affair.
    if (self_.gone()) return;
    const int64_t moment = network_.now();
    {
      std::lock_guard<std::mutex> held(out_.mutex);
      out_.closed_at = std::min(out_.closed_at, moment);
    }
    other_.tell(moment + 1);
  }

  bool reading() const override { return !refused_; }
  int64_t next_event() const override {
    std::lock_guard<std::mutex> held(in_.mutex);
    int64_t next = INT64_MAX;
    if (!refused_)
      for (const auto &packet : in_.packets)
        if (!packet.lost) next = std::min(next, packet.due);
    return next;
  }

 private:
  bool closed() const {
    std::lock_guard<std::mutex> held(in_.mutex);
    return in_.closed_at < network_.now();
  }
  bool empty() const {
    std::lock_guard<std::mutex> held(in_.mutex);
    return std::all_of(in_.packets.begin(), in_.packets.end(), [](const auto &packet) { return packet.lost; });
  }

  bool deliver_one(FrameSink &sink) {
    SimulatedNetwork::Way::Packet packet;
    size_t at = 0;
    {
      std::lock_guard<std::mutex> held(in_.mutex);
      int64_t now = network_.now();
      auto ready = [&](size_t i) {
        if (in_.packets[i].lost || in_.packets[i].due > now) return false;
        for (size_t j = 0; j < i; ++j) {
          if (!same_key(in_.packets[j].header, in_.packets[i].header)) continue;
          if (in_.packets[j].lost)
            throw Failure(LK_PROTOCOL, "a frame of rank " + std::to_string(peer) + " before this one is missing", peer);
          return false;
        }
        return true;
      };
      while (at < in_.packets.size() && !ready(at)) ++at;
      if (at == in_.packets.size()) return false;
      packet = std::move(in_.packets[at]);
      // Its place is kept: should the sink refuse it, nothing of its key may overtake it.
      in_.packets[at].header = packet.header;
    }
    check_header(packet.header, peer, size_, 0);
    Landing *landing = nullptr;
    bool taken = sink.frame_begins(peer, packet.header, landing);
    {
      std::lock_guard<std::mutex> held(in_.mutex);  // the sender appends at the end: `at` is still right
      if (taken)
        in_.packets.erase(in_.packets.begin() + long(at));
      else
        in_.packets[at] = std::move(packet);
    }
    refused_ = !taken;
    if (!taken) return false;
    if (landing && landing->data && !packet.payload.empty())
      std::memcpy(landing->data, packet.payload.data(), packet.payload.size());
    sink.frame_ends(peer, packet.header, landing);
    return true;
  }

  SimulatedNetwork &network_;
  const int own_;
  const int size_;
  SimulatedNetwork::Rank &self_;
  SimulatedNetwork::Rank &other_;
  SimulatedNetwork::Way &out_;
  SimulatedNetwork::Way &in_;
  std::deque<void *> owners_;  // of frames that the network took
  bool refused_ = false;
};

}  // namespace

SimulatedNetwork::SimulatedNetwork(int size, NetworkRules rules, SimulatedRanks *ranks, std::vector<int> members,
                                   Wires *wires)
    : size_(size),
      rules_(std::move(rules)),
      simulated_(ranks),
      members_(std::move(members)),
      own_wires_(rules_.bandwidth),
      wires_(wires ? wires : &own_wires_),
      ranks_(new Rank[size_t(size)]) {
  for (int i = 0; i < size * size; ++i) ways_.push_back(std::make_unique<Way>());
  for (int rank = 0; rank < size; ++rank) {
    ranks_[size_t(rank)].ranks = ranks;
    if (ranks) ranks_[size_t(rank)].number = members_[size_t(rank)];
  }
  for (const auto &[rank, frame] : rules_.deaths) {
    ranks_[size_t(rank)].dies = true;
    ranks_[size_t(rank)].dies_at = frame;
  }
}

SimulatedNetwork::~SimulatedNetwork() = default;

int64_t SimulatedNetwork::now() const { return simulated_ ? simulated_->now() : monotonic_nanoseconds(); }

int64_t SimulatedNetwork::transmit(int source, int destination, uint64_t bytes) {
  if (simulated_) source = members_[size_t(source)], destination = members_[size_t(destination)];
  return wires_->transmit(source, destination, bytes, now());
}

std::unique_ptr<Link> SimulatedNetwork::link(int own, int peer) {
  return std::make_unique<SimulatedLink>(*this, own, peer, size_, ranks_[size_t(own)], ranks_[size_t(peer)],
                                         *ways_[size_t(own * size_ + peer)], *ways_[size_t(peer * size_ + own)]);
}

std::vector<std::unique_ptr<Link>> SimulatedNetwork::links(int own) {
  std::vector<std::unique_ptr<Link>> result;
  for (int peer = 0; peer < size_; ++peer) result.push_back(peer == own ? nullptr : link(own, peer));
  return result;
}

Doorbell &SimulatedNetwork::doorbell(int rank) { return ranks_[size_t(rank)].doorbell; }

SimulatedNetwork::Fate SimulatedNetwork::fate(int source, int destination, uint64_t number) const {
  auto on_island = [&](int rank) {
    return std::find(rules_.island.begin(), rules_.island.end(), rank) != rules_.island.end();
  };
  if (number >= rules_.cut_at && on_island(source) != on_island(destination)) return {true, 0};
  uint64_t draw = mixed(mixed(mixed(rules_.seed) ^ uint64_t(source) << 32 ^ uint64_t(destination)) ^ number);
  bool lost = unit(mixed(draw ^ 1)) < rules_.loss;
  int64_t delay = rules_.latency + int64_t(unit(mixed(draw ^ 2)) * double(rules_.jitter));
  if (unit(mixed(draw ^ 3)) < rules_.overtaking) delay += rules_.hold_up;
  return {lost, delay};
}

}  // namespace lowerkit::collective
