package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Hosts say where ranks run: through an agent on each host, which is this program again, with the argument
// agent.
type Hosts struct {
	List   []Host
	ByNode bool // deal ranks out to the hosts in turn, instead of filling one after another

	// Shell is the command that runs a command on a host: its arguments, followed by the host and the
	// command. nil: ssh, which must not ask anything.
	Shell []string
	// Slurm has srun, inside the allocation of this process, start the agents in place of the Shell.
	Slurm bool
	// Copy sends this program, and those of the ranks, to the hosts, which keep them in a private folder
	// for temporary files until their ranks have ended.
	Copy bool
	// Silence is how long a host may not answer before it counts as lost. Zero means DefaultSilence; less
	// than zero means for ever.
	Silence time.Duration
}

// Host is a host and how many ranks it takes.
type Host struct {
	Name  string // or address, for the Shell
	Slots int
	Here  bool // it is this one
}

// DefaultSilence is used if Hosts.Silence is zero.
const DefaultSilence = 10 * time.Second

// maxHost is the most bytes in the name of a host (RFC 1035, 2.3.4), and of a user before it.
const maxHost = 300

// ErrHost: not the name of a host, or a wrong number of slots.
var ErrHost = errors.New("not a host")

// ParseHosts reads a list of hosts, as mpirun has it: a:4,b:4,user@c. A host without a number has one slot;
// of one that is named several times the slots add up. An IPv6 address stands in brackets.
func ParseHosts(s string) (list []Host, err error) {
	for item := range strings.SplitSeq(s, ",") {
		h, err := parseHost(item)
		if err != nil {
			return nil, err
		}
		list = add(list, h)
	}
	return list, nil
}

// add adds a host to a list, or its slots to those that it has there.
func add(list []Host, h Host) []Host {
	if i := slices.IndexFunc(list, func(o Host) bool { return o.Name == h.Name }); i >= 0 {
		list[i].Slots += h.Slots
		return list
	}
	return append(list, h)
}

func parseHost(s string) (h Host, err error) {
	h = Host{Name: s, Slots: 1}
	if user, rest, ok := strings.Cut(s, "@["); ok || strings.HasPrefix(s, "[") { // an IPv6 address
		if !ok {
			rest = s[1:]
		} else {
			user += "@"
		}
		if !ok {
			user = ""
		}
		address, after, closed := strings.Cut(rest, "]")
		if !closed || after != "" && after[0] != ':' {
			return h, fmt.Errorf("%w: %.80q", ErrHost, s)
		}
		h.Name, s = user+address, after
	} else if name, _, ok := strings.Cut(s, ":"); ok {
		h.Name, s = name, s[len(name):]
	} else {
		s = ""
	}
	if s != "" {
		if h.Slots, err = slots(s[1:]); err != nil {
			return h, err
		}
	}
	return h, checkHost(h.Name)
}

// checkHost refuses names that a shell would take for an option, or for several words.
func checkHost(name string) error {
	good := func(r rune) bool {
		return '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' || strings.ContainsRune("-._@:%", r)
	}
	if name == "" || name[0] == '-' || len(name) > maxHost || strings.ContainsFunc(name, func(r rune) bool { return !good(r) }) {
		return fmt.Errorf("%w: %.80q", ErrHost, name)
	}
	return nil
}

// maxSlots is the most slots of a host.
const maxSlots = 1 << 16

func slots(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxSlots {
		return 0, fmt.Errorf("%w: %.20q slots, want 1 to %d", ErrHost, s, maxSlots)
	}
	return n, nil
}

// maxHosts bounds the hosts of a file.
const maxHosts = 1 << 16

// ReadHosts reads a file of hosts in the format of mpirun: on each line a host, and slots=N, or in that of
// Hydra, host:N. Words max_slots=N are ignored, as is what follows a #.
func ReadHosts(r io.Reader) (list []Host, err error) {
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(strings.ReplaceAll(text, "=", " = "))
		if len(words) == 0 {
			continue
		}
		h, err := parseHost(words[0])
		for words = words[1:]; len(words) > 0 && err == nil; words = words[min(3, len(words)):] {
			switch {
			case len(words) < 3 || words[1] != "=" || words[0] != "slots" && words[0] != "max_slots" && words[0] != "max-slots":
				err = fmt.Errorf("%w: %.80q, want slots=N", ErrHost, strings.Join(words, " "))
			case words[0] == "slots":
				h.Slots, err = slots(words[2])
			}
		}
		if err == nil && len(list) == maxHosts {
			err = fmt.Errorf("%w: more than %d of them", ErrHost, maxHosts)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		list = add(list, h)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: the file names none", ErrHost)
	}
	return list, nil
}

// Slots returns the slots of all hosts.
func (h *Hosts) Slots() (n int) {
	for _, host := range h.List {
		n += host.Slots
	}
	return n
}

func (h *Hosts) check(size int, oversubscribe bool) error {
	if len(h.List) == 0 {
		return fmt.Errorf("%w: none is given", ErrHost)
	}
	for _, host := range h.List {
		if err := checkHost(host.Name); err != nil {
			return err
		}
		if host.Slots < 1 || host.Slots > maxSlots {
			return fmt.Errorf("%w: %s has %d slots, want 1 to %d", ErrHost, host.Name, host.Slots, maxSlots)
		}
	}
	if n := h.Slots(); size > n && !oversubscribe {
		return fmt.Errorf("%d ranks for %d slots on %d hosts: add slots, as in host:4, or oversubscribe", size, n, len(h.List))
	}
	return nil
}

// deal returns the ranks of each host. Ranks for which there is no slot go round the hosts.
func (h *Hosts) deal(size int) [][]int {
	shares := make([][]int, len(h.List))
	rank := 0
	give := func(i int) {
		if rank < size {
			shares[i] = append(shares[i], rank)
			rank++
		}
	}
	if h.ByNode {
		for round := 0; rank < min(size, h.Slots()); round++ {
			for i, host := range h.List {
				if round < host.Slots {
					give(i)
				}
			}
		}
	} else {
		for i, host := range h.List {
			for range host.Slots {
				give(i)
			}
		}
	}
	for rank < size {
		for i := range h.List {
			give(i)
		}
	}
	return shares
}
