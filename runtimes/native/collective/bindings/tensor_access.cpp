#include "tensor_access.h"

#include "lowerkit_collective.h"

namespace nb = nanobind;

namespace lowerkit {
namespace {

// dlpack.h, DLPackExchangeAPI.
struct ExchangeHeader {
  uint32_t major;
  uint32_t minor;
  ExchangeHeader *earlier;
};
struct Exchange {
  ExchangeHeader header;
  void *managed_tensor_allocator;
  void *managed_tensor_from_object;
  void *managed_tensor_to_object;
  int (*tensor_from_object)(void *object, nb::dlpack::dltensor *result);
  void *current_work_stream;
};
constexpr uint32_t kExchangeMajor = 1;
constexpr int32_t kCpu = 1;

// Never given back: they last as long as the interpreter does.
struct Served {
  PyTypeObject *tensor = nullptr;
  PyTypeObject *parameter = nullptr;
  PyObject *is_negative = nullptr;
  const Exchange *exchange = nullptr;
} served;

int dtype_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  if (type.lanes != 1) return -1;
  const int power = type.bits == 8 ? 0 : type.bits == 16 ? 1 : type.bits == 32 ? 2 : type.bits == 64 ? 3 : -1;
  if (power < 0) return -1;
  switch (Code(type.code)) {
    case Code::Int:
      return LK_I8 + power;
    case Code::UInt:
      return LK_U8 + power;
    case Code::Float: {
      constexpr int kFloats[] = {-1, LK_F16, LK_F32, LK_F64};
      return kFloats[power];
    }
    case Code::Bfloat:
      return power == 1 ? LK_BF16 : -1;
    case Code::Bool:
      return power == 0 ? LK_BOOL : -1;
    default:
      return -1;
  }
}

bool contiguous(const nb::dlpack::dltensor &tensor) {
  int64_t expected = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) return false;
    expected *= tensor.shape[axis];
  }
  return true;
}

}  // namespace

bool serve_tensors(nb::handle tensor, nb::handle parameter) {
  nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
  const auto *exchange = static_cast<const Exchange *>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (exchange->header.major != kExchangeMajor || !exchange->tensor_from_object) return false;
  served = {reinterpret_cast<PyTypeObject *>(nb::borrow(tensor).release().ptr()),
            reinterpret_cast<PyTypeObject *>(nb::borrow(parameter).release().ptr()),
            PyUnicode_InternFromString("is_neg"), exchange};
  return true;
}

bool read_tensor(nb::handle object, TensorAccess &access) {
  PyTypeObject *type = Py_TYPE(object.ptr());
  if (!served.exchange || (type != served.tensor && type != served.parameter)) return false;
  if (served.exchange->tensor_from_object(object.ptr(), &access.tensor) != 0) {
    PyErr_Clear();  // what cannot be described goes the long way, which says why
    return false;
  }
  const nb::dlpack::dltensor &tensor = access.tensor;
  access.dtype = dtype_of(tensor.dtype);
  access.count = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) access.count *= tensor.shape[axis];
  if (access.dtype < 0 || tensor.device.device_type != kCpu || (!tensor.data && access.count) || !contiguous(tensor))
    return false;
  PyObject *arguments[] = {object.ptr()};
  nb::object negative = nb::steal(PyObject_VectorcallMethod(served.is_negative, arguments, 1, nullptr));
  if (!negative.is_valid()) throw nb::python_error();
  return negative.ptr() == Py_False;
}

}  // namespace lowerkit
