/* No communication: ranks only compute. The control in an experiment. */
#include "harness.h"

static void exchange(struct pattern *p)
{
    (void)p;
}

int main(int argc, char **argv)
{
    return harness_main(argc, argv, exchange, no_sender);
}
