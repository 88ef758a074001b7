// Messages between the ranks of a group, over one link to each.
//
// Vocabulary
//   envelope    what identifies a message (scope, sequence, tag) and what it is about (the call, its fingerprint)
//   posted      a receive that no message has met
//   unexpected  a message that no receive has met; buffered up to a bound, then its link is read no further
//   accepted    a message that met its receive and whose bytes are on their way
//   announced   a long message of ours: its request is out, the grant is not here
//
// A message of up to `eager_bytes` goes out at once. A longer one is announced; when the receive is posted it is
// granted and comes in parts, straight into the receiver's buffer: it needs no memory elsewhere. Messages of one sender
// and one envelope key are received in the order in which they were sent; receives of one key are served in the order
// of posting.
//
// Threads: any may call. Of those in wait() one drives the links, the others sleep until their requests are done.
//
// Failures are kept in the requests and thrown by wait() and test(). When a peer is lost, what it had sent stays
// receivable. A desynchronisation that no open request can tell of aborts the group.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "doorbell.h"
#include "forking.h"
#include "link.h"
#include "operation.h"
#include "simulation/simulated_ranks.h"

namespace lowerkit::collective {

struct Key {
  Scope scope;
  uint64_t sequence;
  int64_t tag;

  bool operator==(const Key &other) const {
    return scope == other.scope && sequence == other.sequence && tag == other.tag;
  }
};

struct Envelope {
  Key key;
  Descriptor descriptor;  // of the whole call, for errors
  uint64_t fingerprint;
  int64_t count;  // of this message

  // A message of the user's. `descriptor` is a send's or a receive's; compared are the element type and, where both
  // sides give one, the shape.
  static Envelope message(const Descriptor &descriptor, int64_t tag);
  // Step `step` of a collective, about `count` elements of the part that this pair exchanges.
  static Envelope step(const Descriptor &descriptor, uint64_t fingerprint, uint64_t sequence, int64_t step,
                       int64_t count);
  // About the whole collective, as the user called it.
  static Envelope hosts(const Descriptor &descriptor, uint64_t fingerprint, uint64_t sequence);
};

class Messenger;
struct Arrival;
struct AnnouncedSend;

// One send or receive. Lives in the caller's memory until it is done; destroyed earlier, it is cancelled.
class Request {
 public:
  Request() = default;
  ~Request();
  Request(const Request &) = delete;
  Request &operator=(const Request &) = delete;

  // Done: succeeded or failed.
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Of a receive that succeeded.
  int source() const { return source_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class Messenger;

  Messenger *messenger_ = nullptr;  // null: never posted
  std::atomic<bool> done_{false};
  bool receives_ = false;
  bool exact_ = false;
  int peer_ = -1;
  int source_ = -1;
  Envelope envelope_{};
  char *data_ = nullptr;
  int64_t capacity_ = 0;
  int64_t bytes_ = 0;
  size_t open_index_ = 0;
  Arrival *arrival_ = nullptr;            // of an accepted receive
  AnnouncedSend *announcement_ = nullptr;  // of a long send
  std::optional<Failure> failure_;
};

struct MessengerOptions {
  int64_t eager_bytes = 64 << 10;       // at most kMostEagerBytes
  int64_t unexpected_bytes = 16 << 20;  // of each peer
  int64_t data_bytes = 1 << 20;         // of a frame; at most kMostDataBytes
  int64_t spin_nanoseconds = 20000;  // before sleeping; not used where the host has more ranks than this process cores
  int ranks_of_host = 1;
  Doorbell *doorbell = nullptr;         // this rank's; needed where links without descriptors are
  SimulatedRanks *simulated = nullptr;  // in a simulation: whose clock is the messenger's, and who wakes it
  int simulated_rank = 0;               // among them
};

class Messenger final : private FrameSink {
 public:
  // One link for each rank, null where there is none (messages to that rank then fail at once). A null link to the rank
  // itself is made up for. Throws Failure(LK_RESOURCES) where the system refuses a descriptor.
  Messenger(Membership &membership, std::vector<std::unique_ptr<Link>> links, MessengerOptions options);
  ~Messenger();

  Membership &membership() { return membership_; }
  const MessengerOptions &options() const { return options_; }

  // Buffers belong to the messenger until the request is done or cancelled. Both throw Failure(LK_INVALID) for a rank
  // that is not of the group.
  void post_send(Request &request, int peer, const Envelope &envelope, const void *data, int64_t bytes);
  // `peer` may be LK_ANY_SOURCE. Longer messages than `bytes` fail with LK_DESYNC; if `exact`, shorter ones too.
  void post_receive(Request &request, int peer, const Envelope &envelope, void *data, int64_t bytes, bool exact);

  // Moves what can be moved without waiting. True: something was.
  bool progress();
  // Whether the request is done. Throws its failure.
  bool test(Request &request);
  // Returns when all are done. Throws the failure of the first that has one; LK_TIMEOUT, which leaves the requests as
  // they are; LK_ABORTED when the group was. Who waits long in a collective tells the others for whom: so a timeout
  // blames the rank at the end of the line.
  void wait(Request *const *requests, size_t count, Deadline deadline, Waiting *waiting = nullptr);
  void wait(Request &request, Deadline deadline, Waiting *waiting = nullptr);
  // Drives the links until the request is done, the deadline passes, or a thread waits (that one drives then).
  void drive_unless_awaited(Request &request, Deadline deadline);
  // The buffer is the caller's again.
  void cancel(Request &request);

