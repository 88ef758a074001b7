// Python bindings of the collectives, over their C interface alone.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lowerkit_collective.h"
#include "program_step.h"
#include "shared_group.h"
#include "tensor_access.h"
#include "tensor_call.h"

namespace nb = nanobind;
using namespace nb::literals;

using lowerkit::raise_collective_error;
using lowerkit::SharedGroup;

namespace {

PyObject *error_type = nullptr;

// Messages hold what other ranks wrote, which need not be text.
nb::object text_of(const char *message) {
  return nb::steal(PyUnicode_DecodeUTF8(message, Py_ssize_t(std::strlen(message)), "replace"));
}

// Python runs the handlers of signals on its main thread alone, and where it looks for them: a wait has to let it.
int32_t handler_raised() {
  if (syscall(SYS_gettid) != getpid()) return 0;
  nb::gil_scoped_acquire held;
  return PyErr_Occurred() || PyErr_CheckSignals() != 0;
}

void check(lk_status status) {
  if (status != LK_OK) raise_collective_error(status, lk_last_error());
}

template <class T = void>
T *pointer(uint64_t address) {
  return reinterpret_cast<T *>(address);
}

std::vector<lk_part> to_parts(nb::handle given) {
  std::vector<lk_part> parts;
  for (nb::handle item : nb::borrow<nb::sequence>(given)) {
    auto pair = nb::cast<nb::tuple>(item);
    parts.push_back({pointer(nb::cast<uint64_t>(pair[0])), nb::cast<int64_t>(pair[1])});
  }
  return parts;
}

void set_shape(lk_call &call, nb::handle shape) {
  for (nb::handle size : shape) {
    // More dimensions than a descriptor holds: the last ones count as one.
    const int64_t value = nb::cast<int64_t>(size);
    if (call.dims < LK_MAX_DIMS)
      call.shape[call.dims++] = value;
    else
      call.shape[LK_MAX_DIMS - 1] *= value;
  }
}

class Work {
 public:
  // `open` holds the works of an open group; the group's object outlives its works.
  Work(lk_work *work, std::shared_ptr<SharedGroup> shared, std::set<Work *> &open)
      : work_(work), shared_(std::move(shared)), open_(open) {
    open_.insert(this);
  }
  ~Work() {
    open_.erase(this);
    lk_work_release(work_);
  }
  Work(const Work &) = delete;
  Work &operator=(const Work &) = delete;

  bool test() {
    lk_status status = status_;
    if (!settled_) {
      SharedGroup::Use use(shared_);
      nb::gil_scoped_release released;
      status = lk_work_test(work_);
    }
    if (status == LK_PENDING) return false;
    check_this(status);
    return true;
  }
  void wait(int64_t timeout) {
    if (settled_) return check_this(status_);
    SharedGroup::Use use(shared_);
    lk_status status;
    {
      nb::gil_scoped_release released;
      status = lk_work_wait(work_, timeout);
    }
    check(status);
  }
  std::pair<int, int64_t> received() {
    int32_t source;
    int64_t bytes;
    lk_work_received(work_, &source, &bytes);
    return {source, bytes};
  }
  // The group is about to be destroyed, and must not be asked any more. Another thread that asks this work while the
  // last answer is fetched is told that the group was closed: it must never take an unfinished operation for done.
  void settle() {
    status_ = LK_ABORTED;
    message_ = "the group was closed before the operation was done";
    settled_ = true;
    lk_status status;
    {
      nb::gil_scoped_release released;
      status = lk_work_test(work_);
    }
    if (status == LK_PENDING) return;
    status_ = status;
    message_ = lk_last_error();
  }

 private:
  void check_this(lk_status status) {
    if (!settled_ || status == LK_OK) return check(status);
    raise_collective_error(status, message_.c_str());
  }

  lk_work *work_;
  const std::shared_ptr<SharedGroup> shared_;
  std::set<Work *> &open_;
  bool settled_ = false;
  lk_status status_ = LK_OK;
  std::string message_;
};

class Simulation {
 public:
  Simulation(int size, uint64_t seed, int64_t latency, int64_t jitter, double overtaking, int64_t hold_up, double loss,
             const std::vector<int64_t> &dies_at, const std::vector<int> &island, int64_t cut_at, int64_t patience,
             double bandwidth, bool held_back)
      : size_(size) {
    std::vector<uint8_t> cut(island.begin(), island.end());
    if (int(dies_at.size()) != size || int(cut.size()) != size) throw std::invalid_argument("one entry for each rank");
    lk_simulation_rules rules{seed,           latency,    jitter, overtaking, hold_up,   loss,
                              dies_at.data(), cut.data(), cut_at, patience,   bandwidth, held_back};
    check(lk_simulation_create(size, &rules, &simulation_));
  }
  ~Simulation() { lk_simulation_release(simulation_); }
  Simulation(const Simulation &) = delete;
  Simulation &operator=(const Simulation &) = delete;

