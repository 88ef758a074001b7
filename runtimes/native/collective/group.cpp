#include "group.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "interruption.h"
#include "messenger/local_stream.h"
#include "reduce.h"
#include "messenger/stream_link.h"

namespace lowerkit::collective {
namespace {

// Operations whose parts every rank knows.
bool parts_are_common(int operation) { return operation == LK_ALL_GATHER || operation == LK_REDUCE_SCATTER; }

// How long a failing rank tries to tell the ranks on other hosts.
constexpr int64_t kFarewell = 1000000000;
// What a test of a work takes in a simulation.
constexpr int64_t kSimulatedTest = 1000;

std::vector<lk_part> copied(const lk_part *parts, int size) {
  return parts ? std::vector<lk_part>(parts, parts + size) : std::vector<lk_part>();
}

void check(const lk_group_config &config) {
  if (config.size < 1 || config.rank < 0 || config.rank >= config.size)
    throw Failure(LK_INVALID, "rank " + std::to_string(config.rank) + " of a group of " + std::to_string(config.size));
  if (config.timeout <= 0) throw Failure(LK_INVALID, "a group needs a timeout above zero");
  if (config.local_count < 1 || !config.local_ranks) throw Failure(LK_INVALID, "local ranks are missing");
  bool found = false;
  for (int i = 0; i < config.local_count; ++i) {
    const int rank = config.local_ranks[i];
    if (rank < 0 || rank >= config.size || (i && rank <= config.local_ranks[i - 1]))
      throw Failure(LK_INVALID, "local ranks must ascend within the group");
    found = found || rank == config.rank;
  }
  if (!found) throw Failure(LK_INVALID, "local ranks do not contain rank " + std::to_string(config.rank));
}

}  // namespace

OwnedCall::OwnedCall(const lk_call &given, int size)
    : call(given), input_parts(copied(given.input_parts, size)), parts(copied(given.parts, size)) {
  call.input_parts = given.input_parts ? input_parts.data() : nullptr;
  call.parts = given.parts ? parts.data() : nullptr;
}

Group::Group(const lk_group_config &config)
    : membership_((check(config), config.name ? config.name : ""), config.rank, config.size),
      timeout_(config.timeout),
      sequence_(uint64_t(config.first_sequence)) {
  std::vector<int> connections(size_t(config.size), -1);
  if (config.connections) std::copy(config.connections, config.connections + config.size, connections.begin());
  std::vector<int> local(config.local_ranks, config.local_ranks + config.local_count);
  if (config.local_count > 1) {
    const int index = int(std::find(local.begin(), local.end(), config.rank) - local.begin());
    const int64_t tile = config.tuning.tile_bytes > 0 ? config.tuning.tile_bytes : kDefaultTileBytes;
    auto segment = std::make_unique<Segment>(config.segment_descriptor, config.local_count, index, tile,
                                             Deadline::in(config.timeout));
    std::vector<int> watched, processes;
    for (int rank : local) {
      watched.push_back(connections[size_t(rank)]);
      processes.push_back(config.processes ? config.processes[rank] : -1);
    }
    board_ = std::make_unique<Board>(membership_, local, index, std::move(segment), config.tuning, watched, processes);
  }
  if (config.size > 1) messenger_ = make_messenger(config);
  if (board_ && config.local_count != config.size) {
    board_->on_look = [this] { messenger_->progress(); };
    board_->on_long_wait = [this](const Execution &execution, int rank) {
      messenger_->tell_of_waiting(Envelope::hosts(execution.descriptor, execution.fingerprint, execution.sequence),
                                  rank);
    };
  }
  connections.push_back(config.segment_descriptor);
  if (config.processes) connections.insert(connections.end(), config.processes, config.processes + config.size);
  descriptors_.reserve(connections.size());
  for (int descriptor : connections) descriptors_.emplace_back(descriptor);
}

Group::Group(std::shared_ptr<Simulation> simulation, const char *name, const std::vector<int> &members, int rank,
             int64_t timeout)
    : presence_(simulation, members[size_t(rank)]),
      network_(simulation->network(name, members, members[size_t(rank)])),
      membership_(name, rank, int(members.size())),
      timeout_(timeout),
      recorder_(presence_.ranks()),
      changed_(presence_.ranks(), presence_.number()),
      sequence_(0),
      carry_(presence_.ranks(), presence_.number()) {
  if (timeout <= 0) throw Failure(LK_INVALID, "a group needs a timeout above zero");
  if (membership_.size == 1) return;
  MessengerOptions options;
  options.simulated = presence_.ranks();
  options.simulated_rank = presence_.number();
  messenger_ = std::make_unique<Messenger>(membership_, network_->links(rank), options);
}

std::unique_ptr<Messenger> Group::make_messenger(const lk_group_config &config) {
  std::vector<std::unique_ptr<Link>> links(size_t(config.size));
  MessengerOptions options;
  options.ranks_of_host = config.local_count;
  if (config.tuning.spin_nanoseconds > 0) options.spin_nanoseconds = config.tuning.spin_nanoseconds;
  if (board_) {
    options.doorbell = &board_->segment().block(board_->index()).doorbell;
    for (int peer = 0; peer < config.local_count; ++peer) {
      const int rank = config.local_ranks[peer];
      if (rank != config.rank)
        links[size_t(rank)] =
            std::make_unique<StreamLink>(config.rank, rank, config.size, make_local_stream(*board_, peer));
    }
  }
  for (int rank = 0; rank < config.size; ++rank) {
    if (rank == config.rank || links[size_t(rank)]) continue;
    const int connection = config.connections ? config.connections[rank] : -1;
    if (connection < 0)
      throw Failure(LK_INVALID, "group '" + membership_.name + "' has neither shared memory with rank " +
                                    std::to_string(rank) + " nor a connection to it");
    // The stream closes its own; the original is closed with the group.
    const int own = fcntl(connection, F_DUPFD_CLOEXEC, 0);
    if (own < 0) throw Failure(LK_RESOURCES, std::string("cannot duplicate a connection: ") + std::strerror(errno));
    links[size_t(rank)] = std::make_unique<StreamLink>(config.rank, rank, config.size, make_tcp_stream(rank, own));
  }
  return std::make_unique<Messenger>(membership_, std::move(links), options);
}

Group::~Group() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    stopping_ = true;
    membership_.abort(LK_ABORTED, "the group was destroyed on this rank", membership_.rank);
    for (auto &work : queue_) {
      work->done = true;
      work->status = LK_ABORTED;
      work->message = "group '" + membership_.name + "' was destroyed before the work began";
    }
    queue_.clear();
    queued_ = 0;
    changed_.notify_all();
    carry_.notify_all();
  }
  if (messenger_) messenger_->wake();
  if (network_) {
    // They end in their turns: the moment at which this rank goes on must not depend on the host.
    try {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return threads_ == 0; });
    } catch (const RankDied &) {
    }
  }
  if (worker_.joinable()) worker_.join();
  if (carrier_.joinable()) carrier_.join();
}

