/* See program.h. */
#define _GNU_SOURCE
#include "program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In the record, what was done stands before the path. */
static void say(uint32_t process, enum ring_program state, const char *path, uint64_t when)
{
    size_t bytes = strnlen(path, PATH_MAX);
    struct ring_claim claim;
    int error = errno;
    if (bytes != PATH_MAX && ring_begin(&claim)) {
        struct ring_program_of *of = (struct ring_program_of *)(claim.record + 1);
        *of = (struct ring_program_of){.process = process, .state = state};
        memcpy(of + 1, path, bytes);
        ring_end(&claim, RING_PROGRAM, when, bytes, sizeof *of);
    }
    errno = error;
}

static uint32_t own_process(void)
{
    /* After vfork(2) it is the child's. */
    return (uint32_t)syscall(SYS_getpid);
}

void program_starts(uint32_t process, const char *path, uint64_t began)
{
    if (segment == NULL)
        return;
    /* What cannot be read fails in the call itself. */
    const char *named = (uintptr_t)path >= 4096 && path[0] != '\0' ? path : "(a descriptor)";
    say(process != 0 ? process : own_process(), RING_PROGRAM_STARTS, named, began);
}

void program_failed(uint32_t process)
{
    if (segment != NULL)
        say(process != 0 ? process : own_process(), RING_PROGRAM_FAILED, "", ring_now());
}

void program_unobservable(const char *what)
{
    if (segment != NULL)
        say(own_process(), RING_PROGRAM_UNOBSERVABLE, what, ring_now());
}

/* Go calls the kernel by itself, past the C library, though it may be linked to it. Its linker leaves a note. */
static int has_go_note(struct dl_phdr_info *object, size_t size, void *found)
{
    (void)size;
    for (int number = 0; number < object->dlpi_phnum; number++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[number];
        if (part->p_type != PT_NOTE)
            continue;
        const char *at = (const char *)(object->dlpi_addr + part->p_vaddr), *end = at + part->p_memsz;
        while ((size_t)(end - at) > sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            size_t name = (note->n_namesz + 3U) & ~3U, content = (note->n_descsz + 3U) & ~3U;
            if (name + content > (size_t)(end - at) - sizeof *note)
                break;
            if (note->n_namesz == 4 && memcmp(note + 1, "Go\0\0", 4) == 0)
                *(bool *)found = true;
            at += sizeof *note + name + content;
        }
    }
    return 1; /* The first is the program itself. */
}

void program_loaded(void)
{
    if (segment == NULL)
        return;
    bool go = false;
    dl_iterate_phdr(has_go_note, &go);
    if (!go)
        say(own_process(), RING_PROGRAM_LOADED, "", ring_now());
}
