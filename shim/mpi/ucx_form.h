/* The forms of UCX that its functions take, ucp/api/ucp.h of UCX 1.10 and later: of each as much as is read. Every
 * field that is not always there has a bit that says so.
 */
#ifndef WAYSTAGE_UCX_FORM_H
#define WAYSTAGE_UCX_FORM_H

#include <stddef.h>
#include <stdint.h>

#define ATTR_CALLBACK (1u << 1)
#define ATTR_DATATYPE (1u << 3)
#define ATTR_RECV_INFO (1u << 7)
#define ATTR_KNOWN 0x000f01ffu
#define EP_REMOTE_ADDRESS (1u << 0)
#define WORKER_ADDRESS (1u << 1)
#define CLASS_CONTIGUOUS 0
#define CLASS_IOV 2
#define CLASS_MASK 7
#define CLASS_BITS 3
#define FAILED (-22) /* UCS_ERR_UNSUPPORTED */

struct recv_info {
    uint64_t bits;
    size_t length;
};

typedef void received_fn(void *, int, const struct recv_info *, void *);

struct param {
    uint32_t attributes, flags;
    void *request;
    received_fn *callback;
    uint64_t datatype;
    void *user_data, *reply_buffer;
    int memory_type;
    struct recv_info *info;
    void *memory_handle;
};

struct iov {
    void *buffer;
    size_t length;
};

struct ep_params {
    uint64_t fields;
    const void *address;
};

struct worker_attr {
    uint64_t fields;
    int thread_mode;
    uint32_t address_flags;
    void *address;
    size_t address_length;
};

struct generic {
    void *(*start_pack)(void *, const void *, size_t);
    void *(*start_unpack)(void *, void *, size_t);
    size_t (*packed_size)(void *);
    size_t (*pack)(void *, size_t, void *, size_t);
    int (*unpack)(void *, size_t, const void *, size_t);
    void (*finish)(void *);
};

#endif