void Group::abort(const char *reason) {
  membership_.abort(LK_ABORTED, reason ? reason : "abort was called", membership_.rank);
  if (board_) board_->report_failure(reason ? reason : "abort was called");
  if (messenger_) {
    if (!told_.exchange(true))
      messenger_->send_abort(LK_ABORTED, reason ? reason : "abort was called", membership_.rank,
                             Deadline::in(kFarewell));
    messenger_->wake();
  }
}

void *Group::attach_arena(int descriptor, int64_t bytes) {
  if (!board_) throw Failure(LK_INVALID, "group '" + membership_.name + "' shares memory with no other rank");
  void *own = nullptr;
  in_turn([&] { own = board_->attach_arena(descriptor, bytes); });
  return own;
}

void Group::share_arena(const Group &owner, const std::vector<int> &ranks) {
  if (!board_ || !owner.board_)
    throw Failure(LK_INVALID, "group '" + membership_.name + "' or '" + owner.membership_.name +
                                  "' shares memory with no other rank");
  in_turn([&] { board_->share_arena(*owner.board_, ranks); });
}

// While no operation runs.
template <class Body>
void Group::in_turn(Body body) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!await(lock, 0, [&] { return queue_.empty() && take_turn(); }))
    throw Failure(LK_INTERRUPTED, "interrupted while the arena waited for what was started before it");
  struct Turn {
    Group &group;
    ~Turn() { group.running_.store(false); }
  } turn{*this};
  body();
}

