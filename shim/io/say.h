/* One line to the user, on stderr. */
#ifndef WAYSTAGE_IO_SAY_H
#define WAYSTAGE_IO_SAY_H

/* Always. Callers let one rank say it, once. */
void ws_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* With --verbose. */
int ws_verbose(void);

#endif
