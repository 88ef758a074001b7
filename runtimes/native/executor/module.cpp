// The Python bindings: thin, every argument is checked by the classes behind them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "checksum.h"
#include "code_image.h"
#include "cpu_features.h"
#include "index_check.h"
#include "memory.h"
#include "memory_planner.h"
#include "step_table.h"
#include "support_routines.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowerkit {
namespace {

using Int64Array = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyInt64 = nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>;

std::vector<int64_t> to_vector(const Int64Array &array) { return {array.data(), array.data() + array.size()}; }

NumpyInt64 to_numpy(std::vector<int64_t> values) {
  auto *kept = new std::vector<int64_t>(std::move(values));
  nb::capsule owner(kept, [](void *pointer) noexcept { delete static_cast<std::vector<int64_t> *>(pointer); });
  return NumpyInt64(kept->data(), {kept->size()}, owner);
}

nb::tuple plan(const Int64Array &sizes, const Int64Array &first, const Int64Array &last, int64_t alignment) {
  if (first.size() != sizes.size() || last.size() != sizes.size())
    throw std::invalid_argument("sizes, first and last differ in length");
  std::vector<LiveBuffer> buffers(sizes.size());
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i] = {sizes.data()[i], first.data()[i], last.data()[i]};
  MemoryPlan result = plan_memory(buffers, alignment);
  return nb::make_tuple(to_numpy(std::move(result.offsets)), result.total);
}

// How often each task ran in `rounds` jobs; with `nested`, each task starts a job on the same pool too. For tests.
struct Visits {
  ThreadPool &pool;
  bool nested;
  std::vector<std::atomic<int64_t>> counts;
};

void visit(void *context, int64_t begin, int64_t end, int) {
  Visits &visits = *static_cast<Visits *>(context);
  for (int64_t i = begin; i < end; ++i) {
    if (!visits.nested) {
      visits.counts[i].fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    ThreadPool::Lease inner(visits.pool);
    inner.run(1, [](void *count, int64_t, int64_t, int) { static_cast<std::atomic<int64_t> *>(count)->fetch_add(1); },
              &visits.counts[i]);
  }
}

NumpyInt64 count_visits(ThreadPool &pool, int64_t tasks, int64_t rounds, bool nested) {
  if (tasks < 0 || rounds < 0) throw std::invalid_argument("tasks and rounds must not be negative");
  Visits visits{pool, nested, std::vector<std::atomic<int64_t>>(static_cast<size_t>(tasks))};
  {
    nb::gil_scoped_release release;
    for (int64_t round = 0; round < rounds; ++round) ThreadPool::Lease(pool).run(tasks, visit, &visits);
  }
  return to_numpy({visits.counts.begin(), visits.counts.end()});
}

double fork_join_nanoseconds(ThreadPool &pool, int64_t rounds) {
  if (rounds < 1) throw std::invalid_argument("rounds must be positive");
  nb::gil_scoped_release release;
  ThreadPool::Lease lease(pool);
  const auto empty = [](void *, int64_t, int64_t, int) {};
  for (int i = 0; i < 100; ++i) lease.run(pool.threads(), empty, nullptr);
  const auto before = std::chrono::steady_clock::now();
  for (int64_t round = 0; round < rounds; ++round) lease.run(pool.threads(), empty, nullptr);
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - before;
  return elapsed.count() / static_cast<double>(rounds);
}

// numpy has no bfloat16 and refuses its DLPack capsules: hands out the same memory as unsigned 16-bit integers.
using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<nb::numpy, const uint16_t>;

Bits bfloat16_bits(const AnyArray &array) {
  const nb::dlpack::dtype type = array.dtype();
  if (type.code != static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) || type.bits != 16 || type.lanes != 1)
    throw std::invalid_argument("the array is not bfloat16");
  std::vector<size_t> shape(array.ndim());
  for (size_t i = 0; i < shape.size(); ++i) shape[i] = array.shape(i);
  nb::capsule owner(new AnyArray(array), [](void *pointer) noexcept { delete static_cast<AnyArray *>(pointer); });
  return Bits(array.data(), shape.size(), shape.data(), owner);
}

StepTable make_step_table(std::vector<uint64_t> kernels, const Int64Array &tasks, const Int64Array &buffer_begin,
                           const Int64Array &base_index, const Int64Array &offsets, const Int64Array &dim_begin,
                           const Int64Array &dims, const Int64Array &targets, const Int64Array &contexts,
                           int64_t base_count) {
  return StepTable(StepTableParts{std::move(kernels), to_vector(tasks), to_vector(buffer_begin), to_vector(base_index),
                                  to_vector(offsets), to_vector(dim_begin), to_vector(dims), to_vector(targets),
                                  to_vector(contexts), base_count});
}

void check_scratch(const ThreadPool &pool, const Memory &scratch, int64_t stride) {
  if (stride < 0 || static_cast<uint64_t>(stride) > scratch.size() / static_cast<uint64_t>(pool.threads()))
    throw std::invalid_argument("the scratch memory is smaller than threads x stride");
}