  lk_simulation *get() const { return simulation_; }
  int64_t now() const { return lk_simulation_now(simulation_); }
  void sleep(int rank, int64_t until) {
    lk_status status;
    {
      nb::gil_scoped_release released;
      status = lk_simulation_sleep(simulation_, rank, until);
    }
    check(status);
  }
  void begin(int rank) { check(lk_simulation_begin(simulation_, rank)); }
  std::pair<int64_t, int64_t> sent(int rank) const {
    int64_t frames = 0, bytes = 0;
    check(lk_simulation_sent(simulation_, rank, &frames, &bytes));
    return {frames, bytes};
  }
  std::vector<int> absent() const {
    std::vector<uint8_t> found(static_cast<size_t>(size_));
    lk_simulation_absent(simulation_, found.data());
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank)
      if (found[size_t(rank)]) ranks.push_back(rank);
    return ranks;
  }

 private:
  lk_simulation *simulation_ = nullptr;
  const int size_;
};

class Group {
 public:
  Group(const Simulation &simulation, const std::string &name, const std::vector<int> &members, int rank,
        int64_t timeout)
      : size_(int(members.size())) {
    lk_group *group = nullptr;
    lk_status status;
    {
      nb::gil_scoped_release released;
      status = lk_simulation_group(simulation.get(), name.c_str(), int(members.size()), members.data(), rank, timeout,
                                   &group);
    }
    check(status);
    shared_ = std::make_shared<SharedGroup>(group);
  }
  Group(const std::string &name, int rank, int size, const std::vector<int> &local_ranks, int segment,
        const std::vector<int> &connections, const std::vector<int> &processes, int64_t timeout, int64_t first_sequence,
        const std::vector<int64_t> &tuning) {
    if (int(connections.size()) != size) throw std::invalid_argument("one connection for each rank");
    if (!processes.empty() && int(processes.size()) != size) throw std::invalid_argument("one process for each rank");
    if (tuning.size() > 4) throw std::invalid_argument("tuning has four numbers");
    lk_group_config config{};
    config.name = name.c_str();
    config.rank = rank;
    config.size = size;
    config.local_count = int(local_ranks.size());
    config.local_ranks = local_ranks.data();
    config.segment_descriptor = segment;
    config.connections = connections.data();
    config.processes = processes.empty() ? nullptr : processes.data();
    config.timeout = timeout;
    config.first_sequence = first_sequence;
    int64_t *const fields[] = {&config.tuning.one_shot_limit, &config.tuning.tile_bytes, &config.tuning.streaming_limit,
                               &config.tuning.spin_nanoseconds};
    for (size_t i = 0; i < tuning.size(); ++i) *fields[i] = tuning[i];
    size_ = size;
    rank_ = rank;
    lk_group *group = nullptr;
    lk_status status;
    {
      nb::gil_scoped_release released;
      status = lk_group_create(&config, &group);
    }
    check(status);
    shared_ = std::make_shared<SharedGroup>(group);
  }
  ~Group() { close(); }
  Group(const Group &) = delete;
  Group &operator=(const Group &) = delete;

  void close() {
    if (!shared_) return;  // its constructor threw
    shared_->close([this] {
      // In a simulation a look waits for its turn, and whoever has the turn may want the interpreter: meanwhile others
      // go on, and may drop works.
      std::vector<nb::object> held;
      for (Work *work : open_) held.push_back(nb::find(work));
      for (const nb::object &work : held) nb::cast<Work &>(work).settle();
    });
  }
  const std::shared_ptr<SharedGroup> &shared() const { return shared_; }
  void run(const lk_call &call) {
    SharedGroup::Use use(shared_);
    lk_status status;
    {
      nb::gil_scoped_release released;
      status = lk_run(use.get(), &call);
    }
    check(status);
  }
  Work *start(const lk_call &call) {
    SharedGroup::Use use(shared_);
    lk_work *work = nullptr;
    check(lk_start(use.get(), &call, &work));
    return new Work(work, shared_, open_);
  }
  int size() const { return size_; }
  int rank() const { return rank_; }

