// What the messenger knows of one peer, and of the messages under way. Private to messenger*.cpp.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "messenger.h"

namespace lowerkit::collective {

inline std::string name_of(int rank) { return "rank " + std::to_string(rank); }

// A message that arrives or has arrived.
struct Arrival : Landing {
  FrameHeader header;              // of the eager frame or of the request
  uint64_t order = 0;              // among the arrivals of all peers
  std::unique_ptr<char[]> buffer;  // of an eager message that came unexpected
  Request *request = nullptr;      // accepted: who receives it; null once that one was cancelled
  uint64_t received = 0;           // bytes of it
  bool complete = false;
};

// A long message of ours. Without a request: it was cancelled, its grant is to be ignored.
struct AnnouncedSend {
  Key key;
  Request *request;
  uint64_t sent = 0;
  uint64_t under_way = 0;  // bytes of the part that the link has
  bool granted = false;
};

struct Messenger::Peer {
  std::unique_ptr<Link> link;
  std::optional<Failure> failure;
  std::list<Arrival> unexpected;
  int64_t unexpected_bytes = 0;
  std::list<Arrival> accepted;
  std::list<AnnouncedSend> announced;
  Arrival abort;
  uint64_t arrived_in = 0;  // the last collective of which it sent something
  uint64_t waits_in = 0;    // the collective in which it waits for `waits_for`; 0: it does not, that we know of
  int waits_for = -1;
  FrameHeader waiting{};  // that told so

  bool alive() const { return link && !failure; }
};

inline Key key_of(const FrameHeader &header) { return {header.scope, header.sequence, header.tag}; }

// Memory that an unexpected message holds: its bytes, and what it takes to remember it.
inline int64_t cost_of(const FrameHeader &header) { return int64_t(sizeof(Arrival)) + int64_t(payload_bytes(header)); }

}  // namespace lowerkit::collective
