// Collectives over messages: all of them, on all element types, against long double and exact integers; bit for bit the
// same on all ranks; and how they fail.
#include <chrono>
#include <cmath>
#include <random>

#include "algorithms/operations.h"
#include "message_ranks.h"

using namespace ranks;

namespace {

// ---- values

double from_bits16(uint16_t bits, int dtype) {
  if (dtype == LK_BF16) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return double(value);
  }
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return double(value);
}

template <class Type>
Type load(const char *address) {
  Type value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

long double get(const std::vector<char> &data, int64_t i, int dtype) {
  const char *at = data.data() + i * kDtypeBytes[dtype];
  switch (dtype) {
    case LK_F32:
      return load<float>(at);
    case LK_F64:
      return load<double>(at);
    case LK_F16:
    case LK_BF16:
      return from_bits16(load<uint16_t>(at), dtype);
    case LK_I8:
      return load<int8_t>(at);
    case LK_I16:
      return load<int16_t>(at);
    case LK_I32:
      return load<int32_t>(at);
    case LK_I64:
      return load<int64_t>(at);
    case LK_U8:
    case LK_BOOL:
      return load<uint8_t>(at);
    case LK_U16:
      return load<uint16_t>(at);
    case LK_U32:
      return load<uint32_t>(at);
    default:
      return load<uint64_t>(at);
  }
}

// Only values that the type holds exactly.
void put(std::vector<char> &data, int64_t i, int dtype, double value) {
  char *at = data.data() + i * kDtypeBytes[dtype];
  auto store = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (dtype) {
    case LK_F32:
      return store(float(value));
    case LK_F64:
      return store(value);
    case LK_F16:
      return store(_Float16(value));
    case LK_BF16: {
      float wide = float(value);
      uint32_t bits;
      std::memcpy(&bits, &wide, 4);
      return store(uint16_t(bits >> 16));
    }
    case LK_I8:
      return store(int8_t(value));
    case LK_I16:
      return store(int16_t(value));
    case LK_I32:
      return store(int32_t(value));
    case LK_I64:
      return store(int64_t(value));
    case LK_U8:
    case LK_BOOL:
      return store(uint8_t(value));
    case LK_U16:
      return store(uint16_t(value));
    case LK_U32:
      return store(uint32_t(value));
    default:
      return store(uint64_t(value));
  }
}

// Element i of part `part` of rank `rank`. Small: sums over eight ranks fit into an int8.
double value_of(uint64_t seed, int rank, int part, int64_t i, int dtype) {
  uint64_t bits = (seed * 1000003 + uint64_t(rank) * 977 + uint64_t(part) * 65537 + uint64_t(i)) * 0x9e3779b97f4a7c15u;
  bits ^= bits >> 29;
  int number = int(bits * 0xbf58476d1ce4e5b9u >> 40) & 0xffff;
  if (dtype == LK_BOOL) return number % 2;
  if (is_float(dtype)) return (number % 128 + 64) / 64.0 * (number & 1024 ? -1 : 1);
  if (dtype >= LK_U8) return number % 13;
  return number % 25 - 12;
}

double unit_roundoff(int dtype) {
  return dtype == LK_F64 ? 0x1p-53 : dtype == LK_F32 ? 0x1p-24 : dtype == LK_F16 ? 0x1p-11 : 0x1p-8;
}

// ---- one operation on one rank

struct Case {
  int operation;
  int dtype = LK_F32;
  int reduction = LK_SUM;
  int64_t count = 0;
  int root = 0;
  uint64_t sequence = 1;
  bool in_place = false;
  std::vector<int> ranks = {};
  int64_t timeout = 120 * kSecond;

  int64_t part(int position) const {
    if (operation != LK_SCATTER && operation != LK_GATHER && operation != LK_ALL_GATHER &&
        operation != LK_REDUCE_SCATTER)
      return count;
    return std::max<int64_t>(0, count + (position % 3 - 1) * std::min<int64_t>(count, 3));
  }
  // What goes from one position to another.
  int64_t part(int from, int to) const { return std::max<int64_t>(0, count + from - 2 * to); }
};

std::string name(const Case &item, int rank) {
  return std::string(kOperationNames[item.operation]) + " of " + kDtypeNames[item.dtype] + " x " +
         std::to_string(item.count) + ", " + kReductionNames[item.reduction] + ", root " + std::to_string(item.root) +
         ", rank " + std::to_string(rank) + " of " + std::to_string(item.ranks.size());
}

constexpr double kFactor = 1.5;
constexpr char kUntouched = 0x5a;

struct Buffers {
  std::vector<char> input, output;
  std::vector<std::vector<char>> inputs, outputs;
};

std::vector<char> blank(int64_t count, int dtype) {
  return std::vector<char>(size_t((count + 1) * kDtypeBytes[dtype]), kUntouched);
}
std::vector<char> filled(const Case &item, int rank, int part, int64_t count) {
  auto data = blank(count, item.dtype);
  for (int64_t i = 0; i < count; ++i) put(data, i, item.dtype, value_of(item.sequence, rank, part, i, item.dtype));
  return data;
}

Buffers run_case(Messenger &messenger, const Case &item, int own) {
  const int size = int(item.ranks.size());
  const int rank = item.ranks[size_t(own)];
  const bool at_root = rank == item.root;
  Buffers buffers;
  lk_call call{};
  call.operation = item.operation;
  call.dtype = item.dtype;
  call.reduction = item.reduction;
  call.root = item.root;
  call.factor = item.reduction == LK_PREMUL_SUM ? kFactor : 1;
  call.count = item.part(own);
  std::vector<lk_part> parts, input_parts;
  auto parts_of = [&](std::vector<std::vector<char>> &data, auto count_of, bool fill) {
    std::vector<lk_part> result;
    for (int i = 0; i < size; ++i)
      data.push_back(fill ? filled(item, rank, i, count_of(i)) : blank(count_of(i), item.dtype));
    for (int i = 0; i < size; ++i) result.push_back({data[size_t(i)].data(), count_of(i)});
    return result;
  };
  auto of_position = [&](int i) { return item.part(i); };
  switch (item.operation) {
    case LK_BROADCAST:
      buffers.output = at_root ? filled(item, rank, 0, call.count) : blank(call.count, item.dtype);
      break;
    case LK_REDUCE:
    case LK_ALL_REDUCE:
    case LK_GATHER:
    case LK_ALL_GATHER:
      buffers.input = filled(item, rank, 0, call.count);
      buffers.output = item.in_place ? buffers.input : blank(call.count, item.dtype);
      if (item.operation == LK_ALL_GATHER || (item.operation == LK_GATHER && at_root))
        parts = parts_of(buffers.outputs, of_position, false);
      break;
    case LK_SCATTER:
      buffers.output = blank(call.count, item.dtype);
      if (at_root) parts = parts_of(buffers.inputs, of_position, true);
      break;
    case LK_REDUCE_SCATTER:
      buffers.output = blank(call.count, item.dtype);
      parts = parts_of(buffers.inputs, of_position, true);
      break;
    case LK_ALL_TO_ALL:
      input_parts = parts_of(buffers.inputs, [&](int i) { return item.part(own, i); }, true);
      parts = parts_of(buffers.outputs, [&](int i) { return item.part(i, own); }, false);
      break;
  }
  call.input = item.in_place ? buffers.output.data() : buffers.input.data();
  call.output = buffers.output.data();
  call.parts = parts.data();
  call.input_parts = input_parts.data();
  Descriptor descriptor = describe(call);
  Execution execution{call, descriptor, fingerprint(descriptor), item.sequence, Deadline::in(item.timeout), {}};
  run_over_messages(messenger, item.ranks, execution);
  return buffers;
}

// ---- what must come out

void expect_copied(const Case &item, int rank, const std::vector<char> &got, int from, int part, int64_t count) {
  if (got != filled(item, from, part, count)) check::report(__FILE__, __LINE__, name(item, rank) + ": wrong bytes");
}

void expect_reduced(const Case &item, int rank, const std::vector<char> &got, int part, int64_t count) {
  const int size = int(item.ranks.size());
  for (int64_t i = 0; i < count; ++i) {
    long double sum = 0, magnitude = 0;
    for (int position = 0; position < size; ++position) {
      long double value = value_of(item.sequence, item.ranks[size_t(position)], part, i, item.dtype);
      if (item.reduction == LK_PREMUL_SUM) value *= kFactor;
      magnitude += std::fabs(value);
      if (position == 0) {
        sum = value;
        continue;
      }
      const bool truth = item.dtype == LK_BOOL;
      switch (item.reduction) {
        case LK_PRODUCT:
          sum *= value;
          break;
        case LK_MIN:
          sum = std::min(sum, value);
          break;
        case LK_MAX:
          sum = std::max(sum, value);
          break;
        case LK_BAND:
          sum = (long double)(int64_t(sum) & int64_t(value));
          break;
        case LK_BOR:
          sum = (long double)(int64_t(sum) | int64_t(value));
          break;
        case LK_BXOR:
          sum = (long double)(int64_t(sum) ^ int64_t(value));
          break;
        default:
          sum = truth ? std::max(sum, value) : sum + value;
      }
    }
    if (item.reduction == LK_PRODUCT) magnitude = std::fabs(sum);
    if (item.reduction == LK_AVG) {
      sum /= size;
      magnitude /= size;
      if (!is_float(item.dtype)) sum = std::trunc(sum);
    }
    if (item.reduction == LK_PRODUCT && !is_float(item.dtype) && item.dtype != LK_BOOL) {
      // Exact in a long double up to 12^8; then modulo the width.
      std::vector<char> wrapped = blank(1, item.dtype);
      int64_t whole = int64_t(sum);
      std::memcpy(wrapped.data(), &whole, size_t(kDtypeBytes[item.dtype]));
      sum = get(wrapped, 0, item.dtype);
    }
    // Each of up to p + 1 roundings (p - 1 steps, factor, division) errs by at most u of what is summed so far.
    bool rounds = is_float(item.dtype) && item.reduction != LK_MIN && item.reduction != LK_MAX;
    long double nu = (size + 1) * (long double)(unit_roundoff(item.dtype));
    long double bound = rounds ? magnitude * nu / (1 - nu) : 0;
    long double found = get(got, i, item.dtype);
    if (!(std::fabs(found - sum) <= bound)) {
      check::report(__FILE__, __LINE__,
                    name(item, rank) + ": element " + std::to_string(i) + " is " + std::to_string(found) + ", not " +
                        std::to_string(sum));
      return;
    }
  }
  for (int64_t k = count * kDtypeBytes[item.dtype]; k < int64_t(got.size()); ++k)
    if (got[size_t(k)] != kUntouched && !item.in_place)
      return check::report(__FILE__, __LINE__, name(item, rank) + ": wrote behind the end");
}

void expect(const Case &item, int own, const Buffers &buffers) {
  const int rank = item.ranks[size_t(own)], size = int(item.ranks.size());
  const bool at_root = rank == item.root;
  switch (item.operation) {
    case LK_BROADCAST:
      return expect_copied(item, rank, buffers.output, item.root, 0, item.count);
    case LK_REDUCE:
      if (at_root) expect_reduced(item, rank, buffers.output, 0, item.count);
      return;
    case LK_ALL_REDUCE:
      return expect_reduced(item, rank, buffers.output, 0, item.count);
    case LK_GATHER:
    case LK_ALL_GATHER:
      for (int i = 0; i < int(buffers.outputs.size()); ++i)
        expect_copied(item, rank, buffers.outputs[size_t(i)], item.ranks[size_t(i)], 0, item.part(i));
      return;
    case LK_SCATTER:
      return expect_copied(item, rank, buffers.output, item.root, own, item.part(own));
    case LK_REDUCE_SCATTER:
      return expect_reduced(item, rank, buffers.output, own, item.part(own));
    case LK_ALL_TO_ALL:
      for (int i = 0; i < size; ++i)
        expect_copied(item, rank, buffers.outputs[size_t(i)], item.ranks[size_t(i)], own, item.part(i, own));
  }
}

std::vector<int> first_ranks(int size) {
  std::vector<int> ranks = {};
  for (int i = 0; i < size; ++i) ranks.push_back(i);
  return ranks;
}

// Runs the cases one after the other on all ranks and compares.
void run_cases(World &world, std::vector<Case> cases) {
  std::vector<std::vector<std::vector<char>>> reduced(cases.size());
  for (auto &of_case : reduced) of_case.resize(size_t(world.size));
  for (size_t i = 0; i < cases.size(); ++i) cases[i].sequence = i + 1;
  world.run_well([&](Messenger &messenger, int rank) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto &ranks = cases[i].ranks;
      auto found = std::find(ranks.begin(), ranks.end(), rank);
      if (found == ranks.end()) continue;
      int own = int(found - ranks.begin());
      Buffers buffers = run_case(messenger, cases[i], own);
      expect(cases[i], own, buffers);
      if (cases[i].operation == LK_ALL_REDUCE) reduced[i][size_t(rank)] = buffers.output;
    }
  });
  for (size_t i = 0; i < cases.size(); ++i)
    for (int rank : cases[i].ranks)
      if (reduced[i][size_t(rank)] != reduced[i][size_t(cases[i].ranks[0])])
        check::report(__FILE__, __LINE__, name(cases[i], rank) + ": other bits than the first rank");
}

