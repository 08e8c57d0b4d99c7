package tcp

import (
	"net"
	"os"
	"testing"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

func TestMain(m *testing.M) {
	if os.Getenv(envRole) != "" {
		os.Exit(peerMain())
	}
	verbstest.Main(m)
}

var secret = []byte("the secret of this test")

// loop is the name of the loopback device.
func loop(t testing.TB) string {
	t.Helper()
	nics, err := interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(nics) == 0 || !nics[0].loop {
		t.Skip("no loopback interface is up")
	}
	return nics[0].device()
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  verbs.Config
	}{
		{"raw", verbs.Config{Insecure: true}},
		{"raw IPv6, secret", verbs.Config{Secret: secret, Job: "conformance", Address: "::1"}},
		{"portable", verbs.Config{Secret: secret, Portable: true}},
		{"portable IPv6", verbs.Config{Insecure: true, Portable: true, Address: "::1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.cfg.Address != "" {
				l, err := net.Listen("tcp", net.JoinHostPort(c.cfg.Address, "0"))
				if err != nil {
					t.Skip("no such address here: ", err)
				}
				l.Close()
			}
			verbstest.Run(t, verbstest.Suite{Device: loop(t), Config: c.cfg})
		})
	}
}
