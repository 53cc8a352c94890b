! A Fortran program with no knowledge of the profiler: point-to-point of several kinds, collectives, a window.
program plain
  use mpi
  implicit none
  integer :: ierr, rank, nprocs, dest, source, request, persistent, window, unit
  integer :: status(MPI_STATUS_SIZE), statuses(MPI_STATUS_SIZE, 2), both(2)
  integer(kind=MPI_ADDRESS_KIND) :: bytes, place
  double precision :: outgoing(100), incoming(100), memory(10), total, part
  character(len=512) :: prefix, name

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, nprocs, ierr)
  dest = mod(rank + 1, nprocs)
  source = mod(rank + nprocs - 1, nprocs)
  outgoing = 1d0
  memory = 0d0

  call MPI_Irecv(incoming, 100, MPI_DOUBLE_PRECISION, source, 1, MPI_COMM_WORLD, both(1), ierr)
  call MPI_Isend(outgoing, 10, MPI_DOUBLE_PRECISION, dest, 1, MPI_COMM_WORLD, both(2), ierr)
  call MPI_Waitall(2, both, statuses, ierr)
  call MPI_Sendrecv(outgoing, 20, MPI_DOUBLE_PRECISION, dest, 2, incoming, 100, MPI_DOUBLE_PRECISION, source, 2, &
                    MPI_COMM_WORLD, status, ierr)
  call MPI_Send_init(outgoing, 30, MPI_DOUBLE_PRECISION, dest, 3, MPI_COMM_WORLD, persistent, ierr)
  call MPI_Irecv(incoming, 100, MPI_DOUBLE_PRECISION, source, 3, MPI_COMM_WORLD, request, ierr)
  call MPI_Start(persistent, ierr)
  call MPI_Wait(persistent, MPI_STATUS_IGNORE, ierr)
  call MPI_Wait(request, MPI_STATUS_IGNORE, ierr)
  call MPI_Request_free(persistent, ierr)
  part = 1d0
  call MPI_Allreduce(part, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)

  bytes = 80
  place = 0
  call MPI_Win_create(memory, bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, window, ierr)
  call MPI_Win_fence(0, window, ierr)
  call MPI_Put(outgoing, 4, MPI_DOUBLE_PRECISION, dest, place, 4, MPI_DOUBLE_PRECISION, window, ierr)
  call MPI_Win_fence(0, window, ierr)
  call MPI_Win_free(window, ierr)

  call get_command_argument(1, prefix)
  write (name, '(a,a,i0)') trim(prefix), '.', rank
  open (newunit=unit, file=trim(name), status='replace', action='write')
  write (unit, '(a,i0,a,i0,a)') 'p2p ', rank, ' ', dest, ' 3 480'
  write (unit, '(a,i0,a,i0,a)') 'put ', rank, ' ', dest, ' 1 32'
  close (unit)
  call MPI_Finalize(ierr)
end program plain