bool is_defined(int dtype, int reduction) {
  bool bitwise = reduction >= LK_BAND;
  if (dtype == LK_BOOL) return reduction != LK_AVG && reduction != LK_PREMUL_SUM;
  return is_float(dtype) ? !bitwise : reduction != LK_PREMUL_SUM;
}

const int kCollectives[] = {LK_BARRIER, LK_BROADCAST,  LK_REDUCE,         LK_ALL_REDUCE, LK_SCATTER,
                            LK_GATHER,  LK_ALL_GATHER, LK_REDUCE_SCATTER, LK_ALL_TO_ALL};

}  // namespace

TEST(all_operations_at_all_sizes_and_rank_counts) {
  int turn = 0;
  for (int size : {1, 2, 3, 4, 5, 8}) {
    std::vector<Case> cases;
    for (int operation : kCollectives)
      for (int64_t count : {0, 1, 7, 1001, 8191, 8192, 8193, 16383, 16385, 70001}) {
        if ((operation == LK_BARRIER && count) || !check::taken()) continue;
        Case item{operation};
        item.ranks = first_ranks(size);
        item.count = count;
        item.root = turn++ % size;
        item.dtype = turn % 3 ? LK_F32 : LK_I16;
        item.in_place = turn % 2 && (operation == LK_ALL_REDUCE || operation == LK_REDUCE);
        cases.push_back(item);
      }
    World world(size, kTransports[size_t(turn % 4)]);
    run_cases(world, cases);
  }
}

