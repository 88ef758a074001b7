// The machine code of an artifact in executable memory.
//
// Life of an image: read() copies it from the file into writable memory; the caller checks its hash there, on the very
// bytes that will run; link() fills the import table and makes the code R-X and the table R. Where the system forbids
// to execute written memory (a hardened kernel), link() maps the file's pages instead, after comparing them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lowerkit {

class CodeImage {
 public:
  // Reads `size` bytes at `offset` of the file. Throws std::system_error, std::runtime_error (the file is too short).
  CodeImage(int file, int64_t offset, int64_t size);
  ~CodeImage();
  CodeImage(const CodeImage &) = delete;
  CodeImage &operator=(const CodeImage &) = delete;

  const uint8_t *data() const { return base_; }
  int64_t size() const { return size_; }

  // Makes the image executable. Each import takes 8 bytes at `import_table_offset`, which is a multiple of 4096 and
  // the last part of the image. `from_file` maps the file's pages without trying the copy first.
  // Throws std::invalid_argument for an unknown import or a table out of place, std::system_error.
  void link(int file, const std::vector<std::string> &imports, int64_t import_table_offset, bool from_file);

  // The address of a kernel. Throws std::out_of_range; std::logic_error before link().
  uint64_t entry(int64_t offset) const;

 private:
  void map_file(int file, size_t code_pages);

  uint8_t *base_ = nullptr;
  int64_t offset_;
  int64_t size_;
  int64_t code_size_ = 0;
  size_t mapped_;
  bool linked_ = false;
};

}  // namespace lowerkit
