// Package variable lists the environment variables that Sluice reads, with the defaults that are no
// numbers of another package: docs/variables.md is written from it, and internal/boot warns of other names.
package variable

import "strconv"

// Variable describes one variable of the environment.
type Variable struct {
	Name    string
	Meaning string // one line
	For     string // Job, Rank or Filter
	Default string // "": a number that the package with the setting knows
}

// Which processes read a variable.
const (
	Job    = "all"      // every rank, and all need the same value
	Rank   = "rank"     // each rank its own
	Filter = "a filter" // a filter of package fanout/filter
)

// Defaults of provider roce and, after them, of xdp.
const (
	ROCEShare = 0
	ROCEAck   = "lazy"
	XDPSocket = "/run/sluice/xdp.sock"
	XDPMode   = "generic"
)

// ROCEMostShare is the largest value of SLUICE_ROCE_SHARE.
const ROCEMostShare = 128

// Wrong returns the first variable whose value no provider would take, and what to set instead; "" if
// there is none. The providers that read these may not be in use, so that nothing else would complain.
func Wrong(getenv func(string) string) (name, want string) {
	for _, v := range []struct {
		name, want string
		good       func(value string) bool
	}{
		{"SLUICE_ROCE_SHARE", "want a number from 0 to " + strconv.Itoa(ROCEMostShare), func(value string) bool {
			n, err := strconv.Atoi(value)
			return err == nil && n >= 0 && n <= ROCEMostShare
		}},
		{"SLUICE_ROCE_ACK", "want lazy or message", func(value string) bool { return value == ROCEAck || value == "message" }},
		{"SLUICE_XDP_MODE", "want generic or native", func(value string) bool { return value == XDPMode || value == "native" }},
	} {
		if value := getenv(v.name); value != "" && !v.good(value) {
			return v.name, v.want
		}
	}
	return "", ""
}