TEST(all_reductions_of_all_types) {
  for (int size : {2, 3, 5}) {
    std::vector<Case> cases;
    for (int dtype = 0; dtype < kDtypes; ++dtype)
      for (int reduction = 0; reduction < kReductions; ++reduction)
        for (int operation : {LK_REDUCE, LK_ALL_REDUCE, LK_REDUCE_SCATTER})
          for (int64_t bytes : {int64_t(40), int64_t(40000)}) {
            if (!is_defined(dtype, reduction) || (bytes > 40 && size != 3) || !check::taken()) continue;
            Case item{operation, dtype, reduction};
            item.count = bytes / kDtypeBytes[dtype] + 1;
            item.root = size - 1;
            item.ranks = first_ranks(size);
            cases.push_back(item);
          }
    World world(size, size == 3 ? Transport::rings : Transport::sockets);
    run_cases(world, cases);
  }
}

TEST(all_types_are_moved_unchanged) {
  std::vector<Case> cases;
  for (int dtype = 0; dtype < kDtypes; ++dtype)
    for (int operation : {LK_BROADCAST, LK_SCATTER, LK_GATHER, LK_ALL_GATHER, LK_ALL_TO_ALL})
      for (int64_t count : {5, 40000}) {
        if (!check::taken()) continue;
        Case item{operation, dtype};
        item.count = count;
        item.root = 1;
        item.ranks = first_ranks(3);
        cases.push_back(item);
      }
  World world(3, Transport::mixed);
  run_cases(world, cases);
}

