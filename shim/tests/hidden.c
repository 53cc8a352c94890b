/* A program without a C library, which no preloaded one can be in: creates the file `hidden` where it works. */
static long call(long number, long first, long second, long third, long fourth)
{
    long result;
#if defined(__x86_64__)
    register long last __asm__("r10") = fourth;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third), "r"(last)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = first, x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = third, x3 __asm__("x3") = fourth;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    result = x0;
#else
#error "add this architecture's call"
#endif
    return result;
}

void _start(void)
{
#if defined(__x86_64__)
    const long openat = 257, leave = 231;
#else
    const long openat = 56, leave = 94;
#endif
    /* AT_FDCWD, O_CREAT | O_WRONLY. */
    call(openat, -100, (long)"hidden", 0101, 0644);
    call(leave, 0, 0, 0, 0);
    for (;;)
        ;
}
