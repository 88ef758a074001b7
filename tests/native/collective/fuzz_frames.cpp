// Bytes that are not of the protocol: fuzz_frames [COUNT [SEED]] feeds COUNT frames, most of them damaged, to a
// messenger. Each connection that refuses one is replaced; refused or not, nothing may crash, hang, or grow without
// bound, and the connection of an honest rank must go on working.
#include <algorithm>
#include <random>

#include "message_ranks.h"

using namespace ranks;

namespace {

std::mt19937_64 random_bits;
uint64_t below(uint64_t limit) { return random_bits() % limit; }

// What a test writes can be read, in pieces of any length; what is written to it is dropped.
class Wire final : public ByteStream {
 public:
  std::vector<char> bytes;
  size_t at = 0;

  size_t write(const iovec *parts, int count) override {
    size_t size = 0;
    for (int i = 0; i < count; ++i) size += parts[i].iov_len;
    return size;
  }
  size_t read(const iovec *parts, int count) override {
    size_t moved = 0, most = 1 + below(200000);
    for (int i = 0; i < count; ++i) {
      size_t size = std::min({parts[i].iov_len, bytes.size() - at, most - moved});
      std::copy_n(bytes.data() + at, size, static_cast<char *>(parts[i].iov_base));
      at += size;
      moved += size;
    }
    return moved;
  }
  void close() override {}
};

// A frame that a rank could have sent.
FrameHeader honest(uint32_t counter) {
  FrameHeader header;
  header.source = 1;
  header.counter = counter;
  static const FrameKind kinds[] = {FrameKind::eager,   FrameKind::eager,   FrameKind::eager,   FrameKind::eager,
                                    FrameKind::eager,   FrameKind::request, FrameKind::request, FrameKind::request,
                                    FrameKind::waiting, FrameKind::grant,   FrameKind::data,    FrameKind::abort};
  header.kind = kinds[below(12)];
  header.scope = Scope(1 + below(3));
  if (header.kind == FrameKind::waiting) header.scope = Scope(2 + below(2));
  header.sequence = header.scope != Scope::message || header.kind == FrameKind::abort ? 1 + below(4) : 0;
  header.tag = header.kind == FrameKind::abort ? int64_t(1 + below(7)) : int64_t(below(3));
  header.operation =
      uint8_t(header.scope == Scope::message && header.kind != FrameKind::abort ? uint64_t(LK_SEND) : below(9));
  if (header.kind == FrameKind::abort) header.operation = LK_BARRIER;
  header.dtype = uint8_t(below(kDtypes));
  header.dims = uint8_t(below(3));
  header.fingerprint = 1 + below(3);
  header.count = int64_t(below(100));
  header.bytes =
      header.kind == FrameKind::grant || header.kind == FrameKind::waiting ? 0 : 1 + below(below(20) ? 300 : 70000);
  if (header.kind == FrameKind::abort) header.bytes = below(100);
  return header;
}

void damage(FrameHeader &header) {
  auto bytes = reinterpret_cast<unsigned char *>(&header);
  static const uint64_t extremes[] = {0,         1,         255, 65535, 1u << 20, (1u << 20) + 1, uint64_t(1) << 46,
                                      INT64_MAX, UINT64_MAX};
  switch (below(4)) {
    case 0:  // a bit
      bytes[below(64)] ^= uint8_t(1 << below(8));
      break;
    case 1:  // an extreme in one of the wide fields
      std::memcpy(bytes + 8 * below(8), &extremes[below(9)], 8);
      break;
    case 2:  // anything
      for (int i = 0; i < 64; ++i) bytes[i] = uint8_t(below(256));
      break;
    case 3:  // any length
      header.bytes = random_bits() >> below(64);
      break;
  }
}

}  // namespace

