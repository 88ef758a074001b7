#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "byte_stream.h"
#include "failure.h"
#include "forking.h"

namespace lowerkit::collective {
namespace {

bool can_wait(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS || error == ENOMEM;
}

class TcpStream final : public ByteStream {
 public:
  TcpStream(int peer, int descriptor) : peer_(peer), descriptor_(descriptor) {
    int flags = fcntl(descriptor, F_GETFL);
    if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0)
      throw Failure(LK_INVALID,
                    "descriptor " + std::to_string(descriptor) + " of the connection to rank " + std::to_string(peer) +
                        " is of no use: " + std::strerror(errno),
                    peer);
    // Refused by Unix sockets, which do not delay anything.
    int one = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }

  size_t write(const iovec *parts, int count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec *>(parts);
    message.msg_iovlen = size_t(count);
    ssize_t moved = sendmsg(descriptor_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved >= 0) return size_t(moved);
    if (can_wait(errno)) return 0;
    throw lost(std::strerror(errno));
  }

  size_t read(const iovec *parts, int count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec *>(parts);
    message.msg_iovlen = size_t(count);
    ssize_t moved = recvmsg(descriptor_.get(), &message, MSG_DONTWAIT);
    if (moved > 0) return size_t(moved);
    if (moved == 0) throw lost("it was closed");
    if (can_wait(errno)) return 0;
    throw lost(std::strerror(errno));
  }

  void close() override { shutdown(descriptor_.get(), SHUT_RDWR); }
  int descriptor() const override { return descriptor_.get(); }

 private:
  Failure lost(const std::string &why) const {
    return Failure(LK_PEER_LOST, "the connection to rank " + std::to_string(peer_) + " ended: " + why, peer_);
  }

  const int peer_;
  const ParentsDescriptor descriptor_;
};

}  // namespace

std::unique_ptr<ByteStream> make_tcp_stream(int peer, int descriptor) {
  return std::make_unique<TcpStream>(peer, descriptor);
}

}  // namespace lowerkit::collective
