// A group as its users see it: operations in order, work behind the caller, abort.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "board.h"
#include "flight_recorder.h"
#include "operation.h"

namespace lowerkit::collective {

class Group;

// A call that outlives its caller's frame: parts are copied, buffers are not.
struct OwnedCall {
  OwnedCall(const lk_call &call, int size);
  OwnedCall(const OwnedCall &) = delete;

  lk_call call;
  std::vector<lk_part> input_parts;
  std::vector<lk_part> parts;
};

// State of a call that runs behind its caller. Guarded by the group's mutex.
struct Work {
  Work(const lk_call &call, int size) : owned(call, size) {}

  OwnedCall owned;
  uint64_t sequence = 0;
  bool done = false;
  lk_status status = LK_PENDING;
  std::string message;
  int source = -1;
  int64_t bytes = 0;
};

class Group {
 public:
  // Takes the descriptors over, unless it throws.
  explicit Group(const lk_group_config &config);
  ~Group();
  Group(const Group &) = delete;
  Group &operator=(const Group &) = delete;

  void run(const lk_call &call);
  std::shared_ptr<Work> start(const lk_call &call);
  // Whether it is done; throws its failure.
  bool test(Work &work);
  // Throws its failure, or LK_TIMEOUT and leaves it running.
  void wait(const std::shared_ptr<Work> &work, int64_t timeout);

  void abort(const char *reason);
  void *attach_arena(int descriptor, int64_t bytes);

  const Membership &membership() const { return membership_; }
  const FlightRecorder &recorder() const { return recorder_; }

 private:
  // Descriptors that are closed with the group.
  class Descriptors {
   public:
    ~Descriptors();
    void own(std::vector<int> descriptors) { owned_ = std::move(descriptors); }

   private:
    std::vector<int> owned_;
  };

  void execute(const lk_call &call, uint64_t sequence);
  void execute_alone(const lk_call &call);
  void execute_work(const std::shared_ptr<Work> &work, std::unique_lock<std::mutex> &lock);
  void work_loop();
  void finish_turn(std::unique_lock<std::mutex> &lock);

  Descriptors descriptors_;
  Membership membership_;
  const int64_t timeout_;
  std::unique_ptr<Board> board_;
  FlightRecorder recorder_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Work>> queue_;
  bool running_ = false;  // an operation is under way, on whichever thread
  bool stopping_ = false;
  uint64_t sequence_;
  std::thread worker_;
};

}  // namespace lowerkit::collective
