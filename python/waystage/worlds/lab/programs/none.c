/* No communication: ranks only compute. The control in an experiment. */
#include "harness.h"

static void exchange(struct pattern *p)
{
    (void)p;
}

static int sender(const struct pattern *p, int block)
{
    (void)p;
    (void)block;
    return -1;
}

int main(int argc, char **argv)
{
    return harness_main(argc, argv, exchange, sender);
}
