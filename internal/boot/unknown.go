package boot

import (
	"context"
	"regexp"
	"slices"
	"strings"
)

// KnownVariables returns the names of all variables of Sluice that begin with SLUICE_: those of
// [Variables], and those that other packages read. A test of the repository compares them with the code.
func KnownVariables() []string {
	names := strings.Fields(`SLUICE_TRANSPORT SLUICE_IBVERBS SLUICE_ROCE_SHARE SLUICE_ROCE_ACK SLUICE_XDP_SOCKET SLUICE_XDP_MODE
		SLUICE_WAIT SLUICE_TUNING_FILE SLUICE_COLL_BLOCK SLUICE_COLL_RING_BLOCK SLUICE_COLL_PIPELINE SLUICE_COLL_SEGMENT
		SLUICE_COLL_SCATTER_BLOCK SLUICE_COLL_BRUCK_BLOCK SLUICE_COLL_PAIR_BLOCK SLUICE_COLL_ALGORITHM SLUICE_TCP_EAGER
		SLUICE_RDMA_EAGER SLUICE_TCP_PACK SLUICE_RDMA_PACK SLUICE_TCP_READ SLUICE_RDMA_READ SLUICE_FILTER_LIMIT`)
	for _, v := range Variables() {
		names = append(names, v.Name)
	}
	return names
}

// notOurs are the variables of tests and of the bench, and those that Kubernetes sets for a service.
var notOurs = regexp.MustCompile(`TEST|BENCH|VM|LAM|INTEROP|_SERVICE_|_PORT(_\d+_.*)?$`)

// warnOfUnknown logs which variables of the environment, a list of NAME=value, nothing reads.
func warnOfUnknown(ctx context.Context, environment []string) {
	var names []string
	for _, s := range environment {
		name, _, _ := strings.Cut(s, "=")
		if strings.HasPrefix(name, "SLUICE_") && !notOurs.MatchString(name) && !slices.Contains(KnownVariables(), name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		loggerOf(ctx).Warn("the environment has variables that Sluice does not know, and ignores: look for misspelt names", "variables", names)
	}
}
