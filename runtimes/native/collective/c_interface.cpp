// The C interface: thin, exceptions end here.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "forking.h"
#include "group.h"
#include "interruption.h"
#include "program_step.h"

using namespace lowerkit::collective;

// What the steps of a group outlive it by. The mutex keeps it there while one of them ends what it started.
struct Attachment {
  std::mutex mutex;
  std::atomic<lk_group *> group;
};

struct lk_group {
  template <class... Arguments>
  explicit lk_group(Arguments &&...arguments) : group(std::forward<Arguments>(arguments)...) {
    watch_forks();
    attachment->group = this;
  }
  Group group;
  const uint32_t forks = fork_count.load();
  const std::shared_ptr<Attachment> attachment = std::make_shared<Attachment>();
};

struct lk_step {
  explicit lk_step(lk_group *group) : attachment(group->attachment), step(group->group), forks(fork_count.load()) {}
  const std::shared_ptr<Attachment> attachment;
  ProgramStep step;
  const uint32_t forks;
};

struct lk_simulation {
  std::shared_ptr<Simulation> simulation;
};

struct lk_work {
  lk_group *group;
  std::shared_ptr<Work> work;
  const uint32_t forks;  // the group may be gone before the handle
};

struct lk_plan {
  struct Step {
    lk_group *group;
    std::unique_ptr<OwnedCall> owned;
  };
  std::vector<Step> steps;
};

namespace {

thread_local std::string last_error;

template <class Body>
lk_status guarded(Body body) {
  try {
    body();
    return LK_OK;
  } catch (const Failure &failure) {
    last_error = failure.what();
    return failure.status();
  } catch (const RankDied &died) {
    last_error = died.what();
    return LK_DIED;
  } catch (const std::bad_alloc &) {
    last_error = "out of memory";
    return LK_RESOURCES;
  } catch (const std::exception &error) {
    last_error = error.what();
    return LK_RESOURCES;
  }
}

bool is_forked(uint32_t forks) { return forks != fork_count.load(std::memory_order_relaxed); }
bool is_forked(const lk_group *group) { return is_forked(group->forks); }

std::string reason_of_child(const lk_group *group) {
  const Membership &membership = group->group.membership();
  return "this process was forked from rank " + std::to_string(membership.rank) + " of group '" + membership.name +
         "' and is no rank of it; make groups after the fork";
}

// The group, for a process that has it.
Group &own(lk_group *group) {
  if (is_forked(group)) throw Failure(LK_INVALID, reason_of_child(group));
  return group->group;
}

// The group of a step, for a process that has it and while it is there.
Group &group_of(lk_step *step) {
  lk_group *group = step->attachment->group.load(std::memory_order_acquire);
  if (!group && !is_forked(step->forks)) throw Failure(LK_ABORTED, "the group was closed on this rank");
  if (!group || is_forked(step->forks))
    throw Failure(LK_INVALID, "this process was forked from a rank, and is none of the group; make groups after the fork");
  return group->group;
}

SimulatedRanks &ranks_with(const lk_simulation *simulation, int32_t rank) {
  SimulatedRanks &ranks = simulation->simulation->ranks;
  if (rank < 0 || rank >= ranks.size)
    throw Failure(LK_INVALID, "there is no rank " + std::to_string(rank) + " in this simulation");
  return ranks;
}

}  // namespace

void lk_set_interruption(lk_interruption hook) { interruption_hook.store(hook); }

const char *lk_last_error(void) { return last_error.c_str(); }

const char *lk_status_name(int32_t status) {
  static const char *const names[] = {"ok",      "invalid",   "timeout",  "peer_lost", "desync",
                                      "aborted", "resources", "protocol", "pending",   "died",    "interrupted"};
  return status >= 0 && status < int32_t(sizeof(names) / sizeof(names[0])) ? names[status] : "unknown";
}

int64_t lk_dtype_bytes(int32_t dtype) { return dtype >= 0 && dtype < kDtypes ? kDtypeBytes[dtype] : 0; }

