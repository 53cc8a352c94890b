! The same through the bindings of Fortran 2008.
program plain_f08
  use mpi_f08
  implicit none
  integer :: rank, nprocs, dest, source, unit
  type(MPI_Request) :: request
  double precision :: outgoing(100), incoming(100)
  character(len=512) :: prefix, name

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, nprocs)
  dest = mod(rank + 1, nprocs)
  source = mod(rank + nprocs - 1, nprocs)
  outgoing = 1d0
  call MPI_Irecv(incoming, 100, MPI_DOUBLE_PRECISION, source, 1, MPI_COMM_WORLD, request)
  call MPI_Send(outgoing, 15, MPI_DOUBLE_PRECISION, dest, 1, MPI_COMM_WORLD)
  call MPI_Wait(request, MPI_STATUS_IGNORE)
  call MPI_Barrier(MPI_COMM_WORLD)
  call get_command_argument(1, prefix)
  write (name, '(a,a,i0)') trim(prefix), '.', rank
  open (newunit=unit, file=trim(name), status='replace', action='write')
  write (unit, '(a,i0,a,i0,a)') 'p2p ', rank, ' ', dest, ' 1 120'
  close (unit)
  call MPI_Finalize()
end program plain_f08
