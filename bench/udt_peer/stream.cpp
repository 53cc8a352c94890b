// One flow over UDT (libudt), as its documentation's example programs send: with its defaults, but for larger windows.
//
//   stream receive ADDRESS PORT READY RESULT OMIT_S SECONDS
//       makes the file READY; writes to RESULT the bytes that came in SECONDS from OMIT_S after the first ones, and the
//       seconds, fewer where the flow ended before
//   stream send ADDRESS PORT SECONDS
//       sends for SECONDS
#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <udt/udt.h>
#include <vector>

static double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static int failed(const char *what) {
  std::fprintf(stderr, "%s: %s\n", what, UDT::getlasterror().getErrorMessage());
  return 1;
}

int main(int count, char **words) {
  const bool receives = count == 8 && std::strcmp(words[1], "receive") == 0;
  if (!receives && count != 5) return 2;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(std::atoi(words[3]));
  if (inet_pton(AF_INET, words[2], &address.sin_addr) != 1) return 2;
  UDT::startup();
  UDTSOCKET flow = UDT::socket(AF_INET, SOCK_STREAM, 0);
  // 64 MB in flight: more than any path of these benchmarks holds.
  int packets = 50000, bytes = 64 << 20;
  UDT::setsockopt(flow, 0, UDT_FC, &packets, sizeof packets);
  UDT::setsockopt(flow, 0, UDT_SNDBUF, &bytes, sizeof bytes);
  UDT::setsockopt(flow, 0, UDT_RCVBUF, &bytes, sizeof bytes);
  UDT::setsockopt(flow, 0, UDP_RCVBUF, &bytes, sizeof bytes);
  linger none{0, 0};
  UDT::setsockopt(flow, 0, UDT_LINGER, &none, sizeof none);
  std::vector<char> buffer(1 << 20);
  if (receives) {
    if (UDT::bind(flow, reinterpret_cast<sockaddr *>(&address), sizeof address) == UDT::ERROR) return failed("bind");
    if (UDT::listen(flow, 1) == UDT::ERROR) return failed("listen");
    std::fclose(std::fopen(words[4], "w"));
    UDTSOCKET peer = UDT::accept(flow, nullptr, nullptr);
    if (peer == UDT::INVALID_SOCK) return failed("accept");
    int timeout_ms = 50;
    UDT::setsockopt(peer, 0, UDT_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    double begin = 0, last = 0, time;
    const double omit = std::atof(words[6]), length = std::atof(words[7]);
    long long total = 0;
    while ((time = now(), begin == 0 || time < begin + length)) {
      const int got = UDT::recv(peer, buffer.data(), buffer.size(), 0);
      if (got == UDT::ERROR && UDT::getlasterror().getErrorCode() != UDT::ERRORINFO::ETIMEOUT) break;
      last = now();
      if (got <= 0) continue;
      if (begin == 0) begin = last + omit;
      if (last >= begin) total += got;
    }
    FILE *result = std::fopen(words[5], "w");
    std::fprintf(result, "%lld %.6f\n", total, last > begin ? last - begin : 0);
    std::fclose(result);
  } else {
    if (UDT::connect(flow, reinterpret_cast<sockaddr *>(&address), sizeof address) == UDT::ERROR)
      return failed("connect");
    const double end = now() + std::atof(words[4]);
    int timeout_ms = 200;
    UDT::setsockopt(flow, 0, UDT_SNDTIMEO, &timeout_ms, sizeof timeout_ms);
    while (now() < end) {
      if (UDT::send(flow, buffer.data(), buffer.size(), 0) == UDT::ERROR &&
          UDT::getlasterror().getErrorCode() != UDT::ERRORINFO::ETIMEOUT)
        return failed("send");
    }
    UDT::close(flow);
  }
  // UDT::cleanup waits for its threads; the process ends here, and they with it.
  std::_Exit(0);
}
