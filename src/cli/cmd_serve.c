/* deepinfer serve: the model behind HTTP (src/server/server.h). The port answers before the model is loaded, with 503. */
#include "cli/io.h"
#include "cli/load.h"
#include "server/server.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define LARGE_BLOCK (256 << 10)

struct options {
    struct di_load_options load;
    const char *host, *unix_socket, *tls_cert, *tls_key, *api_keys, *cors_origin, *access_log, *log_format;
    struct di_str_list names, hosts;
    int64_t port, unix_mode, cache_blocks, seed, max_connections, max_body, max_queue, max_output, store, turn_memory;
    double timeout, head_timeout, body_timeout, idle_timeout, write_timeout, drain_timeout, comment, stall;
    bool strict_models, usage_on_finish, reasoning_twin, blank_lines;
};

#define AT(field) offsetof(struct options, field)
static const struct di_option table[] = {
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_load_table},
    {.type = DI_OPT_TABLE, .offset = offsetof(struct options, load), .table = &di_reuse_table},
    {.name = "cache-blocks",
     .type = DI_OPT_INT,
     .offset = AT(cache_blocks),
     .def = "0",
     .max = INT32_MAX,
     .metavar = "N",
     .help = "Blocks of 64 tokens in the cache; 0 is enough for --max-batch requests of the full context."},
    {.name = "seed",
     .type = DI_OPT_INT,
     .offset = AT(seed),
     .def = "-1",
     .min = -1,
     .max = (double)INT64_MAX,
     .metavar = "S",
     .help = "Of requests that have none; -1 is another one for each."},
    {.name = "turn-memory",
     .type = DI_OPT_INT,
     .offset = AT(turn_memory),
     .def = "100000",
     .max = INT32_MAX,
     .metavar = "N",
     .help = "Tool calls and answers whose exact tokens are remembered, so that the cache still fits when a client sends them back; 0 is "
             "none."},
    {.name = "served-model-name",
     .type = DI_OPT_LIST,
     .offset = AT(names),
     .metavar = "NAME",
     .help = "Name of the model for clients; may be given several times, the first is shown. Default: the directory's name."},
    {.name = "strict-models", .type = DI_OPT_BOOL, .offset = AT(strict_models), .help = "Answer 404 to requests for another model's name."},
    {.name = "usage-on-finish",
     .type = DI_OPT_BOOL,
     .offset = AT(usage_on_finish),
     .help = "Streamed usage as DeepSeek sends it: always, on the chunk with finish_reason."},
    {.name = "reasoning-twin",
     .type = DI_OPT_BOOL,
     .offset = AT(reasoning_twin),
     .help = "Send reasoning under both its names, reasoning_content and reasoning."},
    {.name = "response-store",
     .type = DI_OPT_INT,
     .offset = AT(store),
     .def = "0",
     .max = 1 << 20,
     .metavar = "MIB",
     .help = "Memory for responses that previous_response_id can refer to; 0 is none."},
    {.name = "host",
     .type = DI_OPT_STRING,
     .offset = AT(host),
     .def = "127.0.0.1",
     .metavar = "ADDRESS",
     .help = "Where to listen; of a name all its addresses, 0.0.0.0 or :: is every interface."},
    {.name = "port",
     .type = DI_OPT_INT,
     .offset = AT(port),
     .def = "8000",
     .min = -1,
     .max = 65535,
     .metavar = "N",
     .help = "0 is any free port, which is printed; -1 is none."},
    {.name = "unix-socket", .type = DI_OPT_STRING, .offset = AT(unix_socket), .metavar = "PATH", .help = "Listen on this socket, too."},
    {.name = "unix-socket-mode",
     .type = DI_OPT_INT,
     .offset = AT(unix_mode),
     .def = "600",
     .max = 777,
     .metavar = "OCTAL",
     .help = "Mode of its file: who may write to it can connect; 660 is the group as well, 666 everybody."},
    {.name = "tls-cert",
     .type = DI_OPT_STRING,
     .offset = AT(tls_cert),
     .metavar = "FILE",
     .help = "Certificate chain (PEM); with --tls-key. SIGHUP reads them again."},
    {.name = "tls-key", .type = DI_OPT_STRING, .offset = AT(tls_key), .metavar = "FILE", .help = "Its private key (PEM)."},
    {.name = "api-keys",
     .type = DI_OPT_STRING,
     .offset = AT(api_keys),
     .metavar = "FILE",
     .help = "Ask for a key. A line is SHA256 TENANT [rate=N] [concurrency=N]. SIGHUP reads it again."},
    {.name = "cors-origin",
     .type = DI_OPT_STRING,
     .offset = AT(cors_origin),
     .metavar = "ORIGIN",
     .help = "Let pages of this origin ask, * is all; default none."},
    {.name = "allowed-host",
     .type = DI_OPT_LIST,
     .offset = AT(hosts),
     .metavar = "NAME",
     .help = "Without keys and on a loopback address, requests must name a loopback host; this one may be named, too (behind a proxy). * "
             "is any."},
    {.name = "max-connections",
     .type = DI_OPT_INT,
     .offset = AT(max_connections),
     .def = "16384",
     .min = 1,
     .max = 1 << 20,
     .metavar = "N",
     .help = "Open connections; more get 503."},
    {.name = "max-body",
     .type = DI_OPT_INT,
     .offset = AT(max_body),
     .def = "32",
     .min = 1,
     .max = 4096,
     .metavar = "MIB",
     .help = "Longest request body; larger ones get 413."},
    {.name = "max-queue",
     .type = DI_OPT_INT,
     .offset = AT(max_queue),
     .def = "1024",
     .max = 1 << 20,
     .metavar = "N",
     .help = "Requests that may wait beyond --max-batch; more get 429."},
    {.name = "max-output",
     .type = DI_OPT_INT,
     .offset = AT(max_output),
     .def = "1024",
     .min = 1,
     .max = 1 << 20,
     .metavar = "KIB",
     .help = "Of one response, held for a client that reads slowly; at more it is dropped."},
    {.name = "timeout",
     .type = DI_OPT_DOUBLE,
     .offset = AT(timeout),
     .def = "0",
     .max = 1e6,
     .metavar = "S",
     .help = "Longest life of a request in the engine; 0 is no limit."},
    {.name = "head-timeout",
     .type = DI_OPT_DOUBLE,
     .offset = AT(head_timeout),
     .def = "10",
     .min = 0.1,
     .max = 3600,
     .metavar = "S",
     .help = "For the head of a request, and a TLS handshake."},
    {.name = "body-timeout",
     .type = DI_OPT_DOUBLE,
     .offset = AT(body_timeout),
     .def = "20",
     .min = 0.1,
     .max = 3600,
     .metavar = "S",
     .help = "For each 64 KiB of its body."},
    {.name = "idle-timeout",
     .type = DI_OPT_DOUBLE,
     .offset = AT(idle_timeout),
     .def = "75",
     .min = 0.1,
     .max = 86400,
     .metavar = "S",
     .help = "Between two requests of a connection."},
    {.name = "write-timeout",
     .type = DI_OPT_DOUBLE,
     .offset = AT(write_timeout),
     .def = "30",
     .min = 0.1,
     .max = 3600,
     .metavar = "S",
     .help = "A client that takes nothing for so long is dropped."},
    {.name = "drain-timeout",
     .type = DI_OPT_DOUBLE,
     .offset = AT(drain_timeout),
     .def = "30",
     .max = 86400,
     .metavar = "S",
     .help = "At SIGTERM what is under way may take so long; then it ends with an error."},
    {.name = "keep-alive-comment",
     .type = DI_OPT_DOUBLE,
     .offset = AT(comment),
     .def = "3",
     .max = 3600,
     .metavar = "S",
     .help = "A stream that has sent nothing for so long sends a comment; 0 is never."},
    {.name = "blank-lines",
     .type = DI_OPT_BOOL,
     .offset = AT(blank_lines),
     .help = "Send line feeds in the same way before answers that are no streams. Errors then come with status 200."},
    {.name = "stall-timeout",
     .type = DI_OPT_DOUBLE,
     .offset = AT(stall),
     .def = "60",
     .max = 86400,
     .metavar = "S",
     .help = "/health says 503 when there is work but no step ended for so long; 0 is never."},
    {.name = "access-log",
     .type = DI_OPT_STRING,
     .offset = AT(access_log),
     .metavar = "FILE",
     .help = "A line for each request; - is stderr."},
    {.name = "log-format",
     .type = DI_OPT_CHOICE,
     .offset = AT(log_format),
     .def = "text",
     .choices = "text|json",
     .help = "Of messages and access log."},
};