  // Collectives up to this one are over here: messages for them, now or later, are a desynchronisation (thrown now,
  // aborting the group later). Throws LK_ABORTED where the group was meanwhile.
  void finish_operation(uint64_t sequence, const Descriptor &descriptor);

  // The collective that this rank begins, as the user called it: an envelope made by hosts(). Throws LK_ABORTED where a
  // rank waits in memory in another one of that number.
  void begin_collective(const Envelope &envelope);
  // Tells all peers that the group is aborted, and tries until the deadline to get it out.
  void send_abort(lk_status cause, const std::string &reason, int blamed, Deadline deadline);
  // A timeout of operation `sequence` in memory that these ranks share, with what the rank it blames itself waits for.
  Failure explain(const Failure &timeout, uint64_t sequence);
  // Tells the others that this rank waits in memory for another one, in the collective of this envelope, made by
  // hosts(); or no longer does, where that is itself.
  void tell_of_waiting(const Envelope &envelope, int rank);
  // Makes a sleeping wait() look at the membership now.
  void wake();

 private:
  struct Peer;

  bool frame_begins(int peer, const FrameHeader &header, Landing *&landing) override;
  void frame_ends(int peer, const FrameHeader &header, Landing *landing) override;
  void frame_sent(int peer, void *owner) override;

  // messenger_matching.cpp: what arrives meets what was posted
  bool message_begins(Peer &peer, const FrameHeader &header, Landing *&landing);
  void data_begins(Peer &peer, const FrameHeader &header, Landing *&landing);
  void grant_arrives(Peer &peer, const FrameHeader &header);
  void abort_arrives(const FrameHeader &header, const std::string &text);
  Request *posted_for(int peer, const FrameHeader &header);
  bool is_of_finished_operation(int peer, const FrameHeader &header);
  void compare_with_open_requests(int peer, const FrameHeader &header);
  void compare_with_finished(int peer, const FrameHeader &header);
  void compare_with_begun(int peer, const FrameHeader &header);
  bool agrees_with_unexpected(Request &request);
  void accept_unexpected(Request &request);
  bool agrees(Request &request, int peer, const FrameHeader &header);
  void deliver(Peer &peer, Arrival &arrival);
  void send_part(Peer &peer, AnnouncedSend &announcement);

  // messenger.cpp
  void open(Request &request, int peer, const Envelope &envelope, void *data, int64_t bytes);
  void complete(Request &request);
  void close(Request &request);
  void fail(Request &request, lk_status status, const std::string &reason, int rank);
  void fail_link(Peer &peer, const Failure &failure);
  std::string last_seen(const Peer &peer, const Key &key) const;
  void forget(Request &request);
  bool can_still_come(const Request &request) const;
  FrameHeader header_for(const Envelope &envelope, FrameKind kind) const;
  std::string describe_request(const Request &request) const;

  // messenger_wait.cpp
  std::unique_lock<std::mutex> lock();
  int64_t now() const;
  bool progress_links();
  struct Patience;
  void drive(std::unique_lock<std::mutex> &lock, const Request &awaited, Patience &patience);
  void send_waiting(const Envelope &envelope, int rank);
  void sleep(std::unique_lock<std::mutex> &lock, uint32_t heard, int64_t until);
  void look_for_interruption(std::unique_lock<std::mutex> &lock, const Request &awaited);
  void sleep_in_simulation(std::unique_lock<std::mutex> &lock, int64_t until);
  void wake_driver();
  std::string follow_those_who_wait(int &blamed, uint64_t &sequence) const;
  [[noreturn]] void throw_timeout(const Request &request, const Deadline &deadline) const;

  Membership &membership_;
  const MessengerOptions options_;
  int64_t spin_nanoseconds_;
  std::optional<ParentsDescriptor> wake_descriptor_;  // where links are polled
  bool polls_ = false;    // some link has a descriptor
  bool listens_ = false;  // some link has none

  std::mutex mutex_;
  std::atomic<int> wanting_{0};  // threads that wait for the mutex
  std::condition_variable changed_;
  int sleepers_ = 0;
  int waiters_ = 0;         // threads in wait()
  bool driven_ = false;     // a thread drives the links
  bool gives_way_ = false;  // the one that drives does so until another waits
  bool driver_sleeps_ = false;

  std::vector<Peer> peers_;
  std::vector<Request *> open_;   // posted and not done, in any order
  std::deque<Request *> posted_;  // receives that no message has met, in the order of posting
  uint64_t arrivals_ = 0;
  uint64_t failures_ = 0;  // of requests
  uint64_t finished_ = 0;
  Descriptor finished_descriptor_;
  // The last ones, by number: a rank that waits in memory may be a few behind.
  static constexpr size_t kBegun = 16;
  std::optional<Envelope> begun_[kBegun];
};

}  // namespace lowerkit::collective
