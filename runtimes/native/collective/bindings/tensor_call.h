// A call of the collectives, made from a framework's tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <vector>

#include "lowerkit_collective.h"
#include "tensor_access.h"

namespace lowerkit {

// One side of an operation between tensors: nothing, a tensor, or a list with a tensor for each rank.
class Side {
 public:
  // False: not the plain case (contiguous, on the CPU, of one native type).
  bool read(nanobind::handle given);
  bool absent() const { return !tensor_ && parts_.empty(); }
  int dtype() const { return dtype_; }  // -1: absent
  const TensorAccess *tensor() const { return tensor_ ? &*tensor_ : nullptr; }

  // One part for each rank: those of the list, or equal ones that lie one after another in the tensor. Null: the list
  // is of another length, or the tensor is empty or does not divide.
  lk_part *parts(int ranks);
  bool divides_by_rows(int ranks) const {
    return !tensor_ || (tensor_->tensor.ndim && tensor_->tensor.shape[0] % ranks == 0);
  }

 private:
  std::optional<TensorAccess> tensor_;
  std::vector<lk_part> parts_;
  int dtype_ = -1;
};

class TensorCall {
 public:
  TensorCall(int ranks, int rank) : ranks_(ranks), rank_(rank) {}

  // False: the tensors are not the plain case, or do not fit the operation.
  bool make(int operation, nanobind::handle output, nanobind::handle input, int reduction, int root, int64_t timeout);
  const lk_call &call() const { return call_; }

 private:
  bool fill();
  bool set_shape(const TensorAccess &access);

  int ranks_;
  int rank_;
  Side output_;
  Side input_;
  lk_call call_{};
};

}  // namespace lowerkit
