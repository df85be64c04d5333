/* Strings, URLs, arrays, errors, data. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct string {
    object base;
    char *text;
} string;

typedef struct array {
    object base;
    object **items;
    size_t count;
} array;

typedef struct nserror {
    object base;
    char *domain, *text;
    long code;
} nserror;

typedef struct data {
    object base;
    char *bytes;
    size_t size;
} data;

static class *string_class, *url_class, *array_class, *error_class, *data_class;

/* ---- strings, URLs ------------------------------------------------------------------------------------------------
 */

static void string_gone(object *o) {
    free(((string *)o)->text);
}

static bool is_utf8(const char *text) {
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        int32_t cp;
        i += (size_t)sl_utf8_decode(text + i, n - i, &cp);
        if (cp < 0)
            return false;
    }
    return true;
}

object *make_string(const char *text) {
    string *s = (string *)make_object(string_class);
    s->text = sl_strdup(text);
    return &s->base;
}

const char *string_text(const object *o) {
    return ((const string *)o)->text;
}

static object *string_with(class *c, selector s, const char *text) {
    if (!text)
        violate("stringWithUTF8String: of NULL");
    return text && is_utf8(text) ? autorelease_object(make_string(text)) : NULL;
}

static const char *string_utf8(string *o, selector s) {
    return o->text;
}

static object *url_with(class *c, selector s, string *path) {
    if (!path) {
        violate("fileURLWithPath: of nil");
        return NULL;
    }
    string *url = (string *)make_object(url_class);
    url->text = sl_strdup(path->text);
    return autorelease_object(&url->base);
}

const char *url_path(const object *url) {
    return ((const string *)url)->text;
}

/* ---- arrays -------------------------------------------------------------------------------------------------------
 */

static void array_gone(object *o) {
    array *a = (array *)o;
    for (size_t i = 0; i < a->count; i++)
        release_object(a->items[i]);
    free(a->items);
}

object *make_array(object *const *items, size_t n) {
    array *a = (array *)make_object(array_class);
    a->items = calloc(n + 1, sizeof *a->items);
    for (; a->count < n; a->count++)
        a->items[a->count] = retain_object(items[a->count]);
    return &a->base;
}

size_t array_count(const object *o) {
    return ((const array *)o)->count;
}

object *array_item(const object *o, size_t i) {
    return ((const array *)o)->items[i];
}

static object *array_with(class *c, selector s, object *item) {
    if (!item) {
        violate("arrayWithObject: of nil");
        return NULL;
    }
    return autorelease_object(make_array(&item, 1));
}

static uinteger array_size(array *a, selector s) {
    return a->count;
}

static object *array_at(array *a, selector s, uinteger i) {
    if (i < a->count)
        return a->items[i];
    violate("objectAtIndex: %lu of an array of %zu", i, a->count);
    return NULL;
}

/* ---- errors -------------------------------------------------------------------------------------------------------
 */

static void error_gone(object *o) {
    nserror *e = (nserror *)o;
    free(e->domain);
    free(e->text);
}

object *make_error(const char *domain, long number, const char *text) {
    nserror *e = (nserror *)make_object(error_class);
    e->domain = sl_strdup(domain);
    e->code = number;
    e->text = sl_strdup(text);
    return &e->base;
}

void set_error(object **error, const char *domain, long number, const char *text) {
    if (error)
        *error = autorelease_object(make_error(domain, number, text));
}

bool fault_wanted(standin_fault *fault, object **error) {
    if (!fault->domain)
        return false;
    set_error(error, fault->domain, fault->code, fault->text);
    *fault = (standin_fault){0};
    return true;
}

static object *error_domain(nserror *e, selector s) {
    return autorelease_object(make_string(e->domain));
}

static uinteger error_code(nserror *e, selector s) {
    return (uinteger)e->code;
}

static object *error_description(nserror *e, selector s) {
    return autorelease_object(make_string(e->text));
}

/* ---- data, system -------------------------------------------------------------------------------------------------
 */

static void data_gone(object *o) {
    free(((data *)o)->bytes);
}

STANDIN_EXPORT object *dispatch_data_create(const void *bytes, size_t size, void *on, void *destructor) {
    if (nil_wanted(STANDIN_NIL_DATA))
        return NULL;
    data *d = (data *)make_object(data_class);
    d->bytes = sl_strndup(bytes, size);
    d->size = size;
    return &d->base;
}

const void *data_bytes(const object *o, size_t *size) {
    *size = ((const data *)o)->size;
    return ((const data *)o)->bytes;
}

STANDIN_EXPORT int sysctlbyname(const char *name, void *old, size_t *old_size, void *set, size_t set_size) {
    const char *text = strcmp(name, "kern.osproductversion") == 0 ? control.system
                       : strcmp(name, "kern.osversion") == 0      ? control.build
                                                                  : NULL;
    if (!text || *old_size < strlen(text) + 1)
        return -1;
    *old_size = strlen(text) + 1;
    memcpy(old, text, *old_size);
    return 0;
}

void register_foundation(void) {
    static const method_row string_methods[] = {{"UTF8String", string_utf8}, {0}};
    static const method_row array_methods[] = {{"count", array_size}, {"objectAtIndex:", array_at}, {0}};
    static const method_row error_methods[] = {
        {"domain", error_domain}, {"code", error_code}, {"localizedDescription", error_description}, {0}};
    string_class = make_class("NSString", sizeof(string), string_gone);
    add_methods(string_class, string_methods);
    add_class_methods(string_class, (const method_row[]){{"stringWithUTF8String:", string_with}, {0}});
    url_class = make_class("NSURL", sizeof(string), string_gone);
    add_class_methods(url_class, (const method_row[]){{"fileURLWithPath:", url_with}, {0}});
    array_class = make_class("NSArray", sizeof(array), array_gone);
    add_methods(array_class, array_methods);
    add_class_methods(array_class, (const method_row[]){{"arrayWithObject:", array_with}, {0}});
    error_class = make_class("NSError", sizeof(nserror), error_gone);
    add_methods(error_class, error_methods);
    data_class = make_class("OS_dispatch_data", sizeof(data), data_gone);
}
