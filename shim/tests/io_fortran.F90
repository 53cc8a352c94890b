! Collective writes from Fortran: a strided view, split collectives and an error class. -DF08: the module mpi_f08.
program io_fortran
#ifdef F08
  use mpi_f08
#else
  use mpi
#endif
  implicit none
  integer :: rank, ranks, error, i, class, wrong
  integer :: values(600), back(600)
  integer(kind=MPI_OFFSET_KIND) :: displacement, bytes
  character(len=1024) :: path
#ifdef F08
  type(MPI_File) :: file
  type(MPI_Datatype) :: filetype
  type(MPI_Status) :: status
#else
  integer :: file, filetype
  integer :: status(MPI_STATUS_SIZE)
#endif
  integer :: count

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call get_command_argument(1, path)
  values = [(rank * 1000 + i, i = 1, 600)]
  back = 0
  call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, error)
  call MPI_Type_vector(200, 3, 3 * ranks, MPI_INTEGER, filetype, error)
  call MPI_Type_commit(filetype, error)
  displacement = rank * 12
  call MPI_File_set_view(file, displacement, MPI_INTEGER, filetype, 'native', MPI_INFO_NULL, error)
  call MPI_File_write_all(file, values, 600, MPI_INTEGER, status, error)
  call MPI_Get_count(status, MPI_INTEGER, count, error)
  displacement = 0
  call MPI_File_seek(file, displacement, MPI_SEEK_SET, error)
  call MPI_File_read_all_begin(file, back, 600, MPI_INTEGER, error)
  call MPI_File_read_all_end(file, back, status, error)
  wrong = 0
  do i = 1, 600
    if (back(i) /= values(i)) wrong = wrong + 1
  end do
  ! A collective write waits for no other rank: the last one's bytes may come later.
  call MPI_Barrier(MPI_COMM_WORLD, error)
  call MPI_File_get_size(file, bytes, error)
  call MPI_File_close(file, error)
  call MPI_Type_free(filetype, error)
  call MPI_File_open(MPI_COMM_WORLD, '/nonexistent/file', MPI_MODE_RDONLY, MPI_INFO_NULL, file, error)
  call MPI_Error_class(error, class, i)
  if (rank == 0) print *, 'count', count, 'wrong', wrong, 'bytes', bytes, 'missing', class == MPI_ERR_NO_SUCH_FILE
  call MPI_Finalize(error)
end program
