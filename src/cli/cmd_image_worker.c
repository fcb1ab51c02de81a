/* deepinfer image-worker: the process in which another deepinfer process has its pictures decoded. */
#include "cli/commands.h"
#include "cli/io.h"
#include "vision/helper.h"
#include "vision/helper_protocol.h"

#include <sys/socket.h>

struct options {
    int64_t address_bytes;
};

static const struct di_option table[] = {
    {.name = "address-bytes",
     .type = DI_OPT_INT,
     .offset = offsetof(struct options, address_bytes),
     .def = "402653184",
     .min = 1 << 20,
     .max = 1e15,
     .metavar = "N",
     .help = "Bytes of address space beyond what the process has at its start."},
};

static int run_image_worker(const void *options)
{
    const struct options *opt = options;
    di_error err = {0};
    int type;
    socklen_t n = sizeof type;
    if (getsockopt(DI_HELPER_FD, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET)
        return di_helper_serve((size_t)opt->address_bytes);
    di_fail(&err, DI_ERR_INVALID, "",
            "this command is started by other deepinfer processes; `deepinfer image` shows what happens to a picture");
    return di_cli_fail("image-worker", &err);
}

const struct di_command di_cmd_image_worker = {
    .name = "image-worker",
    .summary = "started by the others: decodes pictures where it can do no harm",
    .usage = "[--address-bytes N]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_image_worker,
};
