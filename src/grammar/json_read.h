/* What reading a schema is made of: records (json_schema.c), addresses (json_address.c). Private to the room. */
#ifndef DI_GRAMMAR_JSON_READ_H
#define DI_GRAMMAR_JSON_READ_H

#include "grammar/json_schema.h"

enum {
    DRAFT_4 = 4,
    DRAFT_6 = 6,
    DRAFT_7 = 7,
    DRAFT_2019 = 19,
    DRAFT_2020 = 20,
    DRAFT_UNNAMED = 21 /* 2020-12, and older forms where it has none */
};

/* Where a reference may lead to. */
struct target {
    struct di_str base, anchor; /* absolute address without fragment; plain-name fragment or empty */
    const struct di_json *v;
    uint32_t resource;
    bool dynamic, recursive;
};

struct scope { /* resources that were entered, innermost last */
    uint32_t up, resource;
};

struct seen {
    const struct di_json *v;
    uint32_t scope, id, chain;
};

struct member_slot { /* object NULL: free; m NULL: the object is in the table */
    const struct di_json *object, *m;
};

struct schema_index {
    struct target *targets;
    size_t n_targets, cap_targets;
    struct scope *scopes;
    size_t n_scopes, cap_scopes;
    struct seen *seen;
    uint32_t *heads;
    size_t n_seen, cap_seen, mask;
    struct di_str *bases; /* of resources */
    uint8_t *drafts;
    size_t n_bases, cap_bases, cap_drafts;
    const struct di_json *root;
    struct member_slot *members; /* of large objects, by name; open addressing */
    size_t n_members, cap_members;
    bool needs_scope;
};

bool schema_grow(void **items, size_t *cap, size_t need, size_t each);
di_status schema_no_memory(di_error *err);
/* A failure with the place of schema `id` and a keyword in it ("" for none). */
di_status schema_fail(struct schemas *s, di_status code, uint32_t id, const char *keyword, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The record for a subschema at this place of the document; read later. */
di_status schema_at(struct schemas *s, const struct di_json *v, uint32_t up, const char *label, struct di_str key, uint32_t index,
                    uint32_t scope, uint32_t resource, uint32_t *out);

/* All addresses and anchors of the document; *resource is that of the whole. False: no memory. */
bool schema_index_all(struct schemas *s, uint32_t *resource);
/* The schema that a reference in schema `id` means. */
di_status schema_reference(struct schemas *s, uint32_t id, const char *keyword, struct di_str ref, uint32_t *out);
uint32_t schema_enter_scope(struct schemas *s, uint32_t scope, uint32_t resource);
/* The last member of that name, or NULL. */
const struct di_json *schema_member(struct schemas *s, const struct di_json *v, struct di_str key);
/* A member that is a string, or NULL. */
const struct di_json *schema_string(const struct di_json *v, const char *key);

#endif