int64_t lk_segment_bytes(int32_t local_count, int64_t tile_bytes) {
  return local_count < 1 ? 0 : Segment::bytes(local_count, tile_bytes > 0 ? tile_bytes : kDefaultTileBytes);
}

lk_status lk_group_create(const lk_group_config *config, lk_group **group) {
  return guarded([&] { *group = new lk_group(*config); });
}

void lk_group_destroy(lk_group *group) {
  if (!group || is_forked(group)) return;
  {
    std::lock_guard<std::mutex> lock(group->attachment->mutex);
    group->attachment->group = nullptr;
  }
  delete group;
}

void lk_group_abort(lk_group *group, const char *reason) {
  if (is_forked(group)) return;
  try {
    group->group.abort(reason);
  } catch (const RankDied &) {  // it tells nobody any more
  }
}

int32_t lk_group_aborted(lk_group *group, char *reason, size_t capacity) {
  const Membership &membership = group->group.membership();
  const bool forked = is_forked(group);
  if (!forked && !membership.aborted()) return 0;
  if (reason && capacity) {
    std::strncpy(reason, (forked ? reason_of_child(group) : membership.reason()).c_str(), capacity - 1);
    reason[capacity - 1] = 0;
  }
  return 1;
}

void lk_group_dead(lk_group *group, uint8_t *dead) {
  const Membership &membership = group->group.membership();
  for (int rank = 0; rank < membership.size; ++rank) dead[rank] = membership.dead(rank);
}

int64_t lk_group_records(lk_group *group, lk_record *records, int64_t capacity) {
  return is_forked(group) ? 0 : group->group.recorder().read(records, capacity);
}

lk_status lk_run(lk_group *group, const lk_call *call) {
  return guarded([&] { own(group).run(*call); });
}

lk_status lk_start(lk_group *group, const lk_call *call, lk_work **work) {
  return guarded([&] { *work = new lk_work{group, own(group).start(*call), fork_count.load()}; });
}

lk_status lk_work_test(lk_work *work) {
  bool done = false;
  lk_status status = guarded([&] { done = own(work->group).test(*work->work); });
  return status == LK_OK && !done ? LK_PENDING : status;
}

lk_status lk_work_wait(lk_work *work, int64_t timeout) {
  return guarded([&] { own(work->group).wait(work->work, timeout); });
}

void lk_work_received(lk_work *work, int32_t *source, int64_t *bytes) {
  *source = work->work->source;
  *bytes = work->work->bytes;
}

void lk_work_release(lk_work *work) {
  if (work && !is_forked(work->forks)) delete work;
}

lk_status lk_plan_create(lk_plan **plan) {
  return guarded([&] { *plan = new lk_plan; });
}

lk_status lk_plan_add(lk_plan *plan, lk_group *group, const lk_call *call) {
  return guarded([&] {
    const Membership &membership = own(group).membership();
    validate(*call, membership.name, membership.rank, membership.size);
    plan->steps.push_back({group, std::make_unique<OwnedCall>(*call, membership.size)});
  });
}

lk_status lk_plan_run(lk_plan *plan) {
  return guarded([&] {
    for (auto &step : plan->steps) own(step.group).run(step.owned->call);
  });
}

void lk_plan_release(lk_plan *plan) { delete plan; }

lk_status lk_step_create(lk_group *group, lk_step **step) {
  return guarded([&] {
    own(group);
    *step = new lk_step(group);
  });
}

void lk_step_release(lk_step *step) {
  if (!step || is_forked(step->forks)) return;
  lk_step_settle(step, "a program was given back while a collective of it was under way");
  delete step;
}

lk_status lk_step_begin(lk_step *step) {
  return guarded([&] { group_of(step).membership().check(); });
}

int64_t lk_step_call(uint64_t address, void *const *buffers, const int64_t *dims) {
  return guarded([&] {
    lk_step *step = reinterpret_cast<lk_step *>(address);
    group_of(step);
    step->step.call(buffers, dims);
  });
}

