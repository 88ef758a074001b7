#include "code_image.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "support_routines.h"

namespace lowerkit {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kMaximumSize = int64_t{1} << 31;  // PC-relative references reach this far

size_t round_to_page(int64_t size) { return static_cast<size_t>((size + kPage - 1) / kPage * kPage); }

[[noreturn]] void fail(const char *what) { throw std::system_error(errno, std::generic_category(), what); }

void protect(uint8_t *address, size_t size, int protection) {
  if (size && mprotect(address, size, protection) != 0) fail("mprotect of the code image");
}

}  // namespace

CodeImage::CodeImage(int file, int64_t offset, int64_t size) : offset_(offset), size_(size) {
  if (size <= 0 || size > kMaximumSize || offset < 0)
    throw std::invalid_argument("a code image of " + std::to_string(size) + " bytes is out of bounds");
  mapped_ = round_to_page(size);
  void *address = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) fail("mmap of the code image");
  base_ = static_cast<uint8_t *>(address);
  for (int64_t done = 0; done < size;) {
    const ssize_t count = pread(file, base_ + done, static_cast<size_t>(size - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = errno;
      munmap(base_, mapped_);
      if (count == 0) throw std::runtime_error("the file ends inside the code image");
      throw std::system_error(error, std::generic_category(), "read of the code image");
    }
    done += count;
  }
}

CodeImage::~CodeImage() { munmap(base_, mapped_); }

void CodeImage::link(int file, const std::vector<std::string> &imports, int64_t import_table_offset, bool from_file) {
  if (linked_) throw std::logic_error("the code image is linked already");
  const int64_t table_bytes = static_cast<int64_t>(imports.size()) * 8;
  if (imports.empty()) import_table_offset = size_;
  if (!imports.empty() && (import_table_offset < 0 || import_table_offset % kPage != 0 ||
                           import_table_offset > size_ - table_bytes))
    throw std::invalid_argument("an import table of " + std::to_string(table_bytes) + " bytes at offset " +
                                std::to_string(import_table_offset) + " does not fit a code image of " +
                                std::to_string(size_) + " bytes");
  std::string unknown;
  for (size_t i = 0; i < imports.size(); ++i) {
    void *address = support_routine(imports[i]);
    if (!address) unknown += (unknown.empty() ? "" : ", ") + imports[i];
    std::memcpy(base_ + import_table_offset + 8 * i, &address, 8);
  }
  if (!unknown.empty()) throw std::invalid_argument("the code calls unknown routines: " + unknown);

  code_size_ = import_table_offset;
  const size_t code_pages = round_to_page(code_size_);
  protect(base_ + code_pages, mapped_ - code_pages, PROT_READ);
  if (from_file) {
    map_file(file, code_pages);
  } else if (mprotect(base_, code_pages, PROT_READ | PROT_EXEC) != 0) {
    if (errno != EACCES && errno != EPERM) fail("mprotect of the code image");
    map_file(file, code_pages);
  }
  linked_ = true;
}

void CodeImage::map_file(int file, size_t code_pages) {
  if (offset_ % kPage != 0) throw std::invalid_argument("the code does not start at a page of the file");
  void *address = mmap(nullptr, code_pages, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, offset_);
  if (address == MAP_FAILED) fail("mmap of the code in the artifact");
  // The copy passed the hash check, the file's pages did not: they must be the same bytes.
  if (std::memcmp(address, base_, static_cast<size_t>(code_size_)) != 0) {
    munmap(address, code_pages);
    throw std::runtime_error("the artifact changed while it was loaded");
  }
  if (mremap(address, code_pages, code_pages, MREMAP_MAYMOVE | MREMAP_FIXED, base_) == MAP_FAILED) {
    const int error = errno;
    munmap(address, code_pages);
    throw std::system_error(error, std::generic_category(), "mremap of the code image");
  }
}

uint64_t CodeImage::entry(int64_t offset) const {
  if (!linked_) throw std::logic_error("the code image is not linked yet");
  if (offset < 0 || offset >= code_size_)
    throw std::out_of_range("a kernel at offset " + std::to_string(offset) + " lies outside the " +
                            std::to_string(code_size_) + " bytes of code");
  return reinterpret_cast<uint64_t>(base_) + static_cast<uint64_t>(offset);
}

}  // namespace lowerkit
