package startup

import (
	"bufio"
	"errors"
	"fmt"
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

// foreign does all up to the answer to DONE with the labels of the protocol alone, and
// takes no other answer than that which is due, as LAM/MPI does.
func (h *handshake) foreign() error {
	h.r = bufio.NewReader(h.conn)
	if err := errors.Join(h.authenticate(), h.enter()); err != nil {
		return err
	}
	for _, c := range h.submissions() {
		if c.label >= LabelSluice {
			break
		}
		if _, err := h.conn.Write(c.append(nil)); err != nil {
			return err
		}
		b, err := h.next(cmdColl)
		if err != nil {
			return err
		}
		if reply, err := parseCollReply(b); err != nil || reply.label != c.label {
			return fmt.Errorf("label %v, answered by %v: %w", c.label, reply.label, errors.Join(ErrProtocol, err))
		}
	}
	if _, err := h.conn.Write(doneWire); err != nil {
		return err
	}
	_, err := h.next(cmdDone)
	return err
}

// next returns the payload of the next answer, which is to that command.
func (h *handshake) next(cmd command) ([]byte, error) {
	head, err := readHeader(h.r)
	if err != nil {
		return nil, err
	}
	return h.payload(head, cmd, chdrLen+h.MaxAnswer)
}
