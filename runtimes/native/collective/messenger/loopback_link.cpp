#include "loopback_link.h"

#include <cstring>

namespace lowerkit::collective {

void LoopbackLink::send(const FrameHeader &header, const void *payload, void *owner) {
  // A rank has no reason to tell itself that it aborted, and all other payloads have owners.
  if (header.kind == FrameKind::abort) return;
  queue_.push_back({header, payload, owner});
}

bool LoopbackLink::withdraw(void *owner) {
  for (size_t i = 0; i < queue_.size();)
    if (queue_[i].owner == owner)
      queue_.erase(queue_.begin() + long(i));
    else
      ++i;
  return true;
}

bool LoopbackLink::progress(FrameSink &sink) {
  bool moved = false;
  while (!queue_.empty()) {
    Frame frame = queue_.front();
    Landing *landing = nullptr;
    if (!sink.frame_begins(peer, frame.header, landing)) break;
    queue_.pop_front();
    moved = true;
    if (landing && landing->data && payload_bytes(frame.header))
      std::memcpy(landing->data, frame.payload, payload_bytes(frame.header));
    sink.frame_ends(peer, frame.header, landing);
    if (frame.owner) sink.frame_sent(peer, frame.owner);
  }
  return moved;
}

}  // namespace lowerkit::collective
