// The link of a rank to itself.
#pragma once

#include <deque>

#include "link.h"

namespace lowerkit::collective {

class LoopbackLink final : public Link {
 public:
  explicit LoopbackLink(int own) : Link(own) {}

  void send(const FrameHeader &header, const void *payload, void *owner) override;
  bool withdraw(void *owner) override;
  bool flush(FrameSink &) override { return false; }
  bool progress(FrameSink &sink) override;
  void close() override {}

 private:
  struct Frame {
    FrameHeader header;
    const void *payload;
    void *owner;
  };
  std::deque<Frame> queue_;
};

}  // namespace lowerkit::collective
