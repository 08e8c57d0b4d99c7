package boot

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHosts bounds the nodes in a list; Slurm itself stops at 65,536 (MAX_SLURM_NODES,
// src/common/slurm_protocol_defs.h).
const maxHosts = 1 << 16

// maxHost is the most bytes in the name of a node (RFC 1035, 2.3.4).
const maxHost = 255

// parseHostlist returns the names in a list of nodes as Slurm writes it:
// a[1-3,7],b0[08-10]x[1-2],c. A first number with zeros in front gives the
// width of all in its range. The last bracket counts fastest.
func parseHostlist(s string) ([]string, error) {
	var names []string
	for rest := s; ; {
		i := itemEnd(rest)
		item := rest[:i]
		list, err := expandItem(item, maxHosts-len(names))
		if err != nil {
			return nil, fmt.Errorf("%.80q: %w", item, err)
		}
		names = append(names, list...)
		if i == len(rest) {
			return names, nil
		}
		rest = rest[i+1:]
	}
}

// itemEnd is where the first item ends: at a comma outside of brackets.
func itemEnd(s string) int {
	inside := false
	for i := range len(s) {
		switch s[i] {
		case '[':
			inside = true
		case ']':
			inside = false
		case ',':
			if !inside {
				return i
			}
		}
	}
	return len(s)
}

var errTooManyHosts = fmt.Errorf("the list has more than %d nodes", maxHosts)

// expandItem returns the names that one item stands for.
func expandItem(item string, most int) ([]string, error) {
	names := []string{""}
	extend := func(by []string) error {
		if len(names)*len(by) > most {
			return errTooManyHosts
		}
		longer := make([]string, 0, len(names)*len(by))
		for _, n := range names {
			for _, b := range by {
				if len(n)+len(b) > maxHost {
					return fmt.Errorf("a node's name is longer than %d bytes", maxHost)
				}
				longer = append(longer, n+b)
			}
		}
		names = longer
		return nil
	}
	if item == "" {
		return nil, errors.New("the name is empty")
	}
	for item != "" {
		text, rest, bracket := strings.Cut(item, "[")
		if strings.ContainsFunc(text, func(r rune) bool { return !hostRune(r) }) {
			return nil, errors.New("not the name of a node")
		}
		if err := extend([]string{text}); err != nil {
			return nil, err
		}
		if !bracket {
			break
		}
		inside, after, closed := strings.Cut(rest, "]")
		if !closed {
			return nil, errors.New("a bracket is not closed")
		}
		numbers, err := expandRanges(inside, most)
		if err != nil {
			return nil, err
		}
		if err := extend(numbers); err != nil {
			return nil, err
		}
		item = after
	}
	return names, nil
}

// expandRanges returns the numbers in the inside of a bracket.
func expandRanges(s string, most int) ([]string, error) {
	var list []string
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 32)
		last, err2 := strconv.ParseUint(to, 10, 32)
		// A number with leading zeros must not be a huge text.
		if err != nil || err2 != nil || last < first || len(from) > 20 {
			return nil, fmt.Errorf("%.40q is not a range of numbers", part)
		}
		if last-first >= uint64(most-len(list)) {
			return nil, errTooManyHosts
		}
		for n := first; n <= last; n++ {
			list = append(list, fmt.Sprintf("%0*d", len(from), n))
		}
	}
	return list, nil
}

func hostRune(r rune) bool {
	return r == '-' || r == '.' || r == '_' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
}