void Group::look() {
  // In a simulation what is here at a moment is the machine's affair: there ranks learn of it where they wait.
  if (messenger_ && !network_) messenger_->progress();
  if (board_) board_->check_failure();
  membership_.check();
}

// --- one operation

Execution Group::execution_of(const lk_call &call, uint64_t sequence) {
  const Descriptor descriptor = describe(call);
  return {call,
          descriptor,
          parts_are_common(call.operation) ? fingerprint(descriptor, call.parts, membership_.size)
                                           : fingerprint(descriptor),
          sequence,
          {INT64_MAX, call.timeout > 0 ? call.timeout : timeout_, 0},
          {},
          &recorder_};
}

void Group::execute(const lk_call &call, uint64_t sequence) {
  Execution execution = execution_of(call, sequence);
  // Of a rank that died nobody waits for what is left in the queue: its buffers may be gone.
  if (network_) presence_.ranks()->check_alive(presence_.number());
  try {
    membership_.check();
    if (membership_.size == 1)
      execute_alone(call);
    else if (board_ && board_->segment().ranks() == membership_.size)
      board_->run(execution, call);
    else
      execute_across_hosts(execution);
  } catch (const Failure &found) {
    // Whom another host holds up blames nobody of its own.
    const bool hosts = board_ && messenger_ && board_->segment().ranks() != membership_.size;
    const Failure failure = hosts ? messenger_->explain(found, sequence) : found;
    execution.begin();
    recorder_.finish(execution, failure.status());
    membership_.abort(failure.status(), failure.what(), failure.rank());
    // Ranks that wait for this one in memory look there, not at their messages; and a failure that another rank
    // reported may have reached this one alone.
    const std::string reason = membership_.reason();
    if (board_) board_->report_failure(reason.c_str());
    if (messenger_ && !told_.exchange(true))
      messenger_->send_abort(failure.status(), reason, failure.rank(), Deadline::in(kFarewell));
    throw failure;
  }
  execution.begin();
  recorder_.finish(execution, LK_OK);
}

void Group::execute_alone(const lk_call &call) {
  const int64_t bytes = call.operation == LK_BARRIER ? 0 : call.count * kDtypeBytes[call.dtype];
  const void *source = call.input;
  void *target = call.output;
  switch (call.operation) {
    case LK_REDUCE:
    case LK_ALL_REDUCE:
      break;
    case LK_REDUCE_SCATTER:
    case LK_SCATTER:
      source = call.parts[0].data;
      break;
    case LK_GATHER:
    case LK_ALL_GATHER:
      target = call.parts[0].data;
      break;
    case LK_ALL_TO_ALL:
      if (call.parts[0].count)
        std::memmove(call.parts[0].data, call.input_parts[0].data,
                     size_t(call.parts[0].count * kDtypeBytes[call.dtype]));
      return;
    default:
      return;
  }
  if (reduces(call.operation) && call.reduction == LK_PREMUL_SUM)
    reduce(target, &source, &call.factor, 1, call.count, call.dtype, LK_SUM);
  else if (bytes && source != target)
    std::memmove(target, source, size_t(bytes));
}

void Group::run(const lk_call &call) {
  validate(call, membership_.name, membership_.rank, membership_.size);
  if (call.operation >= LK_SEND) return run_message(call);
  if (queued_.load() || !take_turn()) return wait(start(call), 0);
  const uint64_t sequence = ++sequence_;
  try {
    execute(call, sequence);
  } catch (...) {
    finish_turn();
    throw;
  }
  finish_turn();
}

// --- work behind the caller