TEST(several_megabytes) {
  for (Transport transport : kTransports) {
    std::vector<Case> cases;
    for (int operation : kCollectives) {
      Case item{operation};
      item.count = transport == Transport::sockets ? 400007 : 120007;
      item.ranks = first_ranks(3);
      item.root = 2;
      item.reduction = transport == Transport::mixed ? LK_PREMUL_SUM : LK_AVG;
      cases.push_back(item);
    }
    World world(3, transport);
    run_cases(world, cases);
  }
}

TEST(subsets_in_any_order) {
  std::vector<Case> cases;
  for (int operation : kCollectives)
    for (int64_t count : {9, 20000}) {
      Case item{operation};
      item.count = count;
      item.ranks = {4, 1, 3};
      item.root = 1;
      cases.push_back(item);
    }
  World world(5, Transport::sockets);
  run_cases(world, cases);
}

TEST(a_network_that_delays_and_reorders_changes_nothing) {
  NetworkRules rules;
  rules.latency = 20000;
  rules.jitter = 100000;
  rules.overtaking = 0.2;
  for (uint64_t seed : {1, 2, 3}) {
    rules.seed = seed;
    std::vector<Case> cases;
    for (int operation : kCollectives)
      for (int64_t count : {3, 30000}) {
        Case item{operation};
        item.count = count;
        item.ranks = first_ranks(4);
        item.root = 3;
        cases.push_back(item);
      }
    World world(4, Transport::simulated, {}, rules);
    run_cases(world, cases);
  }
}

