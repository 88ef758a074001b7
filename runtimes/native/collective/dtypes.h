// Names and sizes of element types, reductions and operations.
#pragma once

#include <cstdint>

#include "lowerkit_collective.h"

namespace lowerkit::collective {

constexpr int kDtypes = 13;
constexpr int kReductions = 9;
constexpr int kOperations = 11;

constexpr int64_t kDtypeBytes[kDtypes] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
constexpr const char *kDtypeNames[kDtypes] = {"f32", "f64", "f16", "bf16", "i8",  "i16", "i32",
                                              "i64", "u8",  "u16", "u32",  "u64", "bool"};
constexpr const char *kReductionNames[kReductions] = {"sum",        "product", "min", "max", "avg",
                                                      "premul_sum", "band",    "bor", "bxor"};
constexpr const char *kOperationNames[kOperations] = {"barrier",    "broadcast", "reduce",     "all_reduce",
                                                      "scatter",    "gather",    "all_gather", "reduce_scatter",
                                                      "all_to_all", "send",      "receive"};

inline bool is_float(int dtype) { return dtype <= LK_BF16; }
inline bool reduces(int operation) {
  return operation == LK_REDUCE || operation == LK_ALL_REDUCE || operation == LK_REDUCE_SCATTER;
}
// Their parts may differ in length between ranks: each pair compares its own.
inline bool has_parts(int operation) { return operation >= LK_SCATTER && operation <= LK_ALL_TO_ALL; }
inline bool has_root(int operation) {
  return operation == LK_BROADCAST || operation == LK_REDUCE || operation == LK_SCATTER || operation == LK_GATHER;
}

}  // namespace lowerkit::collective
