/* `generate --resume`: what an earlier run has written is kept if it is the beginning of what this one would write. */
#ifndef DI_CLI_RESUME_H
#define DI_CLI_RESUME_H

#include "cli/io.h"

/* Names what answers depend on beside their lines: "MODEL-OPTIONS" in hexadecimal. Every answered line carries it. */
struct di_fingerprint {
    char text[40];
};
/* `digest`: of the model; `options`: as text, whatever of them can change an answer. */
void di_fingerprint_make(struct di_fingerprint *f, const char *digest, struct di_str options);

struct di_resume {
    const char *output;                  /* path */
    struct di_fingerprint run;           /* of this run */
    struct di_lines *in;                 /* of this run; read past what is answered already. NULL: one prompt */
    const struct di_json_limits *limits; /* of an input line */
    int64_t kept, failed;                /* result: complete lines, and those of them that are errors */
};
/* Compare the complete lines of the output, one by one, with this run's fingerprint and the ids of the input, then cut off what stands behind
 * them. DI_ERR_INVALID with a sentence for the first that is of another run; the file is left alone then. */
di_status di_resume(struct di_resume *r, di_error *err);

/* Is there nothing in the line but spaces? Such lines of the input have no answer. */
bool di_line_blank(struct di_str line);

#endif
