/* Calls that replace this program by another, or start one. See program.h. */
#define _GNU_SOURCE
#include <alloca.h>
#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/types.h>
#include <unistd.h>

#include "program.h"
#include "real.h"

/* Where it returns, it failed. */
#define EXEC(symbol, params, types, args, path)                                                                        \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        REAL(int, symbol, types);                                                                                      \
        program_starts(0, path, ring_now());                                                                           \
        int result = real_##symbol args;                                                                               \
        program_failed(0);                                                                                             \
        return result;                                                                                                 \
    }

EXEC(execve, (const char *path, char *const words[], char *const environment[]),
    (const char *, char *const *, char *const *), (path, words, environment), path)
EXEC(execv, (const char *path, char *const words[]), (const char *, char *const *), (path, words), path)
EXEC(execvp, (const char *file, char *const words[]), (const char *, char *const *), (file, words), file)
EXEC(execvpe, (const char *file, char *const words[], char *const environment[]),
    (const char *, char *const *, char *const *), (file, words, environment), file)
EXEC(fexecve, (int fd, char *const words[], char *const environment[]), (int, char *const *, char *const *),
    (fd, words, environment), "")
EXEC(execveat, (int directory, const char *path, char *const words[], char *const environment[], int flags),
    (int, const char *, char *const *, char *const *, int), (directory, path, words, environment, flags),
    path)

/* The arguments up to NULL, on the stack as in the C library: this may be a child of vfork(2). */
#define WORDS(first)                                                                                                   \
    size_t count = first != NULL ? 1 : 0;                                                                              \
    va_list rest;                                                                                                      \
    va_start(rest, first);                                                                                             \
    while (count != 0 && va_arg(rest, char *) != NULL)                                                                 \
        count++;                                                                                                       \
    va_end(rest);                                                                                                      \
    char **words = alloca((count + 1) * sizeof *words);                                                                \
    va_start(rest, first);                                                                                             \
    words[0] = (char *)(uintptr_t)first;                                                                               \
    for (size_t number = 1; number <= count; number++)                                                                 \
        words[number] = va_arg(rest, char *);

EXPORT int execl(const char *path, const char *word, ...)
{
    WORDS(word)
    va_end(rest);
    return execv(path, words);
}

EXPORT int execlp(const char *file, const char *word, ...)
{
    WORDS(word)
    va_end(rest);
    return execvp(file, words);
}

EXPORT int execle(const char *path, const char *word, ...)
{
    WORDS(word)
    char *const *environment = va_arg(rest, char *const *);
    va_end(rest);
    return execve(path, words, environment);
}

#define SPAWN(symbol)                                                                                                  \
    EXPORT int symbol(pid_t *restrict child, const char *restrict file,                                                \
        const posix_spawn_file_actions_t *restrict actions, const posix_spawnattr_t *restrict attributes,              \
        char *const words[restrict], char *const environment[restrict])                                                \
    {                                                                                                                  \
        REAL(int, symbol,                                                                                              \
            (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *,      \
                char *const *));                                                                                       \
        pid_t made = 0;                                                                                                \
        uint64_t began = ring_now();                                                                                   \
        int result = real_##symbol(&made, file, actions, attributes, words, environment);                              \
        if (result == 0 && child != NULL)                                                                              \
            *child = made;                                                                                             \
        if (result == 0 && segment != NULL) {                                                                          \
            ring_enroll((uint32_t)made);                                                                               \
            program_starts((uint32_t)made, file, began);                                                               \
        }                                                                                                              \
        return result;                                                                                                 \
    }

SPAWN(posix_spawn)
SPAWN(posix_spawnp)
