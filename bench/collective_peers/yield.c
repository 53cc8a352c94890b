/* Preloaded into MPICH's ranks: a rank that polls without finding anything lets others run.
 *
 * Open MPI has mpi_yield_when_idle for more ranks than processors; MPICH 4.0 with UCX has nothing like it, and eight
 * ranks on two processors do not get past MPI_File_open within 25 s. UCX asks its sockets by epoll_wait without a wait.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

int epoll_wait(int set, struct epoll_event *events, int capacity, int timeout)
{
    long found = syscall(SYS_epoll_pwait, set, events, capacity, timeout, (void *)0, 8);
    if (found == 0 && timeout == 0)
        sched_yield();
    return (int)found;
}
