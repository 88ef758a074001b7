// Frames over a byte stream. Payloads are read straight to where they land, and written from where they lie.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "byte_stream.h"
#include "link.h"

namespace lowerkit::collective {

class StreamLink final : public Link {
 public:
  // `own` and `peer` are ranks of a group of `size`.
  StreamLink(int own, int peer, int size, std::unique_ptr<ByteStream> stream);

  void send(const FrameHeader &header, const void *payload, void *owner) override;
  bool withdraw(void *owner) override;
  bool flush(FrameSink &sink) override;
  bool progress(FrameSink &sink) override;
  void close() override { stream_->close(); }
  int descriptor() const override { return stream_->descriptor(); }
  bool reading() const override { return state_ != State::refused; }
  bool writing() const override { return !queue_.empty() && !write_failure_; }

 private:
  enum class State { header, refused, payload };  // refused: the header was read, the sink has no room

  struct Outgoing {
    FrameHeader header;
    const char *payload;
    uint64_t payload_bytes;
    void *owner;
    std::vector<char> copy;
  };

  bool receive(FrameSink &sink);
  bool consume(FrameSink &sink);
  size_t fill(size_t &asked);
  void finish_written(FrameSink &sink, size_t bytes);

  static constexpr size_t kStagingBytes = 32 << 10;
  static constexpr int kReads = 64;     // of one progress(): other links want their turn
  static constexpr size_t kFrames = 8;  // in one write

  const int own_;
  const int size_;
  const std::unique_ptr<ByteStream> stream_;

  std::deque<Outgoing> queue_;
  uint64_t begun_ = 0;           // bytes of the first frame, header included, that were written
  uint32_t frames_written_ = 0;  // number of the first frame in the queue
  std::optional<Failure> write_failure_;

  State state_ = State::header;
  FrameHeader header_;
  Landing *landing_ = nullptr;
  uint64_t landed_ = 0;  // bytes of the payload that were read
  uint32_t frames_read_ = 0;
  std::vector<char> staging_;  // bytes beyond the payload that was asked for: the next headers
  size_t staged_begin_ = 0;
  size_t staged_end_ = 0;
  std::vector<char> discarded_;
};

}  // namespace lowerkit::collective
