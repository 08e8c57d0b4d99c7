package tcp

import (
	"net"
	"os"
	"testing"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
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
	nics, err := nic.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(nics) == 0 || !nics[0].Loop {
		t.Skip("no loopback interface is up")
	}
	return providerName + "_" + nics[0].Name
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		long bool // with -short the others have to do, which have the same of everything, if not together
		cfg  verbs.Config
	}{
		{"raw", true, verbs.Config{Insecure: true}},
		{"raw IPv6, secret", false, verbs.Config{Secret: secret, Job: "conformance", Address: "::1"}},
		{"portable", true, verbs.Config{Secret: secret, Portable: true}},
		{"portable IPv6", false, verbs.Config{Insecure: true, Portable: true, Address: "::1"}},
	} {
		if c.long && testing.Short() {
			continue
		}
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