// Nearest returns the name of the list that a misspelt one probably means; "" if none is near.
func Nearest(misspelt string, names []string) string {
	best, least := "", 1+max(1, len(misspelt)/6) // letters that may be wrong, and one more
	for _, name := range names {
		if d := distance(misspelt, name, least); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is how many letters are to be added, dropped, changed, or swapped with the next to make b of a;
// at least most if it is more.
func distance(a, b string, most int) int {
	if max(len(a), len(b))-min(len(a), len(b)) >= most {
		return most
	}
	var rows [3][]int // of the table, for the last three letters of a
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := range len(a) {
		before, last, row := rows[(i+2)%3], rows[i%3], rows[(i+1)%3]
		row[0] = i + 1
		for j := range len(b) {
			changed := last[j]
			if a[i] != b[j] {
				changed++
			}
			row[j+1] = min(changed, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return min(most, rows[len(a)%3][len(b)])
}

// Section is a part of the list.
type Section struct {
	Heading, Text string
	List          []Variable
}

// Sections returns the variables of all packages but internal/boot, in a fresh slice.
func Sections() []Section {
	number := func(name, meaning string) Variable { return Variable{name, meaning, Job, ""} }
	return []Section{
		{"Joining", "", []Variable{
			{"SLUICE_JOIN_TIMEOUT", "how long `Join` waits until all ranks are there, as in `90s`, or `none`. If it is not set, a rank that does not find the rendezvous gives up after 2m, under `sluice run` after 30s. `channel.WithJoinTimeout` takes it as well", Rank, "10m"},
			{"SLUICE_SAME", "1: all ranks are to run the same build of the same program. `sluice run --same` sets it; one rank that has it is enough", Rank, "they need not"},
		}},
		{"Transports", "", []Variable{
			{"SLUICE_TRANSPORT", "comma-separated providers to try, in this order, and no others", Rank, "shm, ibv, tcp"},
			{"SLUICE_IBVERBS", "the libibverbs to open", Rank, "the dynamic linker's"},
			{"SLUICE_ROCE_SHARE", "how many contexts may share an address and port 4791 (provider roce)", Job, strconv.Itoa(ROCEShare)},
			{"SLUICE_ROCE_ACK", "`message`: acknowledge every message on its own (provider roce)", Rank, ROCEAck},
			{"SLUICE_XDP_SOCKET", "the socket of `sluice xdp-helper` (provider xdp)", Rank, XDPSocket},
			{"SLUICE_XDP_MODE", "`native` or `generic`: how a process that opens an interface itself attaches to it (provider xdp)", Rank, XDPMode},
		}},
		{"Listening", "Ranks listen for each other by TCP, also where other transports move the messages, and so does\n`sluice run`. About three ports are needed for each rank of a host, and one where the ranks meet. An\naddress that is given explicitly, as `SLUICE_SERVER` is, stays as it is. RoCE in user space has UDP port\n4791.", []Variable{
			{"SLUICE_PORTS", "the ports to listen at, as in 20000-20999, where a firewall lets these through; under `srun` without PMI, the ranks meet at one of the first eight", Job, "the system's"},
			{"SLUICE_NET", "the network to listen in, as in 10.1.0.0/16, or the name of an interface; devices of tcp, roce and xdp in others are not there", Rank, "all"},
		}},
		{"Waiting", "", []Variable{
			{"SLUICE_WAIT", "how a rank waits for a message: `spin`, `yield` its CPU, or `sleep`; with a duration (`spin:50us`) it sleeps after that. `channel.WithWait` and `impi.Config.Wait` take it as well", Rank, "what fits"},
		}},
		{"Tuning", "`bench tune` measures these and writes them into a file. `channel.WithTuning` takes them as well.\nA value of -1 means the default. Values are bytes unless the meaning says otherwise.", []Variable{
			{"SLUICE_TUNING_FILE", "a file with lines NAME=value of the variables below and `SLUICE_TRANSPORT`; the environment overrides it", Rank, "none"},
			number("COLL_XSIZE", "vectors from this size on use the algorithms for long vectors"),
			number("COLL_MAXLINEAR", "short collectives are linear up to this many members, or hosts"),
			number("SLUICE_COLL_BLOCK", "a reduction of a long vector is cut up if each member's share has this size or more"),
			number("SLUICE_COLL_RING_BLOCK", "blocks from this size on go around a ring"),
			number("SLUICE_COLL_PIPELINE", "vectors from this size on pass along a chain, if it has at least n-2 segments"),
			number("SLUICE_COLL_SEGMENT", "size of such a segment; longer if there would be more than 256"),
			number("SLUICE_COLL_SCATTER_BLOCK", "a broadcast in which each member's share has this size or more is a scatter and an allgather"),
			number("SLUICE_COLL_BRUCK_BLOCK", "blocks of an alltoall from this size on go straight to their member"),
			number("SLUICE_COLL_PAIR_BLOCK", "members exchange blocks of an alltoall from this size on with one peer at a time"),
			{"SLUICE_COLL_ALGORITHM", "algorithm for each kind of collective: [collectives.md](collectives.md)", Job, "chosen by size"},
			number("SLUICE_TCP_EAGER", "the longest message that is sent before its receiver is ready, over tcp"),
			number("SLUICE_RDMA_EAGER", "the same over RDMA"),
			number("SLUICE_TCP_PACK", "longer messages with shorter blocks than this are packed, over tcp"),
			number("SLUICE_RDMA_PACK", "the same over RDMA"),
			number("SLUICE_TCP_READ", "the receiver reads blocks of the sender from this length on, over tcp"),
			number("SLUICE_RDMA_READ", "the same over RDMA"),
		}},
		{"Filters", "", []Variable{
			{"SLUICE_FILTER_LIMIT", "the longest chunk and answer; `sluice fanout` sets it to 64 MiB and two items of `--item-limit`", Filter, ""},
		}},
	}
}
