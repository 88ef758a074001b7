// Every operation over shared memory, sockets and both, against what it is defined to give; sizes around each change of
// algorithm.
//   collectives_test [SEED] [MOST_RANKS] [MOST_ELEMENTS]
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "ranks.h"

namespace {

constexpr int kDtypes = 13;

// Small whole numbers: every type holds their sums and products exactly.
double value(int rank, int64_t i, uint64_t seed) { return double((uint64_t(rank) * 7 + uint64_t(i) * 3 + seed) % 4); }

struct Buffer {
  Buffer(int dtype, int64_t count) : dtype(dtype), count(count), bytes(size_t(count * lk_dtype_bytes(dtype)) + 1) {}
  void set(int64_t i, double v) {
    switch (dtype) {
      case LK_F32:
        return put(i, float(v));
      case LK_F64:
        return put(i, v);
      case LK_F16:
        return put(i, _Float16(v));
      case LK_BF16: {
        float wide = float(v);
        uint32_t bits;
        std::memcpy(&bits, &wide, 4);
        return put(i, uint16_t(bits >> 16));
      }
      case LK_I8:
        return put(i, int8_t(v));
      case LK_I16:
        return put(i, int16_t(v));
      case LK_I32:
        return put(i, int32_t(v));
      case LK_I64:
        return put(i, int64_t(v));
      case LK_U8:
        return put(i, uint8_t(v));
      case LK_U16:
        return put(i, uint16_t(v));
      case LK_U32:
        return put(i, uint32_t(v));
      case LK_U64:
        return put(i, uint64_t(v));
      default:
        return put(i, uint8_t(v != 0));
    }
  }
  double get(int64_t i) const {
    switch (dtype) {
      case LK_F32:
        return take<float>(i);
      case LK_F64:
        return take<double>(i);
      case LK_F16:
        return double(take<_Float16>(i));
      case LK_BF16: {
        uint32_t bits = uint32_t(take<uint16_t>(i)) << 16;
        float wide;
        std::memcpy(&wide, &bits, 4);
        return wide;
      }
      case LK_I8:
        return take<int8_t>(i);
      case LK_I16:
        return take<int16_t>(i);
      case LK_I32:
        return take<int32_t>(i);
      case LK_I64:
        return double(take<int64_t>(i));
      case LK_U8:
        return take<uint8_t>(i);
      case LK_U16:
        return take<uint16_t>(i);
      case LK_U32:
        return take<uint32_t>(i);
      case LK_U64:
        return double(take<uint64_t>(i));
      default:
        return take<uint8_t>(i);
    }
  }
  template <class T>
  void put(int64_t i, T v) {
    std::memcpy(&bytes[size_t(i) * sizeof(T)], &v, sizeof(T));
  }
  template <class T>
  T take(int64_t i) const {
    T v;
    std::memcpy(&v, &bytes[size_t(i) * sizeof(T)], sizeof(T));
    return v;
  }
  void fill(int rank, uint64_t seed) {
    for (int64_t i = 0; i < count; ++i) set(i, value(rank, i, seed));
  }
  void *data() { return bytes.data(); }

