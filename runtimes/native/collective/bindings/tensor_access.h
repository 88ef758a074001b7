// Where a framework's tensor lies, asked of the framework itself: over DLPack's exchange interface, a table of C
// functions that PyTorch (2.10 and later) hangs on its tensor type. One call in place of one Python attribute for each
// of device, layout, dtype, address, size and shape.
//
// https://dmlc.github.io/dlpack/latest/python_spec.html, dlpack.h 1.2 and later.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace lowerkit {

struct TensorAccess {
  nanobind::dlpack::dltensor tensor;
  int dtype;      // lk_dtype
  int64_t count;  // elements

  void *data() const { return static_cast<uint8_t *>(tensor.data) + tensor.byte_offset; }
};

// The types whose objects are read: a class of a subclass (a wrapper, a fake) has its own idea of where its values are.
// False: the interface is another version, or lacks the function.
bool serve_tensors(nanobind::handle tensor, nanobind::handle parameter);

// True for a contiguous CPU tensor of a type that collectives have, with values as they lie there (no negative bit).
bool read_tensor(nanobind::handle object, TensorAccess &access);

}  // namespace lowerkit