TEST(not_a_number_and_infinity_pass) {
  for (int64_t count : {6, 20000}) {
    World world(4, Transport::sockets);
    std::vector<std::vector<float>> results(4);
    world.run_well([&](Messenger &messenger, int rank) {
      std::vector<float> input(size_t(count), 1), &output = results[size_t(rank)];
      output.resize(size_t(count));
      if (rank == 2) input[1] = NAN, input[2] = INFINITY, input[3] = -INFINITY, input[4] = 3e38f;
      if (rank == 3) input[3] = INFINITY, input[4] = 3e38f;
      lk_call call{};
      call.operation = LK_ALL_REDUCE;
      call.count = count;
      call.input = input.data();
      call.output = output.data();
      Descriptor descriptor = describe(call);
      Execution execution{call, descriptor, fingerprint(descriptor), 1, soon(), {}};
      run_over_messages(messenger, {0, 1, 2, 3}, execution);
      CHECK(output[0] == 4 && std::isnan(output[1]) && output[2] == INFINITY && std::isnan(output[3]) &&
            output[4] == INFINITY);
    });
    for (const auto &result : results) CHECK(!std::memcmp(result.data(), results[0].data(), size_t(count) * 4));
  }
}

// ---- failures: all ranks end in time, and what they say names the rank

