/* API keys: who may ask, as which tenant, how much.
 *
 * The file has one key a line: its SHA-256 in hexadecimal (64 digits, "sha256:" in front or not), the name of its tenant, and maybe limits:
 *
 *     sha256:2bb80d53...  team-a  rate=120 concurrency=8
 *
 * Empty lines and lines that begin with # are skipped. Several keys may have one tenant; limits are the key's own. What a tenant's requests
 * computed is never reused for another tenant. One thread uses a table. */
#ifndef DI_SERVER_AUTH_H
#define DI_SERVER_AUTH_H

#include "server/tenant.h"

struct di_auth_key {
    unsigned char hash[32];
    struct di_tenant *tenant;
    double per_minute; /* 0 = no limit */
    int concurrency;   /* requests at the same time, 0 = no limit */
    int running;       /* now */
    double tokens;     /* of the bucket that per_minute fills; holds at most what 10 s fill, at least 1 */
    int64_t filled_ns;
    uint64_t requests;     /* admitted since start */
    int holders;           /* requests that point here, and the table */
    struct di_auth_key *before; /* private: of the table in use, while a file is read */
};

struct di_keys;

/* Read a key file. DI_ERR_FORMAT with FILE:LINE for a line that is not as above, or a key that stands there twice. `before` (may be NULL):
 * the table in use; keys that stand in both keep their counts. */
di_status di_keys_load(const char *path, const struct di_keys *before, struct di_keys **out, di_error *err);
/* Keys that requests still point to live until those release them. */
void di_keys_destroy(struct di_keys *k);

/* The key that the client presented, or NULL. Compares with all keys in constant time. */
struct di_auth_key *di_keys_find(struct di_keys *k, struct di_str presented);

/* Would a request be taken now? 0, or seconds after which to try again (at least 1); *why is then a static sentence. */
int di_key_check(struct di_auth_key *key, int64_t now_ns, const char **why);
/* Take a place for one request, if di_key_check says so. */
int di_key_admit(struct di_auth_key *key, int64_t now_ns, const char **why);
/* A request that was admitted is over. */
void di_key_leave(struct di_auth_key *key);
/* A request refers to the key, beyond a reload; it does no longer. NULL does nothing. */
void di_key_hold(struct di_auth_key *key);
void di_key_drop(struct di_auth_key *key);

#endif
