package boot

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// pmiLine is a line of the protocol: cmd=NAME and pairs of key and value.
type pmiLine struct {
	command string
	pairs   []pmiPair // no key twice
}

type pmiPair struct{ key, value string }

func (l *pmiLine) get(key string) (string, bool) {
	i := slices.IndexFunc(l.pairs, func(p pmiPair) bool { return p.key == key })
	if i < 0 {
		return "", false
	}
	return l.pairs[i].value, true
}

// Append appends the line with its end to b.
func (l *pmiLine) Append(b []byte) []byte {
	b = append(b, "cmd="...)
	b = append(b, l.command...)
	for _, p := range l.pairs {
		b = append(b, ' ')
		b = append(b, p.key...)
		b = append(b, '=')
		b = append(b, p.value...)
	}
	return append(b, '\n')
}

// parsePMILine parses a line without its end. A word without = continues the value before it: some
// explanations contain spaces.
func parsePMILine(b []byte) (l pmiLine, err error) {
	bad := func(format string, a ...any) (pmiLine, error) {
		return pmiLine{}, fmt.Errorf("%w: %s", errProtocol, fmt.Sprintf(format, a...))
	}
	if len(b) > maxPMILine {
		return bad("line of %d bytes, at most %d", len(b), maxPMILine)
	}
	if i := bytes.IndexFunc(b, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
		return bad("byte %#02x in a line", b[i])
	}
	for word := range strings.FieldsSeq(string(b)) {
		key, value, ok := strings.Cut(word, "=")
		switch {
		case l.command == "":
			if key != "cmd" || value == "" {
				return bad("line that begins with %.20q, not with cmd=", word)
			}
			l.command = value
		case !ok && len(l.pairs) > 0:
			l.pairs[len(l.pairs)-1].value += " " + word
		case !ok || key == "" || len(key) > maxPMIKey:
			return bad("%s: %.80q where a key and a value should be", l.command, word)
		default:
			if _, twice := l.get(key); twice || key == "cmd" {
				return bad("%s: key %q twice", l.command, key)
			}
			l.pairs = append(l.pairs, pmiPair{key, value})
		}
	}
	if l.command == "" {
		return bad("empty line")
	}
	return l, nil
}

// number returns the value of a key as a number.
func (l *pmiLine) number(key string, least, most int) (int, error) {
	value, ok := l.get(key)
	if !ok {
		return 0, fmt.Errorf("%w: no %s", errProtocol, key)
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%w: %s=%.40q, want %d to %d", errProtocol, key, value, least, most)
	}
	return n, nil
}

// check returns the error that the launcher reports. Not every answer has a code.
func (l *pmiLine) check() error {
	rc, ok := l.get("rc")
	if !ok || rc == "0" {
		return nil
	}
	for _, key := range []string{"msg", "errmsg"} {
		if msg, ok := l.get(key); ok {
			return fmt.Errorf("the launcher returned rc=%.40s: %.200s", rc, msg)
		}
	}
	return fmt.Errorf("the launcher returned rc=%.40s", rc)
}
