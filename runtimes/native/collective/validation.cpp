// What can be wrong with a call, found before a byte is sent.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <vector>

#include "operation.h"

namespace lowerkit::collective {
namespace {

constexpr int64_t kMostBytes = int64_t(1) << 46;

class Complaints {
 public:
  // The text is made only where it is needed: every call of every operation passes here.
  template <class Text>
  void expect(bool holds, Text complaint) {
    if (holds) return;
    text_ += (text_.empty() ? "" : "; ") + std::string(complaint());
  }
  const std::string &text() const { return text_; }

 private:
  std::string text_;
};

bool bitwise(int reduction) { return reduction == LK_BAND || reduction == LK_BOR || reduction == LK_BXOR; }

void check_reduction(const lk_call &call, Complaints &complaints) {
  complaints.expect(call.reduction >= 0 && call.reduction < kReductions,
                    [&] { return "unknown reduction " + std::to_string(call.reduction); });
  if (call.reduction < 0 || call.reduction >= kReductions) return;
  auto what = [&] { return std::string(kReductionNames[call.reduction]) + " of " + kDtypeNames[call.dtype]; };
  complaints.expect(!(bitwise(call.reduction) && is_float(call.dtype)),
                    [&] { return what() + ": it needs integers or bool"; });
  complaints.expect(!(call.reduction == LK_AVG && call.dtype == LK_BOOL), [&] { return "avg of bool has no meaning"; });
  complaints.expect(!(call.reduction == LK_PREMUL_SUM && !is_float(call.dtype)),
                    [&] { return what() + ": it needs floats"; });
}

void check_parts(const lk_part *parts, const char *name, const lk_call &call, int size, Complaints &complaints) {
  complaints.expect(parts != nullptr, [&] { return std::string(name) + " are missing: one for each rank"; });
  for (int i = 0; parts && i < size; ++i) {
    auto which = [&] { return std::string(name) + "[" + std::to_string(i) + "]"; };
    complaints.expect(parts[i].count >= 0 && parts[i].count <= kMostBytes / kDtypeBytes[call.dtype],
                      [&] { return which() + " has the impossible count " + std::to_string(parts[i].count); });
    complaints.expect(parts[i].data || parts[i].count == 0, [&] { return which() + " has no address"; });
  }
}

// Memory of one rank's call.
struct Piece {
  const char *begin;
  const char *end;
  bool overlaps(const Piece &other) const {
    const std::less<const char *> before;
    return before(begin, end) && before(other.begin, other.end) && before(begin, other.end) && before(other.begin, end);
  }
};

// What is read and what is written must not overlap, but for a rank's own part, which may stay in its place: results
// would depend on who comes first.
class Overlaps {
 public:
  Overlaps(const lk_call &call, int rank, int size, Complaints &complaints)
      : call_(call), rank_(rank), size_(size), complaints_(complaints) {}

  void check() {
    const Piece input = piece(call_.input, call_.count), output = piece(call_.output, call_.count);
    const bool is_root = call_.root == rank_;
    switch (call_.operation) {
      case LK_REDUCE:
        if (!is_root) return;
        [[fallthrough]];
      case LK_ALL_REDUCE:
        return expect(input.begin == output.begin || !input.overlaps(output), "output", "input");
      case LK_SCATTER:
        if (!is_root) return;
        [[fallthrough]];
      case LK_REDUCE_SCATTER:
        return expect_apart(output, "output");
      case LK_GATHER:
        if (!is_root) return;
        [[fallthrough]];
      case LK_ALL_GATHER:
        expect(disjoint_parts(), "parts", "each other");
        return expect_apart(input, "input");
      case LK_ALL_TO_ALL:
        expect(disjoint_parts(), "parts", "each other");
        for (int i = 0; i < size_; ++i)
          for (int j = 0; j < size_; ++j) {
            const Piece given = piece(call_.input_parts[i].data, call_.input_parts[i].count), taken = part(j);
            const bool stays = i == rank_ && j == rank_ && given.begin == taken.begin;
            if (!stays && given.overlaps(taken)) return expect(false, "parts", "input parts");
          }
    }
  }

