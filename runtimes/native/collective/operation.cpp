#include "operation.h"

#include <algorithm>

namespace lowerkit::collective {
namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  // The finalizer of splitmix64: every bit of `value` reaches every bit of the result.
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

std::string arguments(const Descriptor &descriptor) {
  if (descriptor.operation == LK_BARRIER) return "";
  std::string text;
  if (reduces(descriptor.operation) && descriptor.reduction < kReductions)
    text = std::string(kReductionNames[descriptor.reduction]) + ", ";
  text += descriptor.dtype < kDtypes ? kDtypeNames[descriptor.dtype] : "unknown type";
  text += " x " + std::to_string(descriptor.count);
  if (descriptor.dims) {
    text += ", shape ";
    for (int i = 0; i < std::min<int>(descriptor.dims, LK_MAX_DIMS); ++i)
      text += (i ? "x" : "") + std::to_string(descriptor.shape[i]);
  }
  if (has_root(descriptor.operation)) text += ", root " + std::to_string(descriptor.root);
  if (descriptor.operation == LK_SEND) text += ", to rank " + std::to_string(descriptor.root);
  if (descriptor.operation == LK_RECEIVE)
    text += descriptor.root < 0 ? ", from any rank" : ", from rank " + std::to_string(descriptor.root);
  return text;
}

const char *name_of(const Descriptor &descriptor) {
  return descriptor.operation < kOperations ? kOperationNames[descriptor.operation] : "unknown operation";
}

}  // namespace

Descriptor describe(const lk_call &call) {
  Descriptor descriptor;
  descriptor.operation = uint8_t(call.operation);
  if (call.operation == LK_BARRIER) return descriptor;
  descriptor.dtype = uint8_t(call.dtype);
  descriptor.reduction = reduces(call.operation) ? uint8_t(call.reduction) : 0;
  descriptor.root = has_root(call.operation) || call.operation >= LK_SEND ? call.root : 0;
  descriptor.count = call.count;
  descriptor.dims = uint8_t(call.dims);
  for (int i = 0; i < call.dims; ++i) descriptor.shape[i] = call.shape[i];
  return descriptor;
}

uint64_t fingerprint(const Descriptor &descriptor) {
  uint64_t hash =
      mixed(0, uint64_t(descriptor.operation) | uint64_t(descriptor.dtype) << 8 | uint64_t(descriptor.reduction) << 16 |
                   uint64_t(descriptor.dims) << 24 | uint64_t(uint32_t(descriptor.root)) << 32);
  if (!has_parts(descriptor.operation)) hash = mixed(hash, uint64_t(descriptor.count));
  for (int i = 0; i < descriptor.dims; ++i) hash = mixed(hash, uint64_t(descriptor.shape[i]));
  return hash ? hash : 1;
}

uint64_t fingerprint(const Descriptor &descriptor, const lk_part *parts, int count) {
  uint64_t hash = fingerprint(descriptor);
  for (int i = 0; i < count; ++i) hash = mixed(hash, uint64_t(parts[i].count));
  return hash ? hash : 1;
}

uint64_t fingerprint_of_number(uint64_t fingerprint, uint64_t sequence) {
  const uint64_t hash = mixed(fingerprint, sequence);
  return hash ? hash : 1;
}

std::string to_string(const Descriptor &descriptor) {
  return std::string(name_of(descriptor)) + "(" + arguments(descriptor) + ")";
}

std::string to_string(const Descriptor &descriptor, uint64_t sequence, const std::string &group, int rank) {
  std::string text = name_of(descriptor);
  if (sequence) text += " #" + std::to_string(sequence);
  std::string inner = arguments(descriptor);
  if (!inner.empty()) text += " (" + inner + ")";
  return text + " of group '" + group + "', rank " + std::to_string(rank);
}

Membership::Membership(std::string group, int own, int ranks)
    : name(std::move(group)), rank(own), size(ranks), dead_(size_t(ranks)) {}

void Membership::abort(lk_status cause, const std::string &reason, int blamed) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted()) return;
  cause_ = cause;
  reason_ = reason;
  blamed_ = blamed;
  aborted_.store(true, std::memory_order_release);
}

std::string Membership::reason() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
}

void Membership::throw_aborted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  throw Failure(LK_ABORTED, "group '" + name + "' was aborted: " + reason_, blamed_);
}

}  // namespace lowerkit::collective
