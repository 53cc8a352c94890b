/* Bytes of strangers to the parsers of shim/multicast and shim/tags, each in memory of exactly its length.
 *
 * Standard input has records: a word, `d` or `s` or `r`, the length in two bytes, the bytes. A datagram is parsed with
 * a token of zeros for 4 ranks; `s` and `r` are frames of btl/tcp, sent or received. A line for each says what came of
 * it: 1 and the kind of a datagram that is believed, primitive and communicator of a frame, else 0. Built with
 * sanitizers. */
#include "datagram.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    int word;
    while ((word = getchar()) != EOF) {
        size_t length = (size_t)getchar();
        length |= (size_t)getchar() << 8;
        uint8_t *data = malloc(length), token[WS_TOKEN_BYTES] = {0};
        if (data == NULL || fread(data, 1, length, stdin) != length)
            return 2;
        if (word == 'd') {
            struct ws_header header;
            bool believed = ws_parse(&header, data, length, token, 4);
            printf("%d %u\n", believed, believed ? header.kind : 0);
        } else if (word == 's') {
            struct meaning found = stream_sent(data, length, 1);
            printf("%d %u %u %llu\n", found.known, found.primitive, found.communicator,
                   (unsigned long long)stream_length(data));
        } else {
            stream_received(data, length, 1);
            printf("0\n");
        }
        free(data);
    }
    for (size_t bytes = 1; bytes < 40000; bytes += 1999)
        for (size_t chunk = 512; chunk <= WS_CHUNK_MOST; chunk *= 2) {
            size_t sum = 0;
            for (uint32_t at = 0; at < 100; at++)
                sum += ws_chunk_bytes(bytes, chunk, at);
            if (sum != bytes)
                return 3;
        }
    return 0;
}
