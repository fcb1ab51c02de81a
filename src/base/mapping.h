/* A file in memory, read in place, that may change under its reader: what it holds now is compared with what was opened, and pages that are
 * gone read as zeros instead of ending the process.
 *
 * The system tells a lost page (a file that was shortened, a disk that fails) with SIGBUS. While at least one mapping is open, this module
 * has a handler for it; faults that are none of its own go to the handler that was there before, or end the process as they would have.
 * With the last mapping that handler is put back, unless the program has set another one meanwhile, which is then left alone: one that does
 * not pass on foreign faults makes a shortened file end the process again. A thread that reads mappings must not block SIGBUS. */
#ifndef DI_BASE_MAPPING_H
#define DI_BASE_MAPPING_H

#include "base/error.h"

#include <stdbool.h>

struct di_mapping;

/* Map `bytes` (the size that di_file_open gave) of a regular file. fd belongs to the mapping, also on failure. Any thread. */
di_status di_mapping_open(int fd, const char *path, size_t bytes, struct di_mapping **out, di_error *err);
void di_mapping_close(struct di_mapping *m); /* NULL is allowed. Nobody reads it any more */
const uint8_t *di_mapping_data(const struct di_mapping *m);
int di_mapping_fd(const struct di_mapping *m); /* borrowed */

/* DI_OK: all that was read so far is what the file held when it was opened. DI_ERR_IO: it was shortened, extended, written to or touched
 * since, or a page could not be read; from then on for ever. `where` is the last component of the path. What happens to its name is of no
 * interest: a file that another one replaced, or that was deleted, stays what it is. Costs one fstat. Changes within the tick of the file
 * system's clock in which the file was opened are not seen. Any thread. */
di_status di_mapping_check(struct di_mapping *m, di_error *err);

#endif