namespace {

// A deadline that only bounds what goes wrong is far; one that the test waits for leaves room for ranks that a busy
// machine holds up.
Case failing(int operation, int size, int64_t count, int64_t timeout = 120 * kSecond) {
  Case item{operation};
  item.count = count;
  item.ranks = first_ranks(size);
  item.timeout = timeout;
  return item;
}

bool says(const World &world, const std::string &words) {
  for (const std::string &error : world.errors)
    if (error.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST(a_rank_that_never_comes_is_named) {
  for (int operation : kCollectives)
    for (int64_t count : {5, 50000}) {
      World world(3, Transport::sockets);
      Case item = failing(operation, 3, count, kSecond / 2);
      item.root = 2;  // whom all others need
      if (operation == LK_REDUCE || operation == LK_GATHER) item.root = 0;
      // Who only had to send to a rank that came is through.
      const bool rank_1_is_through = operation == LK_GATHER || (operation == LK_REDUCE && count == 5);
      auto start = monotonic_nanoseconds();
      world.run([&](Messenger &messenger, int rank) {
        if (rank != 2) run_case(messenger, item, rank);
      });
      CHECK(monotonic_nanoseconds() - start < 100 * kSecond);
      // Also where it is another rank that waits for it: the line of those who wait is in the message.
      for (int rank : {0, 1}) {
        if (rank == 1 && rank_1_is_through) continue;
        const std::string &error = world.errors[size_t(rank)];
        if (error.find(std::string(kOperationNames[operation]) + " #1") == std::string::npos ||
            error.find("rank 2") == std::string::npos)
          check::report(__FILE__, __LINE__, name(item, rank) + ": " + error);
      }
    }
}

TEST(ranks_in_different_operations_find_out) {
  for (int operation : kCollectives)
    for (int other : kCollectives)
      for (int64_t count : {5, 50000}) {
        if (operation == other || !check::taken()) continue;
        World world(3, Transport::sockets);
        Case item = failing(operation, 3, count, kSecond), second = failing(other, 3, count, kSecond);
        Case later = failing(LK_BARRIER, 3, 0, kSecond);
        item.root = 2;
        later.sequence = 2;
        std::atomic<int> through{0};
        world.run([&](Messenger &messenger, int rank) {
          run_case(messenger, rank == 1 ? second : item, rank);
          // A root that only sends may be through. Whoever was sent what it does not expect fails in the barrier; the
          // root may pass that too, and learns in the next one.
          run_case(messenger, later, rank);
          ++through;
          Case last = later;
          last.sequence = 3;
          run_case(messenger, last, rank);
        });
        CHECK(through <= 1);
        bool found = false;
        for (lk_status status : world.statuses) found |= status == LK_DESYNC;
        found |= says(world, "but rank");
        if (!found)
          check::report(__FILE__, __LINE__, name(item, 0) + " against " + name(second, 1) + ": " + world.errors[0]);
        for (const std::string &error : world.errors) CHECK(!error.empty());
      }
}

TEST(parts_of_different_lengths_find_out) {
  for (int operation : {LK_SCATTER, LK_GATHER, LK_ALL_GATHER, LK_REDUCE_SCATTER, LK_ALL_TO_ALL})
    for (int64_t count : {5, 50000})
      for (int64_t more : {int64_t(1), int64_t(100000), -count}) {
        if (!check::taken()) continue;
        World world(3, Transport::sockets);
        Case item = failing(operation, 3, count), longer = failing(operation, 3, count + more);
        world.run([&](Messenger &messenger, int rank) { run_case(messenger, rank == 1 ? longer : item, rank); });
        bool found = false;
        for (lk_status status : world.statuses) found |= status == LK_DESYNC;
        if (!found)
          check::report(__FILE__, __LINE__, name(item, 0) + " + " + std::to_string(more) + ": " + world.errors[0]);
      }
}

TEST(a_death_at_any_frame_ends_the_operation_on_all_ranks) {
  for (int operation : kCollectives)
    for (int64_t count : {5, 50000})
      for (uint64_t frame : {0, 1, 3}) {
        if (!check::taken()) continue;
        NetworkRules rules;
        rules.deaths = {{1, frame}};
        World world(4, Transport::simulated, {}, rules);
        Case item = failing(operation, 4, count);
        auto start = monotonic_nanoseconds();
        world.run([&](Messenger &messenger, int rank) {
          for (uint64_t sequence = 1; sequence <= 8; ++sequence) {
            Case repeated = item;
            repeated.sequence = sequence;
            // A rank that only receives never dies of sending: the root goes round.
            repeated.root = int(sequence) % 4;
            run_case(messenger, repeated, rank);
          }
        });
        CHECK(monotonic_nanoseconds() - start < 100 * kSecond);
        CHECK(world.errors[1] == "rank 1 died in the simulation");
        for (int rank : {0, 2, 3})
          CHECK(world.statuses[size_t(rank)] == LK_PEER_LOST || world.statuses[size_t(rank)] == LK_ABORTED);
        CHECK(says(world, "the connection to rank 1 ended"));
      }
}

TEST(a_connection_that_breaks_ends_the_operation_on_all_ranks) {
  for (Transport transport : {Transport::sockets, Transport::rings, Transport::mixed})
    for (int operation : kCollectives) {
      if (!check::taken()) continue;
      World world(4, transport);
      Case item = failing(operation, 4, 50000);
      auto start = monotonic_nanoseconds();
      world.run([&](Messenger &messenger, int rank) {
        for (uint64_t sequence = 1; sequence <= 6; ++sequence) {
          Case repeated = item;
          repeated.sequence = sequence;
          repeated.root = int(sequence) % 4;
          if (rank == 2 && sequence == 3) return world.kill(2);
          run_case(messenger, repeated, rank);
        }
      });
      CHECK(monotonic_nanoseconds() - start < 100 * kSecond);
      for (int rank : {0, 1, 3})
        CHECK(world.statuses[size_t(rank)] == LK_PEER_LOST || world.statuses[size_t(rank)] == LK_ABORTED);
      CHECK(says(world, "the connection to rank 2 ended"));
    }
}

TEST(loss_and_partition_end_in_named_timeouts) {
  for (int operation : kCollectives)
    for (bool cut : {false, true}) {
      NetworkRules rules;
      if (cut)
        rules.island = {1};
      else
        rules.loss = 1;
      World world(3, Transport::simulated, {}, rules);
      Case item = failing(operation, 3, 5, kSecond / 5);
      item.root = 0;
      world.run([&](Messenger &messenger, int rank) { run_case(messenger, item, rank); });
      bool late = false;
      for (lk_status status : world.statuses) late |= status == LK_TIMEOUT;
      CHECK(late && says(world, std::string(kOperationNames[operation]) + " #1") && says(world, "within 0.2 s"));
    }
}

int main(int count, char **arguments) {
  return check::run(count > 1 ? arguments[1] : "", count > 2 ? arguments[2] : "1");
}
