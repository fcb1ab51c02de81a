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
    DI_LOAD_ROWS(struct options, "16"),
    DI_REUSE_ROWS(struct options, "true"),
    {"cache-blocks", DI_OPT_INT, AT(cache_blocks), "0", 0, INT32_MAX, NULL, "N",
     "Blocks of 64 tokens in the cache; 0 is enough for --max-batch requests of the full context.", false},
    {"seed", DI_OPT_INT, AT(seed), "-1", -1, (double)INT64_MAX, NULL, "S", "Of requests that have none; -1 is another one for each.",
     false},
    {"turn-memory", DI_OPT_INT, AT(turn_memory), "100000", 0, INT32_MAX, NULL, "N",
     "Tool calls and answers whose exact tokens are remembered, so that the cache still fits when a client sends them back; 0 is none.",
     false},
    {"served-model-name", DI_OPT_LIST, AT(names), NULL, 0, 0, NULL, "NAME",
     "Name of the model for clients; may be given several times, the first is shown. Default: the directory's name.", false},
    {"strict-models", DI_OPT_BOOL, AT(strict_models), "false", 0, 0, NULL, NULL, "Answer 404 to requests for another model's name.", false},
    {"usage-on-finish", DI_OPT_BOOL, AT(usage_on_finish), "false", 0, 0, NULL, NULL,
     "Streamed usage as DeepSeek sends it: always, on the chunk with finish_reason.", false},
    {"reasoning-twin", DI_OPT_BOOL, AT(reasoning_twin), "false", 0, 0, NULL, NULL,
     "Send reasoning under both its names, reasoning_content and reasoning.", false},
    {"response-store", DI_OPT_INT, AT(store), "0", 0, 1 << 20, NULL, "MIB",
     "Memory for responses that previous_response_id can refer to; 0 is none.", false},

    {"host", DI_OPT_STRING, AT(host), "127.0.0.1", 0, 0, NULL, "ADDRESS",
     "Where to listen; of a name all its addresses, 0.0.0.0 or :: is every interface.", false},
    {"port", DI_OPT_INT, AT(port), "8000", -1, 65535, NULL, "N", "0 is any free port, which is printed; -1 is none.", false},
    {"unix-socket", DI_OPT_STRING, AT(unix_socket), NULL, 0, 0, NULL, "PATH", "Listen on this socket, too.", false},
    {"unix-socket-mode", DI_OPT_INT, AT(unix_mode), "600", 0, 777, NULL, "OCTAL",
     "Mode of its file: who may write to it can connect; 660 is the group as well, 666 everybody.", false},
    {"tls-cert", DI_OPT_STRING, AT(tls_cert), NULL, 0, 0, NULL, "FILE", "Certificate chain (PEM); with --tls-key. SIGHUP reads them again.",
     false},
    {"tls-key", DI_OPT_STRING, AT(tls_key), NULL, 0, 0, NULL, "FILE", "Its private key (PEM).", false},
    {"api-keys", DI_OPT_STRING, AT(api_keys), NULL, 0, 0, NULL, "FILE",
     "Ask for a key. A line is SHA256 TENANT [rate=N] [concurrency=N]. SIGHUP reads it again.", false},
    {"cors-origin", DI_OPT_STRING, AT(cors_origin), NULL, 0, 0, NULL, "ORIGIN", "Let pages of this origin ask, * is all; default none.",
     false},

    {"allowed-host", DI_OPT_LIST, AT(hosts), NULL, 0, 0, NULL, "NAME",
     "Without keys and on a loopback address, requests must name a loopback host; this one may be named, too (behind a proxy). * is any.",
     false},
    {"max-connections", DI_OPT_INT, AT(max_connections), "16384", 1, 1 << 20, NULL, "N", "Open connections; more get 503.", false},
    {"max-body", DI_OPT_INT, AT(max_body), "32", 1, 4096, NULL, "MIB", "Longest request body; larger ones get 413.", false},
    {"max-queue", DI_OPT_INT, AT(max_queue), "1024", 0, 1 << 20, NULL, "N", "Requests that may wait beyond --max-batch; more get 429.",
     false},
    {"max-output", DI_OPT_INT, AT(max_output), "1024", 1, 1 << 20, NULL, "KIB",
     "Of one response, held for a client that reads slowly; at more it is dropped.", false},
    {"timeout", DI_OPT_DOUBLE, AT(timeout), "0", 0, 1e6, NULL, "S", "Longest life of a request in the engine; 0 is no limit.", false},
    {"head-timeout", DI_OPT_DOUBLE, AT(head_timeout), "10", 0.1, 3600, NULL, "S", "For the head of a request, and a TLS handshake.", false},
    {"body-timeout", DI_OPT_DOUBLE, AT(body_timeout), "20", 0.1, 3600, NULL, "S", "For each 64 KiB of its body.", false},
    {"idle-timeout", DI_OPT_DOUBLE, AT(idle_timeout), "75", 0.1, 86400, NULL, "S", "Between two requests of a connection.", false},
    {"write-timeout", DI_OPT_DOUBLE, AT(write_timeout), "30", 0.1, 3600, NULL, "S", "A client that takes nothing for so long is dropped.",
     false},
    {"drain-timeout", DI_OPT_DOUBLE, AT(drain_timeout), "30", 0, 86400, NULL, "S",
     "At SIGTERM what is under way may take so long; then it ends with an error.", false},
    {"keep-alive-comment", DI_OPT_DOUBLE, AT(comment), "3", 0, 3600, NULL, "S",
     "A stream that has sent nothing for so long sends a comment; 0 is never.", false},
    {"blank-lines", DI_OPT_BOOL, AT(blank_lines), "false", 0, 0, NULL, NULL,
     "Send line feeds in the same way before answers that are no streams. Errors then come with status 200.", false},
    {"stall-timeout", DI_OPT_DOUBLE, AT(stall), "60", 0, 86400, NULL, "S",
     "/health says 503 when there is work but no step ended for so long; 0 is never.", false},
    {"access-log", DI_OPT_STRING, AT(access_log), NULL, 0, 0, NULL, "FILE", "A line for each request; - is stderr.", false},
    {"log-format", DI_OPT_CHOICE, AT(log_format), "text", 0, 0, "text|json", NULL, "Of messages and access log.", false},
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
