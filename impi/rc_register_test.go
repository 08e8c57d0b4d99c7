package impi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// TestRegisterAside: while much memory is registered, which takes long, at either end,
// other messages go on.
func TestRegisterAside(t *testing.T) {
	for _, p := range places {
		if p.hosts == 1 || len(p.config.Providers) == 0 || p.name == "shm" {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			if p.name == "roce" { // is slow with so much
				need.Long(t)
			}
			t.Parallel()
			w := worlds(t, p)
			begun, proceed := make(chan struct{}), make(chan struct{})
			for _, c := range w {
				c.e.lock.Lock()
				for _, d := range c.job.devices {
					regMR := d.regMR
					d.regMR = func(b []byte, access verbs.AccessFlags) (*verbs.MR, error) {
						begun <- struct{}{}
						<-proceed
						return regMR(b, access)
					}
				}
				c.e.lock.Unlock()
			}
			msg, got := make([]byte, registerAside+9000), make([]byte, registerAside+9000)
			copy(msg[len(msg)-5000:], pattern(5000, 1))
			r := irecv(t, w[1], got, 0, 0)
			q := isend(t, w[0], msg, 1, 0)
			for range 2 { // the receiver, then the sender
				<-begun
				settle(t, w[0], w[1])
				pending(t, q)
				pending(t, r)
				proceed <- struct{}{}
			}
			both(t, func() error { _, err := q.Wait(within(t)); return err }, func() error { _, err := r.Wait(within(t)); return err })
			require.Equal(t, msg, got)
			// The link is lost while memory is being registered.
			r = irecv(t, w[1], got, 0, 1)
			q = isend(t, w[0], msg, 1, 1)
			<-begun
			kill(w[1].job)
			fails(t, q, ErrPeerDied, 1)
			pending(t, r)
			close(proceed)
			fails(t, r, ErrPeerDied, 0)
		})
	}
}
