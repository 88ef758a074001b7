#include "tensor_call.h"

namespace nb = nanobind;

namespace lowerkit {

bool Side::read(nb::handle given) {
  if (given.is_none()) return true;
  if (!PyList_Check(given.ptr())) {
    tensor_.emplace();
    if (!read_tensor(given, *tensor_)) return false;
    dtype_ = tensor_->dtype;
    return true;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given.ptr()); ++i) {
    TensorAccess access;
    if (!read_tensor(PyList_GET_ITEM(given.ptr(), i), access) || (i && access.dtype != dtype_)) return false;
    dtype_ = access.dtype;
    parts_.push_back({access.data(), access.count});
  }
  return true;
}

lk_part *Side::parts(int ranks) {
  if (tensor_ && parts_.empty() && tensor_->count && tensor_->count % ranks == 0) {
    const int64_t each = tensor_->count / ranks;
    const int64_t bytes = each * lk_dtype_bytes(tensor_->dtype);
    for (int rank = 0; rank < ranks; ++rank)
      parts_.push_back({static_cast<uint8_t *>(tensor_->data()) + rank * bytes, each});
  }
  return int(parts_.size()) == ranks ? parts_.data() : nullptr;
}

bool TensorCall::set_shape(const TensorAccess &access) {
  if (access.tensor.ndim > LK_MAX_DIMS) return false;
  for (int axis = 0; axis < access.tensor.ndim; ++axis) call_.shape[call_.dims++] = access.tensor.shape[axis];
  return true;
}

// What the operation reads and writes, from its tensors. False: they do not fit it.
bool TensorCall::fill() {
  const bool is_root = call_.root == rank_;
  const TensorAccess *to = output_.tensor(), *from = input_.tensor();
  switch (call_.operation) {
    case LK_BROADCAST:
    case LK_REDUCE:
    case LK_ALL_REDUCE:
      if (!to || !from || to->data() != from->data() || to->count != from->count || !set_shape(*to)) return false;
      call_.count = to->count;
      if (call_.operation != LK_BROADCAST) call_.input = to->data();
      if (call_.operation != LK_REDUCE || is_root) call_.output = to->data();
      return true;
    case LK_GATHER:
      if (!from || to || !set_shape(*from)) return false;
      call_.count = from->count;
      call_.input = from->data();
      call_.parts = is_root ? output_.parts(ranks_) : nullptr;
      return is_root == bool(call_.parts) && (is_root || output_.absent());
    case LK_SCATTER:
      if (!to || from || !set_shape(*to)) return false;
      call_.count = to->count;
      call_.output = to->data();
      call_.parts = is_root ? input_.parts(ranks_) : nullptr;
      return is_root == bool(call_.parts) && (is_root || input_.absent());
    case LK_ALL_GATHER:
      if (!from || (to && to->count != from->count * ranks_)) return false;
      call_.count = from->count;
      call_.input = from->data();
      call_.parts = output_.parts(ranks_);
      return call_.parts;
    case LK_REDUCE_SCATTER:
      if (!to || (from && from->count != to->count * ranks_)) return false;
      call_.count = to->count;
      call_.output = to->data();
      call_.parts = input_.parts(ranks_);
      return call_.parts;
    case LK_ALL_TO_ALL:
      if (!output_.divides_by_rows(ranks_) || !input_.divides_by_rows(ranks_)) return false;
      call_.input_parts = input_.parts(ranks_);
      call_.parts = output_.parts(ranks_);
      return call_.input_parts && call_.parts;
    default:
      return false;
  }
}

bool TensorCall::make(int operation, nb::handle output, nb::handle input, int reduction, int root, int64_t timeout) {
  if (!output_.read(output)) return false;
  if (output.is(input))
    input_ = output_;
  else if (!input_.read(input))
    return false;
  if (output_.dtype() >= 0 && input_.dtype() >= 0 && output_.dtype() != input_.dtype()) return false;
  call_.operation = operation;
  call_.dtype = output_.dtype() >= 0 ? output_.dtype() : input_.dtype();
  call_.reduction = reduction;
  call_.root = root;
  call_.factor = 1;
  call_.timeout = timeout;
  return fill();
}

}  // namespace lowerkit
