// A group as its users see it: operations in order, work behind the caller, abort.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "board/board.h"
#include "flight_recorder.h"
#include "forking.h"
#include "messenger/messenger.h"
#include "operation.h"
#include "simulation/simulation.h"

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

// State of a call that runs behind its caller. Guarded by the group's mutex, but for the request.
struct Work {
  Work(const lk_call &call, int size) : owned(call, size) {}

  OwnedCall owned;
  uint64_t sequence = 0;
  bool done = false;
  lk_status status = LK_PENDING;
  std::string message;
  int source = -1;  // of a receive that is done
  int64_t bytes = 0;

  // Of a send or receive.
  std::unique_ptr<Request> request;
  std::unique_ptr<Execution> execution;
};

class Group {
 public:
  // Takes the descriptors over, unless it throws.
  explicit Group(const lk_group_config &config);
  // Of a simulation: members[rank] is this rank there.
  Group(std::shared_ptr<Simulation> simulation, const char *name, const std::vector<int> &members, int rank,
        int64_t timeout);
  ~Group();
  Group(const Group &) = delete;
  Group &operator=(const Group &) = delete;

  void run(const lk_call &call);
  std::shared_ptr<Work> start(const lk_call &call);
  // Whether it is done; throws its failure.
  bool test(Work &work);
  // Throws its failure, or LK_TIMEOUT and leaves it running.
  void wait(const std::shared_ptr<Work> &work, int64_t timeout);
  // Whether it is done, however it ended. Waits for nothing.
  bool over(const Work &work) {
    std::lock_guard<std::mutex> lock(mutex_);
    return work.done;
  }

  void abort(const char *reason);
  void *attach_arena(int descriptor, int64_t bytes);
  void share_arena(const Group &owner, const std::vector<int> &ranks);
  // Reads what other ranks have told; throws the failure where one of them aborted the group. Waits for nothing.
  void look();

  const Membership &membership() const { return membership_; }
  const FlightRecorder &recorder() const { return recorder_; }

 private:
  Execution execution_of(const lk_call &call, uint64_t sequence);
  void execute(const lk_call &call, uint64_t sequence);
  void execute_alone(const lk_call &call);
  void execute_next(std::unique_lock<std::mutex> &lock);
  template <class Predicate>
  bool await(std::unique_lock<std::mutex> &lock, int64_t timeout, Predicate holds);
  void work_loop();
  void start_thread(std::thread &thread, void (Group::*body)());
  bool take_turn() { return !running_.exchange(true); }
  void finish_turn();
  template <class Body>
  void in_turn(Body body);
  std::unique_ptr<Messenger> make_messenger(const lk_group_config &config);

  // group_hosts.cpp
  void execute_across_hosts(Execution &execution);
  void learn_hosts(Execution &execution);
  std::vector<int> everyone() const;
  std::vector<int> leaders(int instead) const;
  void among(const std::vector<int> &ranks, Execution &execution, const lk_call &call);
  void barrier_across_hosts(Execution &execution);
  void broadcast_across_hosts(Execution &execution);
  void all_reduce_across_hosts(Execution &execution);
  void all_reduce_slices(Execution &execution, int first, int later);

  // group_messages.cpp
  void post(Request &request, const Execution &execution);
  void run_message(const lk_call &call);
  std::shared_ptr<Work> start_message(const lk_call &call);
  bool conclude(Work &work, bool all_failed);
  void wait_for_message(Work &work, int64_t timeout);
  void carry_messages();

  const Presence presence_;
  std::shared_ptr<SimulatedNetwork> network_;  // of a simulation
  std::vector<ParentsDescriptor> descriptors_;  // closed with the group
  Membership membership_;
  const int64_t timeout_;
  std::unique_ptr<Board> board_;          // null: no other rank shares memory with this one
  std::unique_ptr<Messenger> messenger_;  // null: there is no other rank
  FlightRecorder recorder_;

  std::mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<Work>> queue_;
  std::atomic<int> queued_{0};        // length of the queue
  std::atomic<bool> running_{false};  // an operation is under way, on whichever thread
  std::atomic<bool> told_{false};     // the other ranks, that the group has failed
  bool stopping_ = false;
  std::atomic<uint64_t> sequence_;
  std::vector<int32_t> leader_of_;  // of its host, by rank; empty until the first operation
  std::thread worker_;
  std::list<std::shared_ptr<Work>> messages_;  // sends and receives that are not concluded
  std::thread carrier_;                        // moves them on while nobody waits for them
  Condition carry_;
  bool carrier_sleeps_ = false;
  int threads_ = 0;  // that run, in a simulation
};

}  // namespace lowerkit::collective
