package startup

import (
	"bufio"
	"errors"
	"net"
	"slices"
	"strings"
)

func containsAll(s string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) })
}

func isOneOf(err error, reasons ...error) bool {
	return slices.ContainsFunc(reasons, func(r error) bool { return errors.Is(err, r) })
}

func isTimeout(err error, timeout *net.Error) bool {
	return errors.As(err, timeout) && (*timeout).Timeout()
}

// foreign does all up to the answer to DONE with the labels of the protocol alone.
func (h *handshake) foreign() error {
	h.r = bufio.NewReader(h.conn)
	if err := errors.Join(h.authenticate(), h.enter()); err != nil {
		return err
	}
	for _, c := range h.submissions() {
		if c.label >= LabelSluice {
			break
		}
		if _, err := h.submit(c); err != nil {
			return err
		}
	}
	return h.done()
}