// Without the mutex held. Dekker: who ends a turn clears the flag, then looks for a queue; who queues counts, then
// looks for the flag.
void Group::finish_turn() {
  running_.store(false);
  if (!queued_.load()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

std::shared_ptr<Work> Group::start(const lk_call &call) {
  validate(call, membership_.name, membership_.rank, membership_.size);
  if (call.operation >= LK_SEND) return start_message(call);
  auto work = std::make_shared<Work>(call, membership_.size);
  std::lock_guard<std::mutex> lock(mutex_);
  membership_.check();
  work->sequence = ++sequence_;
  queue_.push_back(work);
  ++queued_;
  start_thread(worker_, &Group::work_loop);
  changed_.notify_all();
  return work;
}

// With the mutex held and the turn taken.
void Group::execute_next(std::unique_lock<std::mutex> &lock) {
  auto work = queue_.front();
  queue_.pop_front();
  --queued_;
  lock.unlock();
  lk_status status = LK_OK;
  std::string message;
  try {
    execute(work->owned.call, work->sequence);
  } catch (const Failure &failure) {
    status = failure.status();
    message = failure.what();
  } catch (const RankDied &died) {
    status = LK_DIED;
    message = died.what();
  }
  lock.lock();
  work->status = status;
  work->message = std::move(message);
  work->done = true;
  running_.store(false);
  changed_.notify_all();
}

// With the mutex held.
void Group::start_thread(std::thread &thread, void (Group::*body)()) {
  if (thread.joinable()) return;
  if (!network_) {
    thread = std::thread(body, this);
    return;
  }
  ++threads_;
  thread = presence_.ranks()->start_thread(presence_.number(), [this, body] {
    try {
      (this->*body)();
    } catch (const RankDied &) {
      // Whoever waits for this rank's work is told by the clock.
    }
    std::lock_guard<std::mutex> lock(mutex_);
    --threads_;
    changed_.notify_all();
  });
}

void Group::work_loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || (!queue_.empty() && take_turn()); });
    if (stopping_) return;
    execute_next(lock);
  }
}

// With the mutex held, but not while it asks whether the caller wants its thread back. False: it does, or `timeout`
// (0: none) has passed.
template <class Predicate>
bool Group::await(std::unique_lock<std::mutex> &lock, int64_t timeout, Predicate holds) {
  if (network_) {
    if (timeout > 0) return changed_.wait_for(lock, timeout, holds);
    changed_.wait(lock, holds);
    return true;
  }
  const Deadline deadline = Deadline::in(timeout > 0 ? timeout : INT64_MAX);
  for (;;) {
    const int64_t left = deadline.at - monotonic_nanoseconds();
    if (changed_.wait_for(lock, std::clamp<int64_t>(left, 0, kInterruptionInterval), holds)) return true;
    lock.unlock();
    const bool ends = interrupted() || deadline.passed(monotonic_nanoseconds());
    lock.lock();
    if (ends) return holds();
  }
}

bool Group::test(Work &work) {
  // Who asks again and again lets time pass.
  if (network_) presence_.ranks()->sleep(presence_.number(), recorder_.now() + kSimulatedTest);
  if (work.request) messenger_->progress();
  std::lock_guard<std::mutex> lock(mutex_);
  if (work.request) conclude(work, false);
  if (!work.done) return false;
  if (work.status != LK_OK) throw Failure(work.status, work.message);
  return true;
}

void Group::wait(const std::shared_ptr<Work> &work, int64_t timeout) {
  if (work->request) return wait_for_message(*work, timeout);
  std::unique_lock<std::mutex> lock(mutex_);
  // What nobody has begun, the waiter does itself: it saves two changes of threads. Not if it wants to be back earlier.
  if (timeout == 0 && !queue_.empty() && queue_.front() == work && take_turn()) execute_next(lock);
  auto done = [&] { return work->done; };
  const int64_t start = recorder_.now();
  if (!await(lock, timeout, done)) {
    const bool late = timeout > 0 && recorder_.now() - start >= timeout;
    throw Failure(late ? LK_TIMEOUT : LK_INTERRUPTED,
                  to_string(describe(work->owned.call), work->sequence, membership_.name, membership_.rank) +
                      (late ? ": not done after the time waited for it; it goes on" : ": the wait was interrupted"));
  }
  if (work->status != LK_OK) throw Failure(work->status, work->message);
}

}  // namespace lowerkit::collective
