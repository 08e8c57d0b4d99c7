// Compares abi.h with the distribution's header. Compiling is the test.
#include <pmix.h>

#include "../abi.h"

#define SIZE(t) _Static_assert(sizeof(struct sl_pmix_##t) == sizeof(pmix_##t##_t), "size of " #t)
#define AT(t, a)                                                                                          \
	_Static_assert(offsetof(struct sl_pmix_##t, a) == offsetof(pmix_##t##_t, a), "offset of " #t "." #a); \
	_Static_assert(sizeof(((struct sl_pmix_##t *)0)->a) == sizeof(((pmix_##t##_t *)0)->a), "size of " #t "." #a)
#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #theirs)
// The compiler folds the comparison of two literals.
#define KEY(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs) && __builtin_strcmp(ours, theirs) == 0, #theirs)

SIZE(proc);
AT(proc, nspace);
AT(proc, rank);

SIZE(value);
AT(value, type);
AT(value, data);
AT(value, data.flag);
AT(value, data.string);
AT(value, data.uint16);
AT(value, data.uint32);

SIZE(info);
AT(info, key);
AT(info, flags);
AT(info, value);

SAME(sl_success, PMIX_SUCCESS);
SAME(sl_err_not_found, PMIX_ERR_NOT_FOUND);
SAME(sl_bool, PMIX_BOOL);
SAME(sl_string, PMIX_STRING);
SAME(sl_uint16, PMIX_UINT16);
SAME(sl_uint32, PMIX_UINT32);
SAME(sl_global, PMIX_GLOBAL);
SAME(SL_RANK_WILDCARD, PMIX_RANK_WILDCARD);
_Static_assert(sizeof(pmix_status_t) == sizeof(int) && sizeof(pmix_scope_t) == sizeof(uint8_t), "status and scope");

KEY(SL_COLLECT_DATA, PMIX_COLLECT_DATA);
KEY(SL_JOB_SIZE, PMIX_JOB_SIZE);
KEY(SL_LOCAL_SIZE, PMIX_LOCAL_SIZE);
KEY(SL_LOCAL_RANK, PMIX_LOCAL_RANK);

// The functions are called through pointers of these types.
#define FUNCTION(f, result, ...) _Static_assert(__builtin_types_compatible_p(__typeof__(f), result(__VA_ARGS__)), #f)
FUNCTION(PMIx_Init, int, pmix_proc_t *, pmix_info_t *, size_t);
FUNCTION(PMIx_Finalize, int, const pmix_info_t *, size_t);
FUNCTION(PMIx_Put, int, uint8_t, const char *, pmix_value_t *);
FUNCTION(PMIx_Commit, int, void);
FUNCTION(PMIx_Fence, int, const pmix_proc_t *, size_t, const pmix_info_t *, size_t);
FUNCTION(PMIx_Get, int, const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **);
FUNCTION(PMIx_Error_string, const char *, int);