int main(int count, char **arguments) {
  const long frames = count > 1 ? std::atol(arguments[1]) : 20000;
  const uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : std::random_device()();
  random_bits.seed(seed);
  long done = 0, refused = 0, connections = 0, aborts = 0;
  while (done < frames) {
    ++connections;
    Membership member("fuzzed", 0, 3);
    Membership other("fuzzed", 2, 3);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 2;
    auto owned = std::make_unique<Wire>();
    Wire &wire = *owned;
    std::vector<std::unique_ptr<Link>> links(3), others(3);
    links[1] = std::make_unique<StreamLink>(0, 1, 3, std::move(owned));
    links[2] = std::make_unique<StreamLink>(0, 2, 3, make_tcp_stream(2, pair[0]));
    others[0] = std::make_unique<StreamLink>(2, 0, 3, make_tcp_stream(0, pair[1]));
    std::vector<char> target(100000);
    MessengerOptions options;
    options.unexpected_bytes = 1 << 20;
    Messenger messenger(member, std::move(links), options), honest_one(other, std::move(others), options);
    std::deque<Request> requests;
    int64_t sizes[] = {0, 40, 100000};
    for (int i = 0; i < 12; ++i) {
      Descriptor descriptor;
      descriptor.operation = uint8_t(i % 2 ? below(9) : int(LK_RECEIVE));
      descriptor.dtype = uint8_t(below(kDtypes));
      descriptor.count = int64_t(below(100));
      Envelope envelope =
          i % 2 ? Envelope::step(descriptor, 1 + below(3), 1 + below(4), int64_t(below(3)), descriptor.count)
                : Envelope::message(descriptor, int64_t(below(3)));
      if (i % 3 == 0)
        messenger.post_send(requests.emplace_back(), 1, envelope, target.data(), sizes[below(3)]);
      else
        messenger.post_receive(requests.emplace_back(), 1, envelope, target.data(), sizes[below(3)], below(2));
    }
    uint32_t counter = 0;
    // Until the link is refused: every later frame would be lost on it.
    bool over = false;
    for (int burst = 0; burst < 50 && !over && done < frames; ++burst) {
      size_t start = wire.bytes.size();
      for (uint64_t i = below(4) + 1; i; --i, ++done) {
        FrameHeader header = honest(counter++);
        uint64_t payload = payload_bytes(header);
        if (below(30) == 0) damage(header);
        auto bytes = reinterpret_cast<const char *>(&header);
        wire.bytes.insert(wire.bytes.end(), bytes, bytes + 64);
        wire.bytes.resize(wire.bytes.size() + payload, char(below(256)));
      }
      if (below(8) == 0)
        wire.bytes.resize(std::max<size_t>(start, wire.bytes.size() - below(64)));  // a piece is missing
      while (messenger.progress()) {
      }
      Request probe;
      uint8_t byte = 0;
      messenger.post_send(probe, 1, message(99, 1, true, 1), &byte, 1);
      try {
        messenger.test(probe);
      } catch (const Failure &failure) {
        over = true;
        ++refused;
        // Refused bytes fail a link with LK_PROTOCOL, never with anything else, and say whose they were.
        if (failure.status() != LK_PROTOCOL ||
            !std::strstr(failure.what(), "rank 1 sent bytes that are not of this protocol"))
          check::report(__FILE__, __LINE__, failure.what());
      }
    }
    // The honest rank is served all the same.
    uint8_t sent = uint8_t(done), got = 0;
    Request from_honest, at_us;
    honest_one.post_send(from_honest, 0, message(98, 1, true, 0), &sent, 1);
    messenger.post_receive(at_us, 2, message(98, 1, false, 2), &got, 1, true);
    for (int i = 0; i < 100 && !at_us.done(); ++i) messenger.progress();
    CHECK(at_us.done() && got == sent);
    CHECK(!member.dead(1));
    aborts += member.aborted();
  }
  std::printf("seed %llu: %ld frames on %ld connections: %ld refused, %ld aborted by a good frame, %d failed checks\n",
              static_cast<unsigned long long>(seed), done, connections, refused, aborts, check::failed.load());
  return check::failed != 0;
}
