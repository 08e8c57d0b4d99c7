package startup

import (
	"crypto/subtle"
	"encoding/binary"
	"strings"
)

// Methods is a set of ways in which a client may authenticate, one bit each (IMPI 0.0, the AUTH
// command, as revised).
type Methods uint32

const (
	// AuthNone proves nothing: any program that can reach the server may be a client.
	AuthNone Methods = 1 << iota
	// AuthKey is a 64-bit number that all clients know. It crosses the network in the clear, so it
	// keeps out only programs that cannot listen there.
	AuthKey
)

// String lists the methods: "NONE", "KEY", "NONE|KEY"; "nothing" for an empty set.
func (m Methods) String() string {
	var names []string
	if m&AuthNone != 0 {
		names = append(names, "NONE")
	}
	if m&AuthKey != 0 {
		names = append(names, "KEY")
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, "|")
}

// Numbers of the methods in the answer to AUTH: those of their bits.
const (
	whichNone = 0
	whichKey  = 1
)

// pick returns the number of the strongest method in both sets.
func pick(have, offered Methods) (which int32, ok bool) {
	switch both := have & offered; {
	case both&AuthKey != 0:
		return whichKey, true
	case both&AuthNone != 0:
		return whichNone, true
	}
	return 0, false
}

// sameKey compares two keys in constant time.
func sameKey(a, b uint64) bool {
	var x, y [keyLen]byte
	binary.BigEndian.PutUint64(x[:], a)
	binary.BigEndian.PutUint64(y[:], b)
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
