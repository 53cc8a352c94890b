/* Reads recipes of datatypes, one a line, and prints what MPI says about each: size, lower bound, extent, true lower
 * bound, true extent, and the positions of the bytes in the order of MPI_Pack.
 *
 * A recipe is a sequence of commands on a stack: see mpi.rs.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HALF 65536
#define MOST 64

static MPI_Datatype stack[256];
static int depth;

static long number(char **text)
{
    return strtol(*text, text, 10);
}

static void numbers(char **text, int count, int *into)
{
    for (int i = 0; i < count; i++)
        into[i] = (int)number(text);
}

static void addresses(char **text, int count, MPI_Aint *into)
{
    for (int i = 0; i < count; i++)
        into[i] = (MPI_Aint)number(text);
}

static void build(char command, char **text)
{
    int a[MOST], b[MOST], c[MOST], d[MOST];
    MPI_Aint at[MOST];
    MPI_Datatype made = MPI_DATATYPE_NULL;
    int count = (int)number(text), taken = command == 's' ? count : command == 'b' ? 0 : 1;
    MPI_Datatype *of = &stack[depth - taken];
    switch (command) {
    case 'b':
        MPI_Type_contiguous(count, MPI_BYTE, &made);
        break;
    case 'c':
        MPI_Type_contiguous(count, *of, &made);
        break;
    case 'v': {
        int block = (int)number(text);
        MPI_Type_create_hvector(count, block, (MPI_Aint)number(text), *of, &made);
        break;
    }
    case 'i':
        numbers(text, count, a);
        addresses(text, count, at);
        MPI_Type_create_hindexed(count, a, at, *of, &made);
        break;
    case 'k': {
        int block = (int)number(text);
        addresses(text, count, at);
        MPI_Type_create_hindexed_block(count, block, at, *of, &made);
        break;
    }
    case 's':
        numbers(text, count, a);
        addresses(text, count, at);
        MPI_Type_create_struct(count, a, at, of, &made);
        break;
    case 'r':
        MPI_Type_create_resized(*of, count, (MPI_Aint)number(text), &made);
        break;
    case 'a':
    case 'A':
        numbers(text, count, a), numbers(text, count, b), numbers(text, count, c);
        MPI_Type_create_subarray(count, a, b, c, command == 'a' ? MPI_ORDER_C : MPI_ORDER_FORTRAN, *of, &made);
        break;
    case 'd':
    case 'D': {
        int rank = (int)number(text), size = 1;
        numbers(text, count, a), numbers(text, count, b), numbers(text, count, c), numbers(text, count, d);
        for (int i = 0; i < count; i++) {
            size *= d[i];
            b[i] = b[i] == 0 ? MPI_DISTRIBUTE_NONE : b[i] == 1 ? MPI_DISTRIBUTE_BLOCK : MPI_DISTRIBUTE_CYCLIC;
            c[i] = c[i] < 0 ? MPI_DISTRIBUTE_DFLT_DARG : c[i];
        }
        MPI_Type_create_darray(size, rank, count, a, b, c, d, command == 'd' ? MPI_ORDER_C : MPI_ORDER_FORTRAN, *of, &made);
        break;
    }
    }
    depth -= taken;
    stack[depth++] = made;
}

static void tell(MPI_Datatype type)
{
    static unsigned char low[2 * HALF], high[2 * HALF], packed[2][2 * HALF];
    MPI_Aint lower, extent, true_lower, true_extent;
    int size, at = 0;
    MPI_Type_commit(&type);
    MPI_Type_size(type, &size);
    MPI_Type_get_extent(type, &lower, &extent);
    MPI_Type_get_true_extent(type, &true_lower, &true_extent);
    for (int i = 0; i < 2 * HALF; i++)
        low[i] = (unsigned char)i, high[i] = (unsigned char)(i >> 8);
    /* Positions are within 32 KiB of the origin, so that 16 bits tell them. */
    MPI_Pack(low + HALF, 1, type, packed[0], sizeof packed[0], &at, MPI_COMM_SELF);
    at = 0;
    MPI_Pack(high + HALF, 1, type, packed[1], sizeof packed[1], &at, MPI_COMM_SELF);
    printf("%d %ld %ld %ld %ld:", size, (long)lower, (long)extent, (long)true_lower, (long)true_extent);
    for (int i = 0; i < size; i++)
        printf(" %d", (short)(packed[0][i] | packed[1][i] << 8));
    printf("\n");
}

int main(int argc, char **argv)
{
    static char line[1 << 16];
    MPI_Init(&argc, &argv);
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *text = line;
        depth = 0;
        while (*text != '\n' && *text != 0) {
            char command = *text++;
            if (command != ' ')
                build(command, &text);
        }
        tell(stack[depth - 1]);
    }
    MPI_Finalize();
    return 0;
}
