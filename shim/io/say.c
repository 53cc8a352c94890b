#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void ws_say(const char *format, ...) {
    char line[1024];
    int used = snprintf(line, sizeof line, "waystage: ");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    va_end(arguments);
    /* One call, so that lines of several processes do not mix. */
    fprintf(stderr, "%s\n", line);
}

int ws_verbose(void) {
    const char *value = getenv("WAYSTAGE_IO_VERBOSE");
    return value != NULL && *value != '\0' && *value != '0';
}
