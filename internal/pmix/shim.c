//go:build linux && cgo

#define _GNU_SOURCE
#include "shim.h"

#include <stdlib.h>
#include <string.h>

static int (*init)(struct sl_pmix_proc *, struct sl_pmix_info *, size_t);
static int (*finalize)(const struct sl_pmix_info *, size_t);
static int (*put)(uint8_t, const char *, struct sl_pmix_value *);
static int (*commit)(void);
static int (*fence)(const struct sl_pmix_proc *, size_t, const struct sl_pmix_info *, size_t);
static int (*get)(const struct sl_pmix_proc *, const char *, const struct sl_pmix_info *, size_t, struct sl_pmix_value **);
static const char *(*error_string)(int);
static void (*value_free)(struct sl_pmix_value *, size_t); // from PMIx 5 on

#define SYMBOL(name, to, optional) {name, (void **)&to, optional}
const struct sl_pmix_symbol sl_pmix_table[sl_pmix_symbols] = {
	SYMBOL("PMIx_Init", init, 0),
	SYMBOL("PMIx_Finalize", finalize, 0),
	SYMBOL("PMIx_Put", put, 0),
	SYMBOL("PMIx_Commit", commit, 0),
	SYMBOL("PMIx_Fence", fence, 0),
	SYMBOL("PMIx_Get", get, 0),
	SYMBOL("PMIx_Error_string", error_string, 0),
	SYMBOL("PMIx_Value_free", value_free, 1),
};

// release frees a value that the library has allocated. Before PMIx 5 that was a macro, compiled into
// the programs that used it.
static void release(struct sl_pmix_value *v) {
	if (value_free) {
		value_free(v, 1);
		return;
	}
	if (v->type == sl_string) {
		free(v->data.string);
	}
	free(v);
}

int sl_pmix_init(struct sl_pmix_proc *self) { return init(self, NULL, 0); }

int sl_pmix_finalize(void) { return finalize(NULL, 0); }

int sl_pmix_put(const char *key, char *value) {
	struct sl_pmix_value v = {.type = sl_string, .data.string = value};
	int status = put(sl_global, key, &v);
	return status == sl_success ? commit() : status;
}

int sl_pmix_fence(void) {
	struct sl_pmix_info collect = {.key = SL_COLLECT_DATA, .value = {.type = sl_bool, .data.flag = true}};
	return fence(NULL, 0, &collect, 1);
}

int sl_pmix_get_string(const struct sl_pmix_proc *of, const char *key, char **value) {
	struct sl_pmix_value *v = NULL;
	int status = get(of, key, NULL, 0, &v);
	if (status != sl_success) {
		return status;
	}
	*value = v && v->type == sl_string && v->data.string ? strdup(v->data.string) : NULL;
	if (v) {
		release(v);
	}
	return *value ? sl_success : sl_err_not_found;
}

int sl_pmix_get_number(const struct sl_pmix_proc *of, const char *key, uint32_t *value) {
	struct sl_pmix_value *v = NULL;
	int status = get(of, key, NULL, 0, &v);
	if (status != sl_success) {
		return status;
	}
	status = sl_err_not_found;
	if (v && (v->type == sl_uint16 || v->type == sl_uint32)) {
		*value = v->type == sl_uint16 ? v->data.uint16 : v->data.uint32;
		status = sl_success;
	}
	if (v) {
		release(v);
	}
	return status;
}

const char *sl_pmix_error(int status) { return error_string(status); }
