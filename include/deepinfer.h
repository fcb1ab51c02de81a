/* deepinfer: exact inference for DeepSeek-V4.1-Flash.
 *
 * This is the only header that a user of the library includes. It grows with the engine; what stands here is stable. */
#ifndef DEEPINFER_H
#define DEEPINFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DI_VERSION_STRING "0.1.0"

/* Result of every call that can fail. The text belongs to di_error; the code is what a program branches on. */
typedef enum di_status {
    DI_OK = 0,
    DI_ERR_INVALID,     /* the caller's argument, request or option is wrong */
    DI_ERR_FORMAT,      /* a file or message does not follow its format */
    DI_ERR_UNSUPPORTED, /* well-formed, but this build or model cannot do it */
    DI_ERR_NOT_FOUND,   /* a file, tensor or name does not exist */
    DI_ERR_LIMIT,       /* a configured or physical limit would be exceeded */
    DI_ERR_MEMORY,      /* an allocation failed */
    DI_ERR_IO,          /* the operating system refused */
    DI_ERR_CANCELLED,   /* somebody asked to stop */
    DI_ERR_INTERNAL     /* a defect of the program */
} di_status;

/* Details of a failure, owned by the caller; may be NULL wherever a parameter takes one.
 * `message` is one sentence that says what was wrong and what was expected; `where` names the file, field or position. */
typedef struct di_error {
    di_status code;
    char message[480];
    char where[160];
} di_error;

/* Stable lower-case name of a status: "ok", "invalid", "format", ... Never NULL. */
const char *di_status_name(di_status status);

/* Version of the library, DI_VERSION_STRING of the build. */
const char *di_version(void);

#ifdef __cplusplus
}
#endif
#endif
