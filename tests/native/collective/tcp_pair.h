// Two ends of a TCP connection over the loopback interface.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

inline void connect_pair(int ends[2]) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto generic = reinterpret_cast<sockaddr *>(&address);
  bool listening =
      bind(listener, generic, length) == 0 && listen(listener, 1) == 0 && getsockname(listener, generic, &length) == 0;
  ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!listening || connect(ends[0], generic, length) != 0 || (ends[1] = accept(listener, nullptr, nullptr)) < 0) {
    std::perror("a TCP connection to this machine");
    std::exit(1);
  }
  close(listener);
}
