//go:build cgo

package ibv_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// soft creates a separate soft-RoCE device, over a pair of virtual interfaces.
func soft(t *testing.T, number int) (d *verbs.Device, netdev string) {
	need.SoftRoCE(t)
	netdev, name := fmt.Sprintf("fault%d", number), fmt.Sprintf("rxe_fault%d", number)
	run(t, "ip", "link", "add", netdev, "type", "veth", "peer", "name", netdev+"p")
	t.Cleanup(func() { run(t, "ip", "link", "delete", netdev) })
	run(t, "ip", "address", "add", fmt.Sprintf("10.9.%d.1/24", number), "dev", netdev)
	run(t, "ip", "link", "set", netdev+"p", "up")
	run(t, "ip", "link", "set", netdev, "up")
	run(t, "rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
	t.Cleanup(func() { exec.Command("rdma", "link", "delete", name).Run() }) // if it is there still
	d, err := verbs.Find(name)
	require.NoError(t, err)
	return d, netdev
}

// rxes are the soft-RoCE devices of the host.
func rxes() (names []string) {
	all, _ := verbs.Devices()
	for _, d := range all {
		if d.Provider() == "ibv" && strings.HasPrefix(d.Name(), "rxe") {
			names = append(names, d.Name())
		}
	}
	return names
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
}

// looped is a queue pair that is its own peer.
type looped struct {
	ctx *verbs.Context
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

const (
	loopedDepth = 4
	loopedSize  = 256 << 10
)

func loop(t *testing.T, d *verbs.Device, attr verbs.ConnectAttr) *looped {
	l := &looped{}
	var err error
	l.ctx, err = d.Open(verbs.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { l.ctx.Close() }) // where the test has failed: the device waits for it
	pd, err := l.ctx.AllocPD()
	require.NoError(t, err)
	l.cq, err = l.ctx.CreateCQ(2*loopedDepth, nil)
	require.NoError(t, err)
	l.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: l.cq, RecvCQ: l.cq, Cap: verbs.QPCap{MaxSendWR: loopedDepth, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	l.mr, err = pd.AllocMR(2*loopedSize, verbs.AccessAll)
	require.NoError(t, err)
	e, err := l.qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, l.qp.Connect(e, attr))
	return l
}

// write posts a write of the whole region.
func (l *looped) write() error {
	n, err := l.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{l.mr.SGE(0, loopedSize)},
		RKey: l.mr.RKey(), RemoteAddr: l.mr.Addr() + loopedSize}})
	if err == nil && n == 0 {
		err = errors.New("no room for a write")
	}
	return err
}

// writeUntil writes over and over until a write fails, which it returns, or until
// enough says so.
func (l *looped) writeUntil(ctx context.Context, enough func(done int) bool) error {
	var wcs [loopedDepth]verbs.WC
	done := 0
	for range loopedDepth {
		if err := l.write(); err != nil {
			return err
		}
	}
	for left := loopedDepth; left > 0; {
		n, err := l.cq.Wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		left -= n
		done += n
		for i := range wcs[:n] {
			if err := wcs[i].Err(); err != nil {
				return err
			}
			if !enough(done) {
				if err := l.write(); err != nil {
					return err
				}
				left++
			}
		}
	}
	return nil
}

// TestLinkDownAndUp: an outage shorter than the retries only costs time.
func TestLinkDownAndUp(t *testing.T) {
	device(t)
	leak.Check(t)
	d, netdev := soft(t, 1)
	l := loop(t, d, verbs.ConnectAttr{Timeout: 18})
	downs := 0
	require.NoError(t, l.writeUntil(ranks.Within(t), func(done int) bool {
		if done >= 20*(downs+1) && downs < 3 {
			downs++
			run(t, "ip", "link", "set", netdev, "down")
			run(t, "ip", "link", "set", netdev, "up")
		}
		return done > 100
	}))
	require.NoError(t, l.ctx.Close())
}