 private:
  Piece piece(const void *data, int64_t count) const {
    const char *begin = static_cast<const char *>(data);
    return {begin, begin ? begin + count * kDtypeBytes[call_.dtype] : begin};
  }
  Piece part(int rank) const { return piece(call_.parts[rank].data, call_.parts[rank].count); }
  void expect(bool holds, const char *one, const char *other) {
    complaints_.expect(holds, [&] { return std::string(one) + " and " + other + " overlap in memory"; });
  }
  void expect_apart(const Piece &whole, const char *name) {
    for (int i = 0; i < size_; ++i)
      if (!(i == rank_ && part(i).begin == whole.begin) && part(i).overlaps(whole)) return expect(false, name, "parts");
  }
  bool disjoint_parts() const {
    const std::less<const char *> before;
    const char *last = nullptr;
    bool ascending = true;
    for (int i = 0; i < size_; ++i) {
      if (call_.parts[i].count == 0) continue;
      ascending = ascending && !(last && before(part(i).begin, last));
      last = part(i).end;
    }
    if (ascending) return true;
    std::vector<Piece> sorted;
    for (int i = 0; i < size_; ++i)
      if (call_.parts[i].count) sorted.push_back(part(i));
    std::sort(sorted.begin(), sorted.end(), [&](const Piece &a, const Piece &b) { return before(a.begin, b.begin); });
    for (size_t i = 1; i < sorted.size(); ++i)
      if (sorted[i - 1].overlaps(sorted[i])) return false;
    return true;
  }

  const lk_call &call_;
  const int rank_;
  const int size_;
  Complaints &complaints_;
};

}  // namespace

void validate(const lk_call &call, const std::string &group, int rank, int size) {
  Complaints complaints;
  const bool known = call.operation >= 0 && call.operation < kOperations;
  const bool typed = call.dtype >= 0 && call.dtype < kDtypes;
  complaints.expect(known, [&] { return "unknown operation " + std::to_string(call.operation); });
  complaints.expect(call.timeout >= 0, [&] { return "a negative timeout"; });
  if (known && call.operation != LK_BARRIER) {
    complaints.expect(typed, [&] { return "unknown type " + std::to_string(call.dtype); });
    complaints.expect(call.dims >= 0 && call.dims <= LK_MAX_DIMS, [&] {
      return "a shape of " + std::to_string(call.dims) + " dimensions; at most " + std::to_string(LK_MAX_DIMS);
    });
  }
  if (known && typed && call.operation != LK_BARRIER) {
    const int operation = call.operation;
    const bool is_root = call.root == rank;
    complaints.expect(call.count >= 0 && call.count <= kMostBytes / kDtypeBytes[call.dtype],
                      [&] { return "the impossible count " + std::to_string(call.count); });
    if (has_root(operation) || operation == LK_SEND || (operation == LK_RECEIVE && call.root != LK_ANY_SOURCE))
      complaints.expect(call.root >= 0 && call.root < size, [&] {
        return "rank " + std::to_string(call.root) + " is not in the group: it has ranks 0 to " +
               std::to_string(size - 1);
      });
    if (operation >= LK_SEND) {
      complaints.expect(!is_root && size > 1, [&] { return "a message to itself"; });
      complaints.expect(call.tag >= 0, [&] { return "a negative tag"; });
    }
    const bool needs_input = operation == LK_REDUCE || operation == LK_ALL_REDUCE || operation == LK_GATHER ||
                             operation == LK_ALL_GATHER || operation == LK_SEND;
    const bool needs_output = operation == LK_BROADCAST || operation == LK_ALL_REDUCE || operation == LK_SCATTER ||
                              operation == LK_REDUCE_SCATTER || operation == LK_RECEIVE ||
                              (operation == LK_REDUCE && is_root);
    complaints.expect(!needs_input || call.input || call.count == 0, [&] { return "no input"; });
    complaints.expect(!needs_output || call.output || call.count == 0, [&] { return "no output"; });
    if (operation == LK_ALL_GATHER || operation == LK_REDUCE_SCATTER || operation == LK_ALL_TO_ALL ||
        (operation == LK_GATHER && is_root) || (operation == LK_SCATTER && is_root))
      check_parts(call.parts, "parts", call, size, complaints);
    if (operation == LK_ALL_TO_ALL) check_parts(call.input_parts, "input parts", call, size, complaints);
    if (call.parts && complaints.text().empty() &&
        (operation == LK_ALL_GATHER || operation == LK_REDUCE_SCATTER || (operation == LK_GATHER && is_root) ||
         (operation == LK_SCATTER && is_root)))
      complaints.expect(call.parts[rank].count == call.count, [&] {
        return "this rank's part has " + std::to_string(call.parts[rank].count) + " elements, its buffer " +
               std::to_string(call.count);
      });
    if (operation == LK_ALL_TO_ALL && complaints.text().empty())
      complaints.expect(call.parts[rank].count == call.input_parts[rank].count, [&] {
        return "this rank keeps " + std::to_string(call.input_parts[rank].count) + " elements and expects " +
               std::to_string(call.parts[rank].count);
      });
    if (reduces(operation)) check_reduction(call, complaints);
    if (complaints.text().empty()) Overlaps(call, rank, size, complaints).check();
  }
  if (!complaints.text().empty())
    throw Failure(LK_INVALID, (known ? std::string(kOperationNames[call.operation]) : "operation") + " of group '" +
                                  group + "', rank " + std::to_string(rank) + ": " + complaints.text());
}

}  // namespace lowerkit::collective