lk_status lk_step_settle(lk_step *step, const char *reason) {
  return guarded([&] {
    if (is_forked(step->forks)) return;
    std::lock_guard<std::mutex> lock(step->attachment->mutex);
    lk_group *group = step->attachment->group.load();
    if (!group) return step->step.forget();
    try {
      if (reason && step->step.busy()) group->group.abort(reason);
    } catch (const RankDied &) {  // it tells nobody any more
    }
    step->step.settle(!reason);
  });
}

lk_status lk_simulation_create(int32_t size, const lk_simulation_rules *rules, lk_simulation **simulation) {
  return guarded([&] {
    NetworkRules given;
    given.seed = rules->seed;
    given.latency = rules->latency;
    given.jitter = rules->jitter;
    given.overtaking = rules->overtaking;
    given.hold_up = rules->hold_up;
    given.loss = rules->loss;
    given.bandwidth = rules->bandwidth;
    given.cut_at = uint64_t(rules->cut_at);
    for (int rank = 0; rank < size; ++rank) {
      if (rules->dies_at && rules->dies_at[rank] >= 0) given.deaths[rank] = uint64_t(rules->dies_at[rank]);
      if (rules->island && rules->island[rank]) given.island.push_back(rank);
    }
    *simulation = new lk_simulation{std::make_shared<Simulation>(size, given, rules->patience, !rules->held_back)};
  });
}

void lk_simulation_release(lk_simulation *simulation) { delete simulation; }

lk_status lk_simulation_group(lk_simulation *simulation, const char *name, int32_t size, const int32_t *members,
                              int32_t rank, int64_t timeout, lk_group **group) {
  return guarded([&] {
    const int all = simulation->simulation->ranks.size;
    if (size < 1 || rank < 0 || rank >= size)
      throw Failure(LK_INVALID, "rank " + std::to_string(rank) + " of a group of " + std::to_string(size));
    const std::vector<int> listed(members, members + size);
    for (int member : listed)
      if (member < 0 || member >= all)
        throw Failure(LK_INVALID, "there is no rank " + std::to_string(member) + " in this simulation");
    *group = new lk_group(simulation->simulation, name, listed, rank, timeout);
  });
}

int64_t lk_simulation_now(const lk_simulation *simulation) { return simulation->simulation->ranks.now(); }

lk_status lk_simulation_sleep(lk_simulation *simulation, int32_t rank, int64_t until) {
  return guarded([&] {
    SimulatedRanks &ranks = ranks_with(simulation, rank);
    while (ranks.now() < until) ranks.sleep(rank, until);
  });
}

lk_status lk_simulation_begin(lk_simulation *simulation, int32_t rank) {
  return guarded([&] { ranks_with(simulation, rank).begin_rules(rank); });
}

lk_status lk_simulation_sent(const lk_simulation *simulation, int32_t rank, int64_t *frames, int64_t *bytes) {
  return guarded([&] {
    const auto [sent, size] = ranks_with(simulation, rank).sent(rank);
    *frames = int64_t(sent);
    *bytes = int64_t(size);
  });
}

void lk_simulation_absent(const lk_simulation *simulation, uint8_t *absent) {
  std::fill_n(absent, simulation->simulation->ranks.size, uint8_t(0));
  for (int rank : simulation->simulation->ranks.absent()) absent[rank] = 1;
}

lk_status lk_group_look(lk_group *group) {
  return guarded([&] { own(group).look(); });
}

lk_status lk_group_share_arena(lk_group *group, lk_group *owner, const int32_t *ranks) {
  return guarded([&] {
    const int size = own(group).membership().size;
    own(group).share_arena(own(owner), std::vector<int>(ranks, ranks + size));
  });
}

lk_status lk_group_attach_arena(lk_group *group, int descriptor, int64_t bytes, void **address) {
  return guarded([&] { *address = own(group).attach_arena(descriptor, bytes); });
}