/* ---------------------------------------------------------------- configuration */

/* Descriptors that systemd passes (sd_listen_fds(3)): 3, 4, ... */
static size_t inherited_sockets(int *fds, size_t max)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (!pid || !count || strtol(pid, NULL, 10) != (long)getpid())
        return 0;
    long n = strtol(count, NULL, 10);
    size_t used = n < 0 ? 0 : (size_t)n < max ? (size_t)n : max;
    for (size_t i = 0; i < used; i++)
        fds[i] = 3 + (int)i;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    return used;
}

/* As many descriptors as connections need, if the system grants them. */
static size_t raise_descriptors(int64_t connections)
{
    const size_t other = 128; /* 48 shards of the model stay open, and what the service itself needs */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return (size_t)connections;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= (rlim_t)connections + other)
        return (size_t)connections;
    size_t granted = (size_t)(limit.rlim_max > 2 * other ? limit.rlim_max - other : limit.rlim_max / 2);
    fprintf(stderr, "warning: the system grants %zu file descriptors, so --max-connections is %zu\n", (size_t)limit.rlim_max, granted);
    return granted;
}

static void quit_now(void *ctx, bool cut)
{
    (void)ctx;
    _exit(cut ? DI_EXIT_SOME_FAILED : DI_EXIT_OK);
}