 private:
  std::shared_ptr<SharedGroup> shared_;
  int size_ = 0;
  int rank_ = 0;
  std::set<Work *> open_;
};

lk_call to_call(int operation, int dtype, int64_t count, uint64_t input, uint64_t output, int reduction, int root,
                double factor, int64_t tag, int64_t timeout, nb::handle shape) {
  lk_call call{};
  call.operation = operation;
  call.dtype = dtype;
  call.count = count;
  call.input = pointer(input);
  call.output = pointer(output);
  call.reduction = reduction;
  call.root = root;
  call.factor = factor;
  call.tag = tag;
  call.timeout = timeout;
  set_shape(call, shape);
  return call;
}

// Keeps the parts that a call points to.
struct CallWithParts {
  CallWithParts(const Group &group, lk_call given, nb::handle input_parts, nb::handle output_parts)
      : call(given), inputs(to_parts(input_parts)), parts(to_parts(output_parts)) {
    for (const auto *list : {&inputs, &parts})
      if (!list->empty() && int(list->size()) != group.size()) throw std::invalid_argument("one part for each rank");
    if (!inputs.empty()) call.input_parts = inputs.data();
    if (!parts.empty()) call.parts = parts.data();
  }
  lk_call call;
  std::vector<lk_part> inputs, parts;
};

nb::list records_of(const Group &group) {
  SharedGroup::Use use(group.shared());
  std::vector<lk_record> records(1024);
  records.resize(size_t(lk_group_records(use.get(), records.data(), int64_t(records.size()))));
  nb::list result;
  for (const lk_record &record : records) {
    nb::list shape;
    for (int i = 0; i < record.dims; ++i) shape.append(record.shape[i]);
    nb::dict entry;
    entry["sequence"] = record.sequence;
    entry["operation"] = record.operation;
    entry["dtype"] = record.dtype;
    entry["reduction"] = record.reduction;
    entry["root"] = record.root;
    entry["count"] = record.count;
    entry["tag"] = record.tag;
    entry["shape"] = shape;
    entry["started"] = record.started;
    entry["finished"] = record.finished;
    entry["waited"] = record.waited;
    entry["waited_for"] = record.waited_for;
    entry["status"] = record.status;
    result.append(entry);
  }
  return result;
}

class Plan {
 public:
  Plan() { check(lk_plan_create(&plan_)); }
  ~Plan() { lk_plan_release(plan_); }
  Plan(const Plan &) = delete;
  Plan &operator=(const Plan &) = delete;

  void add(const Group &group, const lk_call &call) {
    SharedGroup::Use use(group.shared());
    check(lk_plan_add(plan_, use.get(), &call));
    groups_.insert(group.shared());
  }
  void run() {
    std::list<SharedGroup::Use> uses;
    for (const auto &group : groups_) uses.emplace_back(group);
    lk_status status;
    {
      nb::gil_scoped_release released;
      status = lk_plan_run(plan_);
    }
    check(status);
  }

 private:
  lk_plan *plan_ = nullptr;
  std::set<std::shared_ptr<SharedGroup>> groups_;
};

}  // namespace

void lowerkit::raise_collective_error(lk_status status, const char *message) {
  if (status == LK_INTERRUPTED && PyErr_Occurred()) throw nb::python_error();
  nb::object arguments = nb::make_tuple(int(status), text_of(message));
  PyErr_SetObject(error_type, arguments.ptr());
  throw nb::python_error();
}

