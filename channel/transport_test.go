package channel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// absent is a provider that has no device anywhere.
type absent struct{}

func (absent) Name() string { return "absent" }
func (absent) Rank() int    { return 50 }
func (absent) Probe() verbs.Probe {
	return verbs.Probe{Answer: verbs.No, Reason: "it does not exist"}
}
func (absent) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }
func (absent) Open(device string, _ verbs.Config) (verbs.ProviderContext, error) {
	return nil, verbs.Errorf(device, "open", verbs.ErrNoDevice, "")
}

func init() { verbs.Register(absent{}) }

// TestTransport: the variable names the providers, unless the program does.
func TestTransport(t *testing.T) {
	type setting struct {
		variable string
		opts     []Option
		want     string
	}
	all := []setting{
		{"", nil, "shm"},
		{"tcp", nil, "tcp"},
		{"shm", nil, "shm"},
		{"tcp,shm", nil, "tcp"},
		{" shm , tcp ", nil, "shm"},
		{"tcp", []Option{WithProviders()}, "tcp"},
		{"tcp", []Option{WithProviders("shm", "tcp")}, "shm"},
		{"carrier-pigeon", []Option{WithProviders("tcp")}, "tcp"},
		{"ibv", nil, "ibv"},
		{"ibv,shm", nil, "ibv"},
		{"tcp,ibv", nil, "tcp"},
	}
	for _, c := range all {
		t.Run(fmt.Sprintf("%q, %d options", c.variable, len(c.opts)), func(t *testing.T) {
			if strings.Contains(c.variable, "ibv") {
				need.RDMA(t)
			}
			t.Setenv(EnvTransport, c.variable)
			nodes := join(t, 2, c.opts...)
			ofB, ofA := talk(t, nodes[0], nodes[1])
			require.Equal(t, c.want, ofB.Provider)
			require.Equal(t, c.want, ofA.Provider)
		})
	}
}

// TestBadTransport: the error names the variable, and what there is.
func TestBadTransport(t *testing.T) {
	for value, says := range map[string]string{
		"tcp,carrier-pigeon": `SLUICE_TRANSPORT="tcp,carrier-pigeon": provider "carrier-pigeon" has no device here (this program links no provider of that name); usable here: `,
		"TCP":                `SLUICE_TRANSPORT="TCP": provider "TCP" has no device here (this program links no provider of that name); usable here: `,
		"tcp,":               `SLUICE_TRANSPORT="tcp,": provider "" has no device here (an empty name: is there a comma too many?); usable here: `,
		"shm,,tcp":           `SLUICE_TRANSPORT="shm,,tcp": provider "" has no device here (an empty name: is there a comma too many?); usable here: `,
		"absent":             `SLUICE_TRANSPORT="absent": provider "absent" has no device here (it does not exist); usable here: `,
	} {
		t.Setenv(EnvTransport, value)
		err := joinErrors(t, 2)[0]
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, says)
	}
	t.Setenv(EnvTransport, "tcp,tcp")
	_, err := Join(t.Context())
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `SLUICE_TRANSPORT="tcp,tcp": provider "tcp" is named twice`)
}