static int ms(double seconds)
{
    return (int)(seconds * 1000);
}

/* 660 as its digits stand there: octal. */
static bool is_octal(int64_t digits)
{
    return digits % 10 < 8 && digits / 10 % 10 < 8;
}

static unsigned mode_bits(int64_t digits)
{
    return (unsigned)(digits / 100 * 64 + digits / 10 % 10 * 8 + digits % 10);
}

static void server_config(const struct options *o, struct di_server_config *c)
{
    *c = (struct di_server_config){.host = o->host,
                                   .port = (int)o->port,
                                   .unix_socket = o->unix_socket,
                                   .unix_mode = mode_bits(o->unix_mode),
                                   .tls_cert = o->tls_cert,
                                   .tls_key = o->tls_key,
                                   .api_keys = o->api_keys,
                                   .cors_origin = o->cors_origin,
                                   .hosts = (const char *const *)o->hosts.items,
                                   .n_hosts = o->hosts.count,
                                   .access_log = o->access_log,
                                   .json_log = strcmp(o->log_format, "json") == 0,
                                   .messages = stderr,
                                   .received = (size_t)o->max_body << 23,
                                   .held = (size_t)o->max_body << 25,
                                   .max_waiting = (int)o->max_queue,
                                   .request_ms = ms(o->timeout),
                                   .drain_ms = ms(o->drain_timeout),
                                   .comment_ms = ms(o->comment),
                                   .stall_ms = ms(o->stall),
                                   .blank_lines = o->blank_lines,
                                   .notify = getenv("NOTIFY_SOCKET"),
                                   .quit = quit_now};
    c->limits = (struct di_http_limits){.head = 32 << 10,
                                        .heads = 16 << 20,
                                        .body = (size_t)o->max_body << 20,
                                        .output = (size_t)o->max_output << 10,
                                        .connections = raise_descriptors(o->max_connections),
                                        .head_ms = ms(o->head_timeout),
                                        .body_ms = ms(o->body_timeout),
                                        .idle_ms = ms(o->idle_timeout),
                                        .write_ms = ms(o->write_timeout)};
}

