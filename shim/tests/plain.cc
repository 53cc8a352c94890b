// A C++ program with no knowledge of the profiler: a ring of vectors.
#include <mpi.h>

#include <fstream>
#include <string>
#include <vector>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::vector<double> out(50 + rank), in(1000);
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Request request;
    MPI_Irecv(in.data(), 1000, MPI_DOUBLE, from, 0, MPI_COMM_WORLD, &request);
    MPI_Send(out.data(), static_cast<int>(out.size()), MPI_DOUBLE, to, 0, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    std::ofstream file(std::string(argv[1]) + "." + std::to_string(rank));
    file << "p2p " << rank << " " << to << " 1 " << out.size() * sizeof(double) << "\n";
    file.close();
    MPI_Finalize();
    return 0;
}