// Lets Ctrl-C end a loop that does not end by itself. Looking costs a lock, so only twenty times a second.
void heed_signals() {
  using Clock = std::chrono::steady_clock;
  thread_local Clock::time_point looked = Clock::now();
  if (Clock::now() - looked < std::chrono::milliseconds(50)) return;
  looked = Clock::now();
  nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// (step, status, number, index) of the step that ended a run, or None.
nb::object to_python(const std::optional<StepFault> &fault) {
  return fault ? nb::object(nb::make_tuple(fault->step, fault->status, fault->number, fault->index)) : nb::none();
}

// A call may have let Python's handlers of signals run, and one of them may have raised: that is why it failed.
void raise_what_a_handler_raised(const std::optional<StepFault> &fault) {
  if (fault && PyErr_Occurred()) throw nb::python_error();
}

nb::object run(StepTable &table, ThreadPool &pool, const std::vector<uint64_t> &bases, Memory &scratch,
               int64_t stride) {
  check_scratch(pool, scratch, stride);
  std::optional<StepFault> fault;
  {
    nb::gil_scoped_release release;
    fault = table.run(pool, bases, scratch.data(), stride, nullptr, heed_signals);
  }
  raise_what_a_handler_raised(fault);
  return to_python(fault);
}

nb::tuple profile(StepTable &table, ThreadPool &pool, const std::vector<uint64_t> &bases, Memory &scratch,
                  int64_t stride) {
  check_scratch(pool, scratch, stride);
  std::vector<int64_t> nanoseconds(table.steps());
  std::optional<StepFault> fault;
  {
    nb::gil_scoped_release release;
    fault = table.run(pool, bases, scratch.data(), stride, nanoseconds.data(), heed_signals);
  }
  raise_what_a_handler_raised(fault);
  return nb::make_tuple(to_numpy(std::move(nanoseconds)), to_python(fault));
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "The native part of lowerkit.runtimes: executor, thread pool, memory planner, code loader.";

  nb::register_exception_translator([](const std::exception_ptr &pointer, void *) {
    try {
      std::rethrow_exception(pointer);
    } catch (const std::system_error &error) {
      PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.what()).ptr());
    }
  });

  nb::class_<ThreadPool>(module, "ThreadPool")
      .def(nb::init<int>(), "threads"_a)
      .def_prop_ro("threads", &ThreadPool::threads)
      .def("count_visits", &count_visits, "tasks"_a, "rounds"_a, "nested"_a = false)
      .def("fork_join_nanoseconds", &fork_join_nanoseconds, "rounds"_a);

  nb::class_<Memory>(module, "Memory")
      .def(nb::init<size_t>(), "size"_a)
      .def_prop_ro("address", [](const Memory &memory) { return reinterpret_cast<uint64_t>(memory.data()); })
      .def_prop_ro("size", &Memory::size)
      .def("bytes", [](nb::handle_t<Memory> self) {
        Memory &memory = nb::cast<Memory &>(self);
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(memory.data(), {memory.size()}, self);
      });

  nb::class_<CodeImage>(module, "CodeImage")
      .def(nb::init<int, int64_t, int64_t>(), "file"_a, "offset"_a, "size"_a)
      .def_prop_ro("size", &CodeImage::size)
      .def("bytes",
           [](nb::handle_t<CodeImage> self) {
             const CodeImage &image = nb::cast<const CodeImage &>(self);
             return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(image.data(),
                                                                        {static_cast<size_t>(image.size())}, self);
           })
      .def("link", &CodeImage::link, "file"_a, "imports"_a, "import_table_offset"_a, "from_file"_a = false)
      .def("entry", &CodeImage::entry, "offset"_a);

  nb::class_<StepTable>(module, "StepTable")
      .def("__init__",
           [](StepTable *self, std::vector<uint64_t> kernels, const Int64Array &tasks, const Int64Array &buffer_begin,
              const Int64Array &base_index, const Int64Array &offsets, const Int64Array &dim_begin,
              const Int64Array &dims, const Int64Array &targets, const Int64Array &contexts, int64_t base_count) {
             new (self) StepTable(make_step_table(std::move(kernels), tasks, buffer_begin, base_index, offsets,
                                                  dim_begin, dims, targets, contexts, base_count));
           },
           "kernels"_a, "tasks"_a, "buffer_begin"_a, "base_index"_a, "offsets"_a, "dim_begin"_a, "dims"_a,
           "targets"_a, "contexts"_a, "base_count"_a)
      .def_prop_ro("steps", &StepTable::steps)
      .def_rw("most_turns", &StepTable::most_turns)
      .def("run", &run, "pool"_a, "bases"_a, "scratch"_a, "scratch_stride"_a)
      .def("profile", &profile, "pool"_a, "bases"_a, "scratch"_a, "scratch_stride"_a);

  module.def("plan_memory", &plan, "sizes"_a, "first"_a, "last"_a, "alignment"_a = 64);
  module.def("copy_kernel_address", [] { return reinterpret_cast<uint64_t>(&copy_kernel); });
  module.def("index_check_address", [] { return reinterpret_cast<uint64_t>(&index_check_kernel); });
  module.attr("COPY_TASK_BYTES") = kCopyTaskBytes;
  module.def("cpu_features", &cpu_features);
  module.def("known_cpu_features", &known_cpu_features);
  module.def("request_amx", &request_amx);
  module.def("support_routine_names", &support_routine_names);
  module.def("crc32",
             [](const ByteArray &data, ThreadPool &pool) {
               nb::gil_scoped_release release;
               return crc32(data.data(), data.size(), pool);
             },
             "data"_a, "pool"_a);
  module.def("bfloat16_bits", &bfloat16_bits, "array"_a);
}

}  // namespace lowerkit
