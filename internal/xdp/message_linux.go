package xdp

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/variable"
)

// The protocol of the helper, on a Unix socket that keeps messages apart
// (SOCK_SEQPACKET), each a JSON object:
//
//	process                                helper
//	  |--- request, UDP socket ------------->|  checks the process, and the socket's address
//	  |<-- reply, descriptors of the grant --|
//	  |      (the connection stays)          |
//	  |--- end of the connection ----------->|  takes the seat back

type request struct {
	Interface string `json:"interface"`
}

type reply struct {
	Error     string `json:"error,omitempty"`
	Forbidden bool   `json:"forbidden,omitempty"`
	Shape     Shape  `json:"shape"`
	Number    int    `json:"number"`
}

// maxMessage limits a message in bytes, maxRights the descriptors with it.
const (
	maxMessage = 4096
	maxRights  = 4
)

// patience is how long the other side may take for its part; to open a port, the helper may take
// [freeing] besides.
const patience = 10 * time.Second

func send(c *net.UnixConn, v any, fds ...int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

// receive reads a message with exactly n descriptors, or closes all that came.
func receive(c *net.UnixConn, v any, n int) (fds []int, err error) {
	b := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4*maxRights))
	defer func() {
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			fds = nil
		}
	}()
	k, m, _, _, err := c.ReadMsgUnix(b, oob)
	if m > 0 {
		messages, e := unix.ParseSocketControlMessage(oob[:m])
		for i := range messages {
			more, _ := unix.ParseUnixRights(&messages[i])
			fds = append(fds, more...)
		}
		err = cmp.Or(err, e)
	}
	switch {
	case err != nil:
		return fds, err
	case k == 0:
		return fds, errors.New("the other side closed the connection")
	}
	if err := json.Unmarshal(b[:k], v); err != nil {
		return fds, err
	}
	if r, ok := v.(*reply); ok && r.Error != "" {
		return fds, nil
	}
	if len(fds) != n {
		return fds, fmt.Errorf("message has %d descriptors, want %d", len(fds), n)
	}
	return fds, nil
}

// Where the helper listens.
const (
	EnvHelper     = "SLUICE_XDP_SOCKET"
	DefaultHelper = variable.XDPSocket
)

// HelperPath returns the path of the helper's socket, and whether the environment sets it.
func HelperPath() (path string, asked bool) {
	p, ok := os.LookupEnv(EnvHelper)
	return cmp.Or(p, DefaultHelper), ok && p != ""
}

func dial(path string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("connect to helper: %w", err)
	}
	return c, nil
}

// Reach returns an error unless this process can connect to the helper.
func Reach(path string) error {
	c, err := dial(path)
	if err == nil {
		c.Close()
	}
	return err
}

// Ask asks the helper for a seat at an interface, for the address of a UDP socket (see
// [Port.Join]).
func Ask(path, netdev string, udp int) (*Seat, error) {
	c, err := dial(path)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(freeing + patience))
	var r reply
	if err = send(c, request{netdev}, udp); err == nil {
		var fds []int
		if fds, err = receive(c, &r, 3); err == nil && r.Error == "" {
			return NewSeat(&Grant{Shape: r.Shape, Number: r.Number, Socket: fds[0], Rings: fds[1], Memory: fds[2]}, func() { c.Close() })
		}
	}
	c.Close()
	switch {
	case err != nil:
		return nil, fmt.Errorf("helper at %s: %w", path, err)
	case r.Forbidden:
		return nil, fmt.Errorf("%w by the helper at %s: %s", ErrForbidden, path, r.Error)
	}
	return nil, fmt.Errorf("helper at %s: %s", path, r.Error)
}
