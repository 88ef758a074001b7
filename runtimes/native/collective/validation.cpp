// What can be wrong with a call, found before a byte is sent.
#include <initializer_list>

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
      complaints.expect(!is_root, [&] { return "a message to itself"; });
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
  }
  if (!complaints.text().empty())
    throw Failure(LK_INVALID, (known ? std::string(kOperationNames[call.operation]) : "operation") + " of group '" +
                                  group + "', rank " + std::to_string(rank) + ": " + complaints.text());
}

}  // namespace lowerkit::collective
