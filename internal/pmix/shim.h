#ifndef SLUICE_PMIX_SHIM_H
#define SLUICE_PMIX_SHIM_H

#include "abi.h"

// The functions of the library that are looked up.
struct sl_pmix_symbol {
	const char *name;
	void **to;
	int optional;
};
enum { sl_pmix_symbols = 8 };
extern const struct sl_pmix_symbol sl_pmix_table[sl_pmix_symbols];

// All but sl_pmix_error return a status of PMIx.
int sl_pmix_init(struct sl_pmix_proc *self);
int sl_pmix_finalize(void);
// sl_pmix_put also commits.
int sl_pmix_put(const char *key, char *value);
// sl_pmix_fence waits for all processes of the namespace, and collects what they have put.
int sl_pmix_fence(void);
// sl_pmix_get_string sets value to a copy, to be freed.
int sl_pmix_get_string(const struct sl_pmix_proc *of, const char *key, char **value);
int sl_pmix_get_number(const struct sl_pmix_proc *of, const char *key, uint32_t *value);
const char *sl_pmix_error(int status);

#endif