// TestLinkDown: a longer outage fails the queue pair, and the port reports it.
func TestLinkDown(t *testing.T) {
	device(t)
	leak.Check(t)
	d, netdev := soft(t, 2)
	// Long enough for a guest that gets no CPU for a while: it is not to fail before the link is down.
	l := loop(t, d, verbs.ConnectAttr{Timeout: 16, RetryCnt: verbs.Retries(2)})
	down := false
	err := l.writeUntil(ranks.Within(t), func(done int) bool {
		if done >= 20 && !down {
			down = true
			run(t, "ip", "link", "set", netdev, "down")
		}
		return false
	})
	require.True(t, down, err)
	require.ErrorIs(t, err, verbs.WCRetryExcErr)
	require.Equal(t, verbs.QPErr, l.qp.State())
	e, err := l.ctx.AsyncEvent(ranks.Within(t))
	require.NoError(t, err)
	require.Equal(t, verbs.EventPortErr, e.Type)
	require.Equal(t, 1, e.Port)
	p, err := l.ctx.QueryPort(1)
	require.NoError(t, err)
	require.NotEqual(t, verbs.PortActive, p.State)
	require.NoError(t, l.ctx.Close())
}

// TestDeviceRemoved: a device removed under load either fails outstanding operations and sends an
// event, or stays until it is closed: soft-RoCE waits for its users. Then it is gone.
func TestDeviceRemoved(t *testing.T) {
	device(t)
	leak.Check(t)
	d, _ := soft(t, 3)
	l := loop(t, d, verbs.ConnectAttr{})
	remove := exec.Command("rdma", "link", "delete", d.Name())
	err := l.writeUntil(ranks.Within(t), func(done int) bool {
		if done > 20 && remove.Process == nil {
			require.NoError(t, remove.Start())
		}
		return done > 200
	})
	if err != nil {
		e, err := l.ctx.AsyncEvent(ranks.Within(t))
		require.NoError(t, err)
		require.Equal(t, verbs.EventDeviceFatal, e.Type)
	}
	require.NoError(t, l.ctx.Close())
	require.NoError(t, remove.Wait())
	_, err = verbs.Find(d.Name())
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

// forbiddenEnv says that this process may not open any device.
const forbiddenEnv = "SLUICE_IBV_FORBIDDEN"

// TestDeviceForbidden: a device that may not be opened exists but is not available.
func TestDeviceForbidden(t *testing.T) {
	const reason = " exists, but this process may not open it"
	if os.Getenv(forbiddenEnv) != "" {
		testProbe(verbs.No, reason)(t)
		return
	}
	device(t)
	need.Guest(t) // whose devices it forbids to others
	files, err := filepath.Glob("/dev/infiniband/uverbs*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		info, err := os.Stat(f)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(f, 0o600))
		t.Cleanup(func() { require.NoError(t, os.Chmod(f, info.Mode().Perm())) })
	}
	cmd := exec.CommandContext(ranks.Within(t), ranks.Program(), "-test.v", "-test.run=^TestDeviceForbidden$")
	cmd.Env = append(os.Environ(), forbiddenEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestDeviceForbidden ")
	require.NotEmpty(t, rxes()) // root may
}

// TestLockLimit: the error of a registration beyond the limit has the size requested and the limit.
func TestLockLimit(t *testing.T) {
	d := device(t)
	need.User(t)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	ctx, err := d.Open(verbs.Config{})
	require.NoError(t, err)
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	size := int(limit.Cur) + 1<<20
	_, err = pd.AllocMR(size, verbs.AccessAll)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.ErrorContains(t, err, fmt.Sprintf("%d bytes", size))
	require.ErrorContains(t, err, fmt.Sprintf("RLIMIT_MEMLOCK (ulimit -l) is %d KiB", limit.Cur>>10))
	_, err = pd.RegMR(make([]byte, size), verbs.AccessAll)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.NoError(t, ctx.Close())
}