NB_MODULE(_collective, module) {
  module.doc() = "Native collectives";
  nb::set_leak_warnings(false);  // a process that ends with groups open is the user's business
  error_type = PyErr_NewException("lowerkit.runtimes._collective.CollectiveError", PyExc_RuntimeError, nullptr);
  module.attr("CollectiveError") = nb::borrow(error_type);
  lk_set_interruption(handler_raised);
  module.def("serve_tensors", &lowerkit::serve_tensors, "tensor"_a, "parameter"_a);
  module.def("segment_bytes", &lk_segment_bytes, "local_count"_a, "tile_bytes"_a = 0);

  nb::class_<Work>(module, "Work")
      .def("test", &Work::test)
      .def("wait", &Work::wait, "timeout"_a = 0)
      .def_prop_ro("received", [](Work &work) {
        auto [source, bytes] = work.received();
        return nb::make_tuple(source, bytes);
      });

  nb::class_<Simulation>(module, "Simulation")
      .def(nb::init<int, uint64_t, int64_t, int64_t, double, int64_t, double, const std::vector<int64_t> &,
                    const std::vector<int> &, int64_t, int64_t, double, bool>(),
           "size"_a, "seed"_a, "latency"_a, "jitter"_a, "overtaking"_a, "hold_up"_a, "loss"_a, "dies_at"_a, "island"_a,
           "cut_at"_a, "patience"_a, "bandwidth"_a = 0.0, "held_back"_a = false)
      .def_prop_ro("now", &Simulation::now)
      .def("sleep", &Simulation::sleep, "rank"_a, "until"_a)
      .def("begin", &Simulation::begin, "rank"_a)
      .def("sent", &Simulation::sent, "rank"_a)
      .def("absent", &Simulation::absent)
      .def(
          "group",
          [](Simulation &simulation, const std::string &name, const std::vector<int> &members, int rank,
             int64_t timeout) { return new Group(simulation, name, members, rank, timeout); },
          "name"_a, "members"_a, "rank"_a, "timeout"_a, nb::rv_policy::take_ownership);

  nb::class_<Group>(module, "Group")
      .def(nb::init<const std::string &, int, int, const std::vector<int> &, int, const std::vector<int> &,
                    const std::vector<int> &, int64_t, int64_t, const std::vector<int64_t> &>(),
           "name"_a, "rank"_a, "size"_a, "local_ranks"_a, "segment_descriptor"_a, "connections"_a, "processes"_a,
           "timeout"_a, "first_sequence"_a = 0, "tuning"_a = std::vector<int64_t>())
      .def(
          "run",
          [](Group &group, int operation, int dtype, int64_t count, uint64_t input, uint64_t output, int reduction,
             int root, double factor, int64_t tag, int64_t timeout, nb::handle shape) {
            group.run(to_call(operation, dtype, count, input, output, reduction, root, factor, tag, timeout, shape));
          },
          "operation"_a, "dtype"_a, "count"_a, "input"_a, "output"_a, "reduction"_a = 0, "root"_a = 0, "factor"_a = 1.0,
          "tag"_a = 0, "timeout"_a = 0, "shape"_a = nb::make_tuple())
      .def(
          "start",
          [](Group &group, int operation, int dtype, int64_t count, uint64_t input, uint64_t output, int reduction,
             int root, double factor, int64_t tag, int64_t timeout, nb::handle shape) {
            return group.start(
                to_call(operation, dtype, count, input, output, reduction, root, factor, tag, timeout, shape));
          },
          "operation"_a, "dtype"_a, "count"_a, "input"_a, "output"_a, "reduction"_a = 0, "root"_a = 0, "factor"_a = 1.0,
          "tag"_a = 0, "timeout"_a = 0, "shape"_a = nb::make_tuple(), nb::keep_alive<0, 1>())
      .def(
          "run_parts",
          [](Group &group, int operation, int dtype, int64_t count, uint64_t input, uint64_t output,
             nb::handle input_parts, nb::handle parts, int reduction, int root, double factor, int64_t timeout,
             nb::handle shape) {
            group.run(CallWithParts(
                          group,
                          to_call(operation, dtype, count, input, output, reduction, root, factor, 0, timeout, shape),
                          input_parts, parts)
                          .call);
          },
          "operation"_a, "dtype"_a, "count"_a, "input"_a, "output"_a, "input_parts"_a, "parts"_a, "reduction"_a = 0,
          "root"_a = 0, "factor"_a = 1.0, "timeout"_a = 0, "shape"_a = nb::make_tuple())
      .def(
          "start_parts",
          [](Group &group, int operation, int dtype, int64_t count, uint64_t input, uint64_t output,
             nb::handle input_parts, nb::handle parts, int reduction, int root, double factor, int64_t timeout,
             nb::handle shape) {
            return group.start(
                CallWithParts(
                    group, to_call(operation, dtype, count, input, output, reduction, root, factor, 0, timeout, shape),
                    input_parts, parts)
                    .call);
          },
          "operation"_a, "dtype"_a, "count"_a, "input"_a, "output"_a, "input_parts"_a, "parts"_a, "reduction"_a = 0,
          "root"_a = 0, "factor"_a = 1.0, "timeout"_a = 0, "shape"_a = nb::make_tuple(), nb::keep_alive<0, 1>())
      .def(
          "run_tensors",
          [](Group &group, int operation, nb::handle output, nb::handle input, int reduction, int root,
             int64_t timeout) {
            lowerkit::TensorCall call(group.size(), group.rank());
            if (!call.make(operation, output, input, reduction, root, timeout)) return false;
            group.run(call.call());
            return true;
          },
          "operation"_a, "output"_a.none(), "input"_a.none(), "reduction"_a = 0, "root"_a = 0, "timeout"_a = 0)
      .def(
          "attach_arena",
          [](Group &group, int descriptor, int64_t size) {
            SharedGroup::Use use(group.shared());
            void *own = nullptr;
            lk_status status;
            {
              // It waits for what was started, in which other ranks of this process may have to take part.
              nb::gil_scoped_release released;
              status = lk_group_attach_arena(use.get(), descriptor, size, &own);
            }
            check(status);
            return reinterpret_cast<uint64_t>(own);
          },
          "descriptor"_a, "size"_a)
      .def(
          "share_arena",
          [](Group &group, Group &owner, const std::vector<int32_t> &ranks) {
            if (int(ranks.size()) != group.size()) raise_collective_error(LK_INVALID, "a number for each rank");
            SharedGroup::Use use(group.shared()), owner_use(owner.shared());
            lk_status status;
            {
              nb::gil_scoped_release released;
              status = lk_group_share_arena(use.get(), owner_use.get(), ranks.data());
            }
            check(status);
          },
          "owner"_a, "ranks"_a)
      .def("look",
           [](Group &group) {
             SharedGroup::Use use(group.shared());
             check(lk_group_look(use.get()));
           })
      .def(
          "abort",
          [](Group &group, const std::string &reason) {
            if (group.shared()->closed()) return;
            SharedGroup::Use use(group.shared());
            nb::gil_scoped_release released;
            lk_group_abort(use.get(), reason.c_str());
          },
          "reason"_a)
      .def_prop_ro("aborted",
                   [](Group &group) -> nb::object {
                     if (group.shared()->closed()) return nb::str("the group was closed on this rank");
                     SharedGroup::Use use(group.shared());
                     char reason[1024];
                     if (!lk_group_aborted(use.get(), reason, sizeof(reason))) return nb::none();
                     return text_of(reason);
                   })
      .def("dead",
           [](Group &group) {
             SharedGroup::Use use(group.shared());
             std::vector<uint8_t> dead(size_t(group.size()));
             lk_group_dead(use.get(), dead.data());
             nb::list ranks;
             for (size_t rank = 0; rank < dead.size(); ++rank)
               if (dead[rank]) ranks.append(int(rank));
             return ranks;
           })
      .def("records", [](Group &group) { return records_of(group); })
      .def("close", &Group::close);

  nb::class_<Plan>(module, "Plan")
      .def(nb::init<>())
      .def(
          "add",
          [](Plan &plan, Group &group, int operation, int dtype, int64_t count, uint64_t input, uint64_t output,
             nb::handle input_parts, nb::handle parts, int reduction, int root, double factor, int64_t tag,
             int64_t timeout, nb::handle shape) {
            plan.add(group, CallWithParts(group,
                                          to_call(operation, dtype, count, input, output, reduction, root, factor, tag,
                                                  timeout, shape),
                                          input_parts, parts)
                                .call);
          },
          nb::keep_alive<1, 2>(), "group"_a, "operation"_a, "dtype"_a, "count"_a, "input"_a, "output"_a,
          "input_parts"_a = nb::make_tuple(), "parts"_a = nb::make_tuple(), "reduction"_a = 0, "root"_a = 0,
          "factor"_a = 1.0, "tag"_a = 0, "timeout"_a = 0, "shape"_a = nb::make_tuple())
      .def("run", &Plan::run);

  nb::class_<lowerkit::ProgramStep>(module, "Step")
      .def(
          "__init__",
          [](lowerkit::ProgramStep *self, const Group &group) { new (self) lowerkit::ProgramStep(group.shared()); },
          "group"_a)
      .def_prop_ro("address", &lowerkit::ProgramStep::address)
      .def("begin", &lowerkit::ProgramStep::begin)
      .def("end", &lowerkit::ProgramStep::end)
      .def("settle", &lowerkit::ProgramStep::settle, "reason"_a.none());
  module.def("step_call_address", [] { return reinterpret_cast<uint64_t>(&lk_step_call); });
  module.def("last_error", [] { return text_of(lk_last_error()); });
}
