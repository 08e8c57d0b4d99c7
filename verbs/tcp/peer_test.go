package tcp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// A peer in another process, whose arguments are its role (echo: send messages back; sink: receive
// them; idle: do nothing), its device and its address. The two exchange one line of JSON each way,
// and are then connected. The peer ends with its standard input.
var acts = map[string]func(args []string) error{"peer": beside}

// card is the line that the two exchange.
type card struct {
	Endpoint []byte
	Addr     uint64
	RKey     uint32
}

// corner is a QP with all that it needs, in either process.
type corner struct {
	ctx *verbs.Context
	cq  *verbs.CQ
	mr  *verbs.MR
	qp  *verbs.QP
	far card
}

const cornerSize = 8 << 20

func openCorner(device string, cfg verbs.Config) (*corner, error) {
	d, err := verbs.Find(device)
	if err != nil {
		return nil, err
	}
	c := &corner{}
	if c.ctx, err = d.Open(cfg); err != nil {
		return nil, err
	}
	pd, err := c.ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	if c.cq, err = c.ctx.CreateCQ(4096, nil); err != nil {
		return nil, err
	}
	if c.mr, err = pd.AllocMR(cornerSize, verbs.AccessAll); err != nil {
		return nil, err
	}
	c.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: c.cq, RecvCQ: c.cq,
		Cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 1, MaxRecvSGE: 1}})
	return c, err
}

// introduce exchanges cards and connects.
func (c *corner) introduce(r io.Reader, w io.Writer) error {
	e, err := c.qp.Endpoint()
	if err != nil {
		return err
	}
	b, err := e.MarshalBinary()
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(card{b, c.mr.Addr(), c.mr.RKey()}); err != nil {
		return err
	}
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &c.far); err != nil {
		return err
	}
	remote, err := verbs.ParseEndpoint(c.far.Endpoint)
	if err != nil {
		return err
	}
	return c.qp.Connect(remote, verbs.ConnectAttr{Timeout: 18})
}

// beside is the other process.
func beside(args []string) error {
	c, err := openCorner(args[1], verbs.Config{Secret: secret, Address: args[2]})
	if err != nil {
		return err
	}
	recv := make([]verbs.RecvWR, 64)
	for i := range recv {
		recv[i].SGList = []verbs.SGE{c.mr.SGE(0, cornerSize)}
	}
	if err := c.introduce(os.Stdin, os.Stdout); err != nil {
		return err
	}
	for range 3 {
		if _, err := c.qp.PostRecv(recv); err != nil {
			return err
		}
	}
	gone := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(gone)
	}()
	if role := args[0]; role != "idle" {
		if err := c.serve(recv, role == "echo", gone); err != nil {
			return err
		}
	}
	<-gone
	return c.ctx.Close()
}

// serve receives until the connection ends, and with echo sends messages back.
func (c *corner) serve(recv []verbs.RecvWR, echo bool, gone <-chan struct{}) error {
	wcs := make([]verbs.WC, 64)
	send := []verbs.SendWR{{Opcode: verbs.OpSend}}
	used := 0
	for spins := 0; ; spins++ {
		n, err := c.cq.Poll(wcs)
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if wc.Status != verbs.WCSuccess {
				return nil // the other side has closed
			}
			if wc.Opcode != verbs.WCRecv {
				continue
			}
			used++
			if echo {
				send[0].SGList = []verbs.SGE{c.mr.SGE(0, int(wc.ByteLen))}
				if k, err := c.qp.PostSend(send); k != 1 || err != nil {
					return fmt.Errorf("echo: %d posted: %w", k, err)
				}
			}
		}
		if used >= len(recv) {
			used -= len(recv)
			if _, err := c.qp.PostRecv(recv); err != nil {
				return err
			}
		}
		if spins%(1<<16) == 0 {
			select {
			case <-gone:
				return nil
			default:
			}
		}
	}
}

// peer is the other process, seen from here.
type peer struct {
	*corner
	cmd *exec.Cmd
	in  io.WriteCloser
}

// startPeer starts the other process, with wrap before its command line, and connects to it.
func startPeer(t testing.TB, role string, cfg verbs.Config, device, farDevice, farAddress string, wrap ...string) *peer {
	t.Helper()
	line := append(wrap, ranks.Program(), role, farDevice, farAddress)
	p := &peer{cmd: exec.Command(line[0], line[1:]...)}
	p.cmd.Env, p.cmd.Stderr = ranks.Environ("peer"), os.Stderr
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		p.in.Close()
		dog := time.AfterFunc(ranks.Limit, func() { p.cmd.Process.Kill() })
		defer dog.Stop()
		if err := p.cmd.Wait(); !errors.As(err, new(*exec.ExitError)) { // killed by the test
			require.NoError(t, err)
		}
	})
	p.corner, err = openCorner(device, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.ctx.Close()) })
	require.NoError(t, p.introduce(out, p.in))
	return p
}
