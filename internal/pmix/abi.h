// The part of the ABI of libpmix.so.2 that this package uses, which is the same from PMIx 3 to 7,
// declared here so that it builds with any C compiler and no headers of PMIx. Names are those of
// <pmix_common.h> with sl_pmix_ for pmix_. testdata/abi.c compares all of it with that header.
#ifndef SLUICE_PMIX_ABI_H
#define SLUICE_PMIX_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { sl_nspace = 256, sl_key = 512 }; // with the terminating 0

struct sl_pmix_proc {
	char nspace[sl_nspace];
	uint32_t rank;
};

struct sl_pmix_value {
	uint16_t type;
	union {
		bool flag;
		char *string;
		uint16_t uint16;
		uint32_t uint32;
		uint64_t room[3]; // for the largest member
	} data;
};

struct sl_pmix_info {
	char key[sl_key];
	uint32_t flags;
	struct sl_pmix_value value;
};

enum {
	sl_success = 0,
	sl_err_not_found = -46,
	sl_bool = 1,
	sl_string = 3,
	sl_uint16 = 13,
	sl_uint32 = 14,
	sl_global = 3,
};
#define SL_RANK_WILDCARD (UINT32_MAX - 1)

#define SL_COLLECT_DATA "pmix.collect"
#define SL_JOB_SIZE "pmix.job.size"
#define SL_LOCAL_SIZE "pmix.local.size"
#define SL_LOCAL_RANK "pmix.lrank"

#endif
