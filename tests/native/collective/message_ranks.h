// A group whose ranks are threads, over any of the transports.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "messenger/byte_stream.h"
#include "check.h"
#include "messenger/messenger.h"
#include "simulation/simulated_network.h"
#include "messenger/stream_link.h"
#include "tcp_pair.h"

namespace ranks {

using namespace lowerkit::collective;

enum class Transport {
  sockets,
  rings,
  simulated,
  mixed
};  // mixed: rings within pairs of ranks, Unix sockets between them; sockets: TCP

inline const std::vector<Transport> kTransports = {Transport::sockets, Transport::rings, Transport::simulated,
                                                   Transport::mixed};

struct World {
  World(int size, Transport transport, MessengerOptions options = {}, NetworkRules rules = {})
      : size(size), network(size, std::move(rules)), bells(new Doorbell[size_t(size)]) {
    options.ranks_of_host = size;
    std::vector<std::vector<std::unique_ptr<Link>>> links;
    for (int rank = 0; rank < size; ++rank) {
      links.emplace_back(size_t(size));
      if (transport == Transport::simulated) links.back() = network.links(rank);
    }
    for (int low = 0; low < size && transport != Transport::simulated; ++low)
      for (int high = low + 1; high < size; ++high) connect(links, low, high, transport);
    for (int rank = 0; rank < size; ++rank) {
      members.push_back(std::make_unique<Membership>("world", rank, size));
      options.doorbell = transport == Transport::simulated ? &network.doorbell(rank) : &bells[size_t(rank)];
      if (transport == Transport::sockets) options.doorbell = nullptr;
      messengers.push_back(std::make_unique<Messenger>(*members.back(), std::move(links[size_t(rank)]), options));
    }
  }

  // A rank whose body throws Failure tells the others and leaves its text in `errors`.
  void run(const std::function<void(Messenger &, int rank)> &body) {
    errors.assign(size_t(size), "");
    statuses.assign(size_t(size), LK_OK);
    std::vector<std::thread> threads;
    // They begin together: a busy machine may start the last thread long after the first.
    std::atomic<int> there{0};
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        Messenger &messenger = *messengers[size_t(rank)];
        for (++there; there < size;) std::this_thread::yield();
        try {
          body(messenger, rank);
        } catch (const Failure &failure) {
          errors[size_t(rank)] = failure.what();
          statuses[size_t(rank)] = failure.status();
          members[size_t(rank)]->abort(failure.status(), failure.what(), failure.rank());
          messenger.send_abort(failure.status(), failure.what(), failure.rank(), Deadline::in(1000000000));
        } catch (const RankDied &died) {
          errors[size_t(rank)] = died.what();
          statuses[size_t(rank)] = LK_ABORTED;
        }
      });
    for (std::thread &thread : threads) thread.join();
  }
  // run(), where nothing may fail.
  void run_well(const std::function<void(Messenger &, int rank)> &body) {
    run(body);
    for (const std::string &error : errors)
      if (!error.empty()) check::report(__FILE__, __LINE__, error);
  }
  // As a rank whose process ends: its connections do.
  void kill(int rank) { messengers[size_t(rank)].reset(); }

  const int size;
  SimulatedNetwork network;
  std::unique_ptr<Doorbell[]> bells;
  std::vector<void *> rings;
  std::vector<std::unique_ptr<Membership>> members;
  std::vector<std::unique_ptr<Messenger>> messengers;
  std::vector<std::string> errors;
  std::vector<lk_status> statuses;

  ~World() {
    messengers.clear();
    for (void *ring : rings) std::free(ring);
  }

 private:
  void connect(std::vector<std::vector<std::unique_ptr<Link>>> &links, int low, int high, Transport transport) {
    std::unique_ptr<ByteStream> streams[2];
    if (transport == Transport::rings || (transport == Transport::mixed && low / 2 == high / 2)) {
      constexpr size_t kCapacity = 1000 * 64 + 8;  // not a power of two
      void *memory[2];
      for (void *&ring : memory) {
        size_t bytes = (ring_bytes(kCapacity) + 63) / 64 * 64;
        ring = std::aligned_alloc(64, bytes);
        std::memset(ring, 0, bytes);
        rings.push_back(ring);
      }
      streams[0] = make_ring_stream(high, memory[0], memory[1], kCapacity, &bells[size_t(high)]);
      streams[1] = make_ring_stream(low, memory[1], memory[0], kCapacity, &bells[size_t(low)]);
    } else {
      int pair[2];
      if (transport == Transport::sockets)
        connect_pair(pair);
      else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        std::abort();
      streams[0] = make_tcp_stream(high, pair[0]);
      streams[1] = make_tcp_stream(low, pair[1]);
    }
    links[size_t(low)][size_t(high)] = std::make_unique<StreamLink>(low, high, size, std::move(streams[0]));
    links[size_t(high)][size_t(low)] = std::make_unique<StreamLink>(high, low, size, std::move(streams[1]));
  }
};

constexpr int64_t kSecond = 1000000000;
inline Deadline soon() { return Deadline::in(120 * kSecond); }

inline Envelope message(int64_t tag, int64_t count, bool sends, int peer, int dtype = LK_U8) {
  Descriptor descriptor;
  descriptor.operation = sends ? LK_SEND : LK_RECEIVE;
  descriptor.dtype = uint8_t(dtype);
  descriptor.root = peer;
  descriptor.count = count;
  return Envelope::message(descriptor, tag);
}

inline void send(Messenger &messenger, int peer, int64_t tag, const std::vector<uint8_t> &bytes) {
  Request request;
  messenger.post_send(request, peer, message(tag, int64_t(bytes.size()), true, peer), bytes.data(),
                      int64_t(bytes.size()));
  messenger.wait(request, soon());
}

inline std::vector<uint8_t> receive(Messenger &messenger, int peer, int64_t tag, int64_t most, int *source = nullptr) {
  std::vector<uint8_t> bytes(size_t(most) + 1);
  Request request;
  messenger.post_receive(request, peer, message(tag, most, false, peer), bytes.data(), most, false);
  messenger.wait(request, soon());
  if (source) *source = request.source();
  bytes.resize(size_t(request.bytes()));
  return bytes;
}

// Bytes that tell their sender, tag and place.
inline std::vector<uint8_t> pattern(int64_t size, uint64_t seed) {
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < bytes.size(); i += sizeof state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + i, &state, std::min(sizeof state, bytes.size() - i));
  }
  return bytes;
}

}  // namespace ranks