  int dtype;
  int64_t count;
  std::vector<uint8_t> bytes;
};

double expected(int dtype, int reduction, int size, int64_t i, uint64_t seed, double factor) {
  auto of = [&](int rank) {
    double v = value(rank, i, seed);
    return dtype == LK_BOOL ? double(v != 0) : v;
  };
  double result = of(0) * (reduction == LK_PREMUL_SUM ? factor : 1);
  for (int rank = 1; rank < size; ++rank) {
    double v = of(rank);
    switch (reduction) {
      case LK_PRODUCT:
        result *= v;
        break;
      case LK_MIN:
        result = std::min(result, v);
        break;
      case LK_MAX:
        result = std::max(result, v);
        break;
      case LK_BAND:
        result = double(int(result) & int(v));
        break;
      case LK_BOR:
        result = double(int(result) | int(v));
        break;
      case LK_BXOR:
        result = double(int(result) ^ int(v));
        break;
      case LK_PREMUL_SUM:
        result += v * factor;
        break;
      default:
        result = dtype == LK_BOOL ? double(result != 0 || v != 0) : result + v;
    }
  }
  if (reduction == LK_AVG) {
    if (dtype == LK_F32) return float(float(result) / float(size));
    if (dtype == LK_F64) return result / size;
    if (dtype == LK_F16) return double(_Float16(float(result) / float(size)));
    if (dtype == LK_BF16) {
      float quotient = float(result) / float(size);
      uint32_t bits;
      std::memcpy(&bits, &quotient, 4);
      bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
      std::memcpy(&quotient, &bits, 4);
      return quotient;
    }
    return std::trunc(result / size);
  }
  return result;
}

bool allowed(int dtype, int reduction) {
  const bool floats = dtype <= LK_BF16;
  if (reduction == LK_BAND || reduction == LK_BOR || reduction == LK_BXOR) return !floats;
  if (reduction == LK_PREMUL_SUM) return floats;
  return !(reduction == LK_AVG && dtype == LK_BOOL);
}

// Largest product of `size` values below 4 must fit the type.
bool fits(int dtype, int reduction, int size) {
  return reduction != LK_PRODUCT || size <= 3 || lk_dtype_bytes(dtype) > 2;
}

lk_call call_of(int operation, int dtype, int64_t count) {
  lk_call call{};
  call.operation = operation;
  call.dtype = dtype;
  call.count = count;
  call.factor = 1;
  return call;
}

void check_reductions(Ranks &ranks, int64_t count, uint64_t seed, bool in_place, bool asynchronous) {
  const int size = ranks.size();
  ranks.run([&](int rank, lk_group *group) {
    for (int dtype = 0; dtype < kDtypes; ++dtype)
      for (int reduction = 0; reduction <= LK_BXOR; ++reduction) {
        if (!allowed(dtype, reduction) || !fits(dtype, reduction, size)) continue;
        if (count > 3000 && (dtype * 9 + reduction + int(seed)) % 7) continue;  // a share of the large ones
        Buffer input(dtype, count), output(dtype, count);
        input.fill(rank, seed);
        for (int root = -1; root < std::min(size, 2); ++root) {
          lk_call call = call_of(root < 0 ? LK_ALL_REDUCE : LK_REDUCE, dtype, count);
          call.reduction = reduction;
          call.factor = 0.5;
          call.root = std::max(root, 0);
          Buffer copy = input;
          call.input = in_place ? copy.data() : input.data();
          call.output = in_place ? copy.data() : output.data();
          if (asynchronous) {
            lk_work *work;
            REQUIRE(lk_start(group, &call, &work) == LK_OK, "start");
            REQUIRE(lk_work_wait(work, 0) == LK_OK, "wait");
            REQUIRE(lk_work_test(work) == LK_OK, "test");
            lk_work_release(work);
          } else {
            REQUIRE(lk_run(group, &call) == LK_OK, "run");
          }
          if (root >= 0 && root != rank) continue;
          Buffer &result = in_place ? copy : output;
          for (int64_t i = 0; i < count; ++i)
            REQUIRE(result.get(i) == expected(dtype, reduction, size, i, seed, 0.5),
                    "%d ranks, dtype %d, reduction %d, count %lld, element %lld: %g", size, dtype, reduction,
                    (long long)count, (long long)i, result.get(i));
        }
      }
  });
}

void check_moves(Ranks &ranks, int64_t count, uint64_t seed) {
  const int size = ranks.size();
  ranks.run([&](int rank, lk_group *group) {
    const int dtype = int(seed % 12);
    for (int root = 0; root < size; ++root) {
      Buffer data(dtype, count);
      if (rank == root) data.fill(root, seed);
      lk_call call = call_of(LK_BROADCAST, dtype, count);
      call.root = root;
      call.output = data.data();
      REQUIRE(lk_run(group, &call) == LK_OK, "broadcast");
      for (int64_t i = 0; i < count; ++i)
        REQUIRE(data.get(i) == value(root, i, seed), "broadcast element %lld", (long long)i);
    }
    // Uneven: rank r has count + r elements.
    auto length = [&](int r) { return count + r; };
    Buffer own(dtype, length(rank));
    own.fill(rank, seed);
    std::vector<Buffer> buffers;
    std::vector<lk_part> parts;
    for (int r = 0; r < size; ++r) buffers.emplace_back(dtype, length(r));
    for (int r = 0; r < size; ++r) parts.push_back({buffers[size_t(r)].data(), length(r)});
    for (int root = -1; root < size; ++root) {
      lk_call call = call_of(root < 0 ? LK_ALL_GATHER : LK_GATHER, dtype, length(rank));
      call.root = std::max(root, 0);
      call.input = own.data();
      call.parts = root < 0 || root == rank ? parts.data() : nullptr;
      for (auto &buffer : buffers) std::fill(buffer.bytes.begin(), buffer.bytes.end(), uint8_t(0xee));
      REQUIRE(lk_run(group, &call) == LK_OK, "gather");
      if (root >= 0 && root != rank) continue;
      for (int r = 0; r < size; ++r)
        for (int64_t i = 0; i < length(r); ++i)
          REQUIRE(buffers[size_t(r)].get(i) == value(r, i, seed), "gather from %d, element %lld", r, (long long)i);
    }
    for (int root = 0; root < size; ++root) {
      Buffer received(dtype, length(rank));
      if (rank == root)
        for (int r = 0; r < size; ++r) buffers[size_t(r)].fill(r, seed);
      lk_call call = call_of(LK_SCATTER, dtype, length(rank));
      call.root = root;
      call.output = received.data();
      call.parts = rank == root ? parts.data() : nullptr;
      REQUIRE(lk_run(group, &call) == LK_OK, "scatter");
      for (int64_t i = 0; i < length(rank); ++i)
        REQUIRE(received.get(i) == value(rank, i, seed), "scatter element %lld", (long long)i);
    }
    for (int reduction : {int(LK_SUM), int(LK_MAX), int(LK_AVG), int(LK_PREMUL_SUM)}) {
      if (!allowed(dtype, reduction)) continue;
      Buffer received(dtype, length(rank));
      for (int r = 0; r < size; ++r) buffers[size_t(r)].fill(rank, seed);
      lk_call call = call_of(LK_REDUCE_SCATTER, dtype, length(rank));
      call.reduction = reduction;
      call.factor = 0.5;
      call.parts = parts.data();
      call.output = received.data();
      REQUIRE(lk_run(group, &call) == LK_OK, "reduce_scatter");
      for (int64_t i = 0; i < length(rank); ++i)
        REQUIRE(received.get(i) == expected(dtype, reduction, size, i, seed, 0.5), "reduce_scatter element %lld",
                (long long)i);
    }
    // Rank a sends b * 5 + a % 3 + count / size elements to rank b.
    auto sent = [&](int from, int to) { return int64_t(to) * 5 + from % 3 + count / size; };
    std::vector<Buffer> outgoing, incoming;
    std::vector<lk_part> given, taken;
    for (int r = 0; r < size; ++r) {
      outgoing.emplace_back(dtype, sent(rank, r));
      outgoing.back().fill(rank * size + r, seed);
      incoming.emplace_back(dtype, sent(r, rank));
    }
    for (int r = 0; r < size; ++r) {
      given.push_back({outgoing[size_t(r)].data(), sent(rank, r)});
      taken.push_back({incoming[size_t(r)].data(), sent(r, rank)});
    }
    lk_call call = call_of(LK_ALL_TO_ALL, dtype, 0);
    call.input_parts = given.data();
    call.parts = taken.data();
    REQUIRE(lk_run(group, &call) == LK_OK, "all_to_all");
    for (int r = 0; r < size; ++r)
      for (int64_t i = 0; i < sent(r, rank); ++i)
        REQUIRE(incoming[size_t(r)].get(i) == value(r * size + rank, i, seed), "all_to_all from %d, element %lld", r,
                (long long)i);
    lk_call barrier = call_of(LK_BARRIER, 0, 0);
    REQUIRE(lk_run(group, &barrier) == LK_OK, "barrier");
  });
}

// Random operations one after the other, with nothing between: what alternating areas and tile counters must survive.
void check_mixtures(Ranks &ranks, uint64_t seed, int steps, int64_t longest) {
  const int size = ranks.size();
  ranks.run([&](int rank, lk_group *group) {
    std::mt19937_64 random(seed);
    std::mt19937_64 own(seed * 31 + uint64_t(rank));
    for (int step = 0; step < steps; ++step) {
      const int64_t sizes[] = {1, 12, 13, 1000, 4000, 5000, 20000, 70000, 300000, 1000000};
      const int64_t count = std::min(sizes[random() % 10], longest);
      const int operation = int(random() % 4);
      const int root = int(random() % uint64_t(size));
      if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
      Buffer data(LK_I32, count);
      data.fill(rank, uint64_t(step));
      lk_call call = call_of(operation == 0 ? LK_BROADCAST : operation == 1 ? LK_REDUCE : LK_ALL_REDUCE, LK_I32, count);
      call.root = root;
      call.input = call.output = data.data();
      REQUIRE(lk_run(group, &call) == LK_OK, "mixture");
      if (operation == 1 && rank != root) continue;
      for (int64_t i = 0; i < count; i += count > 100 ? count / 97 : 1) {
        double right =
            operation == 0 ? value(root, i, uint64_t(step)) : expected(LK_I32, LK_SUM, size, i, uint64_t(step), 1);
        REQUIRE(data.get(i) == right, "step %d, operation %d, count %lld, element %lld", step, operation,
                (long long)count, (long long)i);
      }
    }
  });
}

void check_arena(int size, int64_t longest) {
  Ranks ranks(size);
  const int64_t bytes = 4 << 20;
  int arena = memfd_create("arena", MFD_CLOEXEC);
  REQUIRE(ftruncate(arena, bytes * size) == 0, "arena");
  ranks.run([&](int rank, lk_group *group) {
    void *own;
    REQUIRE(lk_group_attach_arena(group, arena, bytes, &own) == LK_OK, "attach");
    for (int64_t count : {1, 5000, 100001, 1000000}) {
      if (count > longest) break;
      for (int reduction : {int(LK_SUM), int(LK_AVG), int(LK_PREMUL_SUM)})
        for (bool inside : {true, false}) {  // outside: one rank's buffer is not in the arena
          Buffer source(LK_F32, count);
          source.fill(rank, 5);
          float *data = inside || rank ? static_cast<float *>(own) : reinterpret_cast<float *>(source.data());
          std::memcpy(data, source.data(), size_t(count) * 4);
          lk_call call = call_of(LK_ALL_REDUCE, LK_F32, count);
          call.reduction = reduction;
          call.factor = 0.5;
          call.input = call.output = data;
          REQUIRE(lk_run(group, &call) == LK_OK, "all_reduce in the arena");
          for (int64_t i = 0; i < count; ++i)
            REQUIRE(data[i] == float(expected(LK_F32, reduction, size, i, 5, 0.5)), "arena element %lld of %lld",
                    (long long)i, (long long)count);
        }
    }
  });
  close(arena);
}

}  // namespace

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int most = argc > 2 ? std::atoi(argv[2]) : 8;
  const int64_t longest = argc > 3 ? std::atoll(argv[3]) : 1000000;
  for (int size : {1, 2, 3, 4, 5, 8}) {
    if (size > most) break;
    lk_tuning small{};
    small.tile_bytes = 64 << 10;
    Ranks ranks(size), tiled(size, 120000000000, small);
    for (int64_t count : {0, 1, 5, 6, 12, 13, 100, 4096, 4097, 16000, 16385}) {
      check_reductions(ranks, count, seed + uint64_t(count), count % 2, count % 3 == 0);
      check_moves(ranks, count, seed + uint64_t(count));
    }
    for (int64_t count : {20003, 70001, 400003}) {
      if (count > longest) break;
      check_reductions(tiled, count, seed + uint64_t(count), count % 2, false);
      check_moves(size % 2 ? ranks : tiled, count, seed + uint64_t(count));
    }
    check_mixtures(ranks, seed, 60, longest);
    check_mixtures(tiled, seed + 1, 60, longest);
    if (size > 1) check_arena(size, longest);
    for (int hosts : {0, 2, 3}) {  // sockets alone, and memory on each of several hosts
      if (hosts > size || size == 1) continue;
      Ranks apart(size, 120000000000, {}, hosts);
      for (int64_t count : {0, 1, 13, 4097, 20000, 100003}) {
        if (count > longest) break;
        check_reductions(apart, count, seed + uint64_t(count), count % 2, count % 3 == 0);
        check_moves(apart, count, seed + uint64_t(count));
      }
      check_mixtures(apart, seed, 20, longest);
    }
    std::printf("%d ranks\n", size);
    std::fflush(stdout);
  }
}