static void engine_config(const struct options *o, struct di_load_watch *watch, di_engine_config *c)
{
    const struct di_load_options *l = &o->load;
    di_engine_config_init(c, sizeof *c);
    di_load_config(l, c);
    c->cache_blocks = (int32_t)o->cache_blocks;
    c->seed = o->seed >= 0 ? o->seed : 0;
    c->turn_memory = o->turn_memory;
    if (!l->quiet) {
        c->progress = di_load_progress;
        c->progress_context = watch;
    }
}

/* ---------------------------------------------------------------- the service */

static di_status attach(const struct options *o, const di_memory_plan *plan, struct di_server *server, di_engine *engine, di_error *err)
{
    di_model_info info = {0};
    di_status status = DI_OK;
    TRY(di_engine_info(engine, &info, sizeof info, err));
    struct di_serve_model m = {.engine = engine,
                               .names = o->names.count ? o->names.items : &info.name,
                               .n_names = o->names.count ? o->names.count : 1,
                               .reject_unknown_models = o->strict_models,
                               .usage_on_finish = o->usage_on_finish,
                               .reasoning_twin = o->reasoning_twin,
                               .fixed_seeds = o->seed >= 0,
                               .store_bytes = (size_t)o->store << 20,
                               .plan = plan};
    TRY(di_server_attach(server, &m, err));
    if (fprintf(stdout, "listening on %s\n", di_server_address(server)) < 0 || fflush(stdout) != 0)
        fprintf(stderr, "warning: standard output is closed\n"); /* no reason to stop */
    di_server_wait(server);
out:
    return status;
}

static int run_serve(const void *options)
{
    const struct options *o = options;
    struct di_server_config config;
    struct di_server *server = NULL;
    di_engine *engine = NULL;
    di_engine_config c;
    struct di_load_watch watch = {0};
    di_error err = {0};
    di_status status = DI_OK;
    int fds[DI_HTTP_MAX_LISTENERS];
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK); /* what large requests took goes back to the system when they are over, whatever came between */
    TRY(di_load_check_backend(&o->load, &err));
    CHECK(is_octal(o->unix_mode), &err, DI_ERR_INVALID, "unix-socket-mode", "must have octal digits, such as 660");
    engine_config(o, &watch, &c);
    TRY(di_engine_plan(&c, &watch.plan, sizeof watch.plan, &err));
    server_config(o, &config);
    config.n_fds = inherited_sockets(fds, sizeof fds / sizeof *fds);
    config.fds = fds;
    TRY(di_server_create(&config, &server, &err));
    TRY(di_load_show_plan(&o->load, &watch.plan, &err));
    TRY(di_engine_open(&c, &engine, &err));
    di_load_note(&o->load);
    TRY(di_engine_start(engine, &err));
    TRY(attach(o, &watch.plan, server, engine, &err));
out:
    di_engine_stop(engine);
    di_engine_close(engine);
    di_server_destroy(server);
    return status == DI_OK ? DI_EXIT_OK : di_cli_fail("serve", &err);
}

const struct di_command di_cmd_serve = {
    .name = "serve",
    .summary = "answer HTTP requests: the protocols of OpenAI and Anthropic, a web page, metrics",
    .usage = "--model DIR [--host ADDRESS] [--port N] [options]",
    .options = table,
    .n_options = sizeof table / sizeof *table,
    .options_size = sizeof(struct options),
    .run = run_serve,
};
