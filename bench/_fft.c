/* A two-dimensional Fourier transform of complex numbers, and its inverse, again and again, as the NAS benchmark FT
 * does in three dimensions: rows are transformed where they are, and MPI_Alltoall transposes in between.
 *
 * The data are three plane waves, other ones in each iteration. Their transform is known, one element for each, and the
 * inverse transform must give the waves back; every element of both is compared.
 *
 * Arguments: rows, a power of two and as many columns; iterations. See _mpi_job.h for what it prints. */
#define _GNU_SOURCE
#include "_mpi_job.h"

#include <complex.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define WAVES 3
#define ERROR 1e-9

typedef double complex number;

static struct wave {
    uint32_t u, v;
    double height;
} waves[WAVES];

static uint32_t n, mine, first; /* columns; rows of this rank, and the first of them */
static int ranks;
static number *root, *data, *other; /* exp(2 pi i k / n) */

/* Waves 0, 1, 2 are in different thirds of the spectrum, so that no two are the same. */
static void choose_waves(int iteration)
{
    for (uint32_t w = 0; w < WAVES; w++) {
        uint32_t mixed = ((uint32_t)iteration * WAVES + w + 1) * 2654435761u;
        waves[w].u = (mixed >> 16) % n;
        waves[w].v = (n * w + (mixed & 0xffff) % n) / WAVES;
        waves[w].height = 1 + w + (mixed >> 24) / 256.0;
    }
}

static number wave_sum(uint32_t y, uint32_t x)
{
    number sum = 0;
    for (uint32_t w = 0; w < WAVES; w++)
        sum += waves[w].height * root[(waves[w].u * x + waves[w].v * y) & (n - 1)];
    return sum;
}

/* One row in place: decimation in time. `inverse` leaves the division to the caller. */
static void transform_row(number *row, int inverse)
{
    for (uint32_t i = 1, j = 0; i < n; i++) {
        uint32_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            number kept = row[i];
            row[i] = row[j];
            row[j] = kept;
        }
    }
    for (uint32_t size = 2; size <= n; size *= 2)
        for (uint32_t begin = 0; begin < n; begin += size)
            for (uint32_t k = 0; k < size / 2; k++) {
                number turn = root[k * (n / size)];
                number *low = row + begin + k, *high = low + size / 2;
                number odd = *high * (inverse ? turn : conj(turn));
                *high = *low - odd;
                *low += odd;
            }
}

static void transform_rows(int inverse)
{
    for (uint32_t y = 0; y < mine; y++)
        transform_row(data + (size_t)y * n, inverse);
}

/* Block j of `other` goes to rank j: its columns of this rank's rows, as rows. */
static void transpose(void)
{
    size_t block = (size_t)mine * mine;
    for (uint32_t j = 0; j < (uint32_t)ranks; j++)
        for (uint32_t x = 0; x < mine; x++)
            for (uint32_t y = 0; y < mine; y++)
                other[j * block + x * mine + y] = data[(size_t)y * n + j * mine + x];
    MPI_Alltoall(other, (int)block, MPI_C_DOUBLE_COMPLEX, data, (int)block, MPI_C_DOUBLE_COMPLEX, MPI_COMM_WORLD);
    number *received = data;
    data = other;
    other = received;
    for (uint32_t j = 0; j < (uint32_t)ranks; j++)
        for (uint32_t x = 0; x < mine; x++)
            for (uint32_t y = 0; y < mine; y++)
                data[(size_t)x * n + j * mine + y] = received[j * block + x * mine + y];
}

static int differs(number found, number expected)
{
    return !(cabs(found - expected) < ERROR);
}

/* The spectrum is transposed: a rank has rows of equal x frequency. Returns the number of wrong elements. */
static long wrong_spectrum(void)
{
    long wrong = 0;
    double scale = 1.0 / n / n;
    for (uint32_t u = 0; u < mine; u++)
        for (uint32_t v = 0; v < n; v++) {
            double expected = 0;
            for (uint32_t w = 0; w < WAVES; w++)
                if (waves[w].u == first + u && waves[w].v == v)
                    expected += waves[w].height;
            data[(size_t)u * n + v] *= scale;
            wrong += differs(data[(size_t)u * n + v], expected);
        }
    return wrong;
}

static long wrong_waves(void)
{
    long wrong = 0;
    for (uint32_t y = 0; y < mine; y++)
        for (uint32_t x = 0; x < n; x++)
            wrong += differs(data[(size_t)y * n + x], wave_sum(first + y, x));
    return wrong;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    n = argc > 1 ? (uint32_t)atol(argv[1]) : 64;
    int iterations = argc > 2 ? atoi(argv[2]) : 1;
    if (n < 4 || n > 8192 || (n & (n - 1)) || n % (uint32_t)ranks || iterations < 1)
        MPI_Abort(MPI_COMM_WORLD, 2);
    mine = n / (uint32_t)ranks;
    first = mine * (uint32_t)rank;
    root = malloc(n * sizeof *root);
    data = malloc((size_t)mine * n * sizeof *data);
    other = malloc((size_t)mine * n * sizeof *other);
    if (root == NULL || data == NULL || other == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (uint32_t k = 0; k < n; k++)
        root[k] = cos(2 * M_PI * k / n) + I * sin(2 * M_PI * k / n);

    double began = job_begins(rank);
    long wrong = 0;
    for (int i = 0; i < iterations; i++) {
        choose_waves(i);
        for (uint32_t y = 0; y < mine; y++)
            for (uint32_t x = 0; x < n; x++)
                data[(size_t)y * n + x] = wave_sum(first + y, x);
        transform_rows(0);
        transpose();
        transform_rows(0);
        wrong += wrong_spectrum();
        transform_rows(1);
        transpose();
        transform_rows(1);
        wrong += wrong_waves();
    }
    job_ends(rank, began, wrong);
    MPI_Finalize();
    return 0;
}
